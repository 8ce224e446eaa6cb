//! Rejects launches that would wait for ever on this GPU and in this process, before anything is enqueued.

use crate::communicator::Communicator;
use crate::cuda::{BLOCKING, MOST_QUEUES, QUEUES, blocking};
use crate::error::Error;
use counterflow_codegen::host::Queues;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::warp::Pipeline;

/// Rejects a plan whose launches do not get through the available hardware queues, with launches that do not block.
pub(super) fn admit(rank: &Communicator, pipeline: &Pipeline, plan: &Plan) -> Result<(), Error> {
    judge(rank.queues(), blocking(), pipeline, plan)
}

fn judge(queues: &Queues, blocking: bool, pipeline: &Pipeline, plan: &Plan) -> Result<(), Error> {
    let waits = plan.geometry.world > 1 && !pipeline.kernel.counters.is_empty();
    if !waits {
        return Ok(());
    }
    if blocking {
        return Err(Error::Environment {
            variable: BLOCKING,
            what: format!(
                "{BLOCKING} is set: a launch of {} blocks until its peers launch, and their launches in this process wait for it",
                pipeline.kernel.name
            ),
            help: format!("unset {BLOCKING}, or launch a world of one rank"),
        });
    }
    let Err(trace) = pipeline.queued(plan, queues) else {
        return Ok(());
    };
    let ranks = |gpu: u32| queues.gpus.iter().filter(|on| **on == gpu).count() as u32;
    let most = queues.gpus.iter().map(|gpu| ranks(*gpu)).max().unwrap_or(1);
    let taken = |gpu: &u32| queues.taken(*gpu, pipeline.streams());
    let needs = queues.gpus.iter().map(taken).max().unwrap_or(1);
    let help = if needs <= MOST_QUEUES {
        format!(
            "set {QUEUES} to {needs} or more before the process starts (at most {MOST_QUEUES}, which is the default if no context was made before), or share a GPU among fewer ranks"
        )
    } else {
        format!("share a GPU among fewer ranks: {QUEUES} is at most {MOST_QUEUES}")
    };
    let first = trace.iter().next();
    Err(Error::Environment {
        variable: QUEUES,
        what: format!(
            "{QUEUES}={}: {most} ranks on a GPU wait in {} streams. {}",
            queues.count,
            most * pipeline.streams(),
            first.map_or("", |found| &found.message)
        ),
        help,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedules::{Sender, gather};
    use counterflow_codegen::lower::lower;
    use counterflow_codegen::machine::Machine;
    use counterflow_codegen::program::Program;
    use counterflow_codegen::shape::Shape;
    use counterflow_codegen::sm90;
    use counterflow_codegen::variant::Variant;
    use counterflow_codegen::verify::{self, Checked};

    fn made(program: &Program, world: u32) -> (Pipeline, Checked<Plan>) {
        let kernel = lower(program, &Variant::new(world))
            .and_then(verify::kernel)
            .expect("a kernel");
        let plan = verify::plan(&kernel, &Shape::new(1111, 256, 128), &Machine::h200());
        (
            sm90::build(&kernel).expect("a pipeline"),
            plan.expect("a plan"),
        )
    }

    fn told(world: u32, gpus: u32, count: u32, blocking: bool, copies: bool) -> String {
        let sender = match copies {
            true => Sender::CopyEngine,
            false => Sender::Ctas(4),
        };
        let (pipeline, plan) = made(&gather(sender), world);
        let gpus = (0..world).map(|rank| rank % gpus).collect();
        match judge(&Queues { count, gpus }, blocking, &pipeline, &plan) {
            Ok(()) => "fine".into(),
            Err(error) => {
                assert_eq!(error.kind(), "environment");
                format!("{error}\n{}", error.help().unwrap_or_default())
            }
        }
    }

    #[test]
    fn a_rank_a_gpu_is_fine_with_any_number_of_queues() {
        for count in [1, 2, 8, 32] {
            for copies in [false, true] {
                assert_eq!(told(4, 4, count, false, copies), "fine");
            }
        }
    }

    #[test]
    fn ranks_that_share_a_gpu_are_told_the_variable_and_the_number() {
        assert_eq!(told(8, 1, 8, false, false), "fine");
        assert_eq!(told(8, 1, 32, false, true), "fine");
        let eight = told(5, 1, 8, false, true);
        assert!(
            eight.starts_with(
                "CUDA_DEVICE_MAX_CONNECTIONS=8: 5 ranks on a GPU wait in 10 streams. "
            ),
            "{eight}"
        );
        assert!(
            eight.contains("set CUDA_DEVICE_MAX_CONNECTIONS to 20 or more"),
            "{eight}"
        );
        let none = told(17, 1, 32, false, true);
        assert!(
            none.ends_with("CUDA_DEVICE_MAX_CONNECTIONS is at most 32"),
            "{none}"
        );
    }

    #[test]
    fn launches_that_block_are_refused_where_ranks_wait_for_each_other() {
        let two = told(2, 2, 32, true, false);
        assert!(two.starts_with("CUDA_LAUNCH_BLOCKING is set: "), "{two}");
        assert!(
            two.ends_with("unset CUDA_LAUNCH_BLOCKING, or launch a world of one rank"),
            "{two}"
        );
        assert_eq!(told(1, 1, 32, true, false), "fine");
    }
}
