//! The host's part of a launch, for every number of hardware queues: the whole library, orders that hang, and programs
//! that need more queues than there are.

use crate::fixtures::library;
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, me, others, ranks, world};
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::host::{HostOpKind, Queues, Submission};
use counterflow_codegen::kernel::{Block, Kernel, OpKind, visit};
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked};
use counterflow_codegen::warp::Pipeline;

fn kernel(program: &Program, world: u32) -> Kernel {
    let variant = match program.tunables.is_empty() {
        true => Variant::new(world),
        false => Variant::new(world).set("tiles", (128, 128)),
    };
    lower(program, &variant).unwrap_or_else(|error| panic!("{}: {error}", program.name))
}

fn built(kernel: Kernel, shape: &Shape) -> (Pipeline, Checked<Plan>) {
    let kernel = verify::kernel(kernel).unwrap_or_else(|error| panic!("{error}"));
    let plan = verify::plan(&kernel, shape, &Machine::h200());
    let plan = plan.unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
    let pipeline = sm90::build(&kernel).unwrap_or_else(|error| panic!("{error}"));
    (pipeline, plan)
}

fn of(program: &Program, world: u32) -> (Pipeline, Checked<Plan>) {
    built(kernel(program, world), &Shape::new(1111, 256, 128))
}

fn a_gpu_each(world: u32, count: u32) -> Queues {
    let gpus = (0..world).collect();
    Queues { count, gpus }
}

fn one_gpu(world: u32, count: u32) -> Queues {
    let gpus = vec![0; world as usize];
    Queues { count, gpus }
}

#[test]
fn the_library_is_right_with_any_number_of_queues_at_a_rank_a_gpu() {
    for program in library::all() {
        for world in 1..=8 {
            let (pipeline, plan) = of(&program, world);
            for count in [1, 2, 8, 32] {
                let queues = a_gpu_each(world, count);
                if let Err(trace) = pipeline.queued(&plan, &queues) {
                    panic!("{} of {world} with {count} queues: {trace}", program.name);
                }
            }
        }
    }
}

/// Ranks that share a GPU are refused exactly where they may take more queues than there are (one, and four where copy
/// engines move data), unless no rank waits for another.
#[test]
fn ranks_that_share_a_gpu_need_a_queue_for_each_stream() {
    for program in library::all() {
        for world in [2, 5, 8] {
            let (pipeline, plan) = of(&program, world);
            let streams = if program.name == "ag_gemm_pull" { 2 } else { 1 };
            assert_eq!(pipeline.streams(), streams);
            for count in [1, 2, 8, 32] {
                let queues = if streams == 2 { 4 } else { 1 };
                let fits = program.name == "gemm" || world * queues <= count;
                let verdict = pipeline.queued(&plan, &one_gpu(world, count));
                assert_eq!(
                    verdict.is_ok(),
                    fits,
                    "{} of {world} with {count} queues: {verdict:?}",
                    program.name
                );
            }
        }
    }
}

/// Two of four GPUs have a rank each, and two ranks share a third: that one alone needs the queues.
#[test]
fn each_gpu_is_counted_for_itself() {
    let program = library::ag_gemm(&library::real());
    let (pipeline, plan) = of(&program, 4);
    let gpus = vec![0, 1, 2, 2];
    for (count, fits) in [(1, false), (2, true)] {
        let gpus = gpus.clone();
        let verdict = pipeline.queued(&plan, &Queues { count, gpus });
        assert_eq!(verdict.is_ok(), fits, "{verdict:?}");
    }
}

/// A third stream ends a wait that lasts too long: where copies of several ranks on a GPU are accepted, it has a queue.
#[test]
fn what_ends_a_wait_has_a_queue_wherever_copies_share_a_gpu() {
    let mut accepted = 0;
    for world in 2..=8 {
        let (pipeline, plan) = of(&library::ag_gemm_pull(&library::real()), world);
        for count in 1..=32 {
            let queues = one_gpu(world, count);
            if pipeline.queued(&plan, &queues).is_ok() {
                accepted += 1;
                assert!(queues.one_each(0, 3), "{world} ranks, {count} queues");
            }
        }
    }
    assert!(accepted > 0);
}

/// Whose launches are submitted first is the hosts' business: fewer queues than streams are refused where ranks share a
/// GPU, also if some orders get through.
#[test]
fn an_order_of_hosts_is_not_taken_for_granted() {
    let (pipeline, plan) = of(&library::ag_gemm(&library::real()), 4);
    let (count, gpus) = (1, vec![0, 1, 0, 1]);
    let found = pipeline.queued(&plan, &Queues { count, gpus });
    assert!(found.is_err());
}

/// As the credits were: granted by the kernel, which with one queue stands behind its own rank's copies, which wait for
/// the peers' kernels, which stand behind theirs.
fn granted_by_the_kernel(mut kernel: Kernel) -> Kernel {
    let copies = |kernel: &Kernel| {
        let mut roles = kernel.roles.iter();
        roles
            .position(|role| role.kind.sequential())
            .expect("copies")
    };
    let from = copies(&kernel);
    let grant = kernel.roles[from].body.remove(0);
    let Block::Once { body } = &grant else {
        panic!("no grant")
    };
    let mut signals = 0;
    visit(std::slice::from_ref(&grant), &mut |op| {
        signals += u32::from(matches!(op.kind, OpKind::Signal { .. }));
    });
    assert_eq!((body.len(), signals), (1, 1));
    kernel.roles[1 - from].body.insert(0, grant);
    kernel
}

/// All of a rank's copies before its kernel, whatever they wait for: as they were submitted once.
fn copies_first(pipeline: &Pipeline, plan: &Plan, rank: u32) -> Vec<Submission> {
    let mut program = pipeline.submissions(plan, rank).expect("a program");
    program.retain(|submission| *submission != Submission::Kernel);
    program.insert(program.len() - 1, Submission::Kernel);
    program
}

/// `ag_gemm_pull` of two GPUs as it hung with `CUDA_DEVICE_MAX_CONNECTIONS=1`.
#[test]
fn a_kernel_that_grants_what_the_copies_before_it_wait_for_hangs_with_one_queue() {
    let before = granted_by_the_kernel(kernel(&library::ag_gemm_pull(&library::real()), 2));
    let (pipeline, plan) = built(before, &Shape::new(1111, 512, 512));
    let programs = [0, 1].map(|rank| copies_first(&pipeline, &plan, rank));
    let stuck = |count| pipeline.stuck(&plan, &programs, &a_gpu_each(2, count));
    assert!(stuck(2).is_none());
    insta::assert_snapshot!(stuck(1).expect("a hang").text(&|_| String::new()));
    // Submitted in our order, even that kernel gets through.
    assert!(pipeline.queued(&plan, &a_gpu_each(2, 1)).is_ok());
}

/// The same programs with one thing out of its order.
#[test]
fn an_order_that_puts_a_wait_before_what_it_needs_is_refused() {
    let (pipeline, plan) = of(&library::ag_gemm_pull(&library::real()), 3);
    let queues = a_gpu_each(3, 1);
    let programs = |edit: &dyn Fn(&mut Vec<Submission>)| -> Vec<Vec<Submission>> {
        let all = (0..3).map(|rank| pipeline.submissions(&plan, rank).expect("a program"));
        let edited = all.map(|mut program| {
            edit(&mut program);
            program
        });
        edited.collect()
    };
    let is_wait = |submission: &Submission| matches!(submission, Submission::Copies(op) if matches!(op.kind, HostOpKind::Wait { .. }));
    let stuck =
        |edit: &dyn Fn(&mut Vec<Submission>)| pipeline.stuck(&plan, &programs(edit), &queues);
    assert!(stuck(&|_| {}).is_none());
    // A wait for a peer ahead of this rank's grants.
    let trace = stuck(&|program| {
        let at = program.iter().position(is_wait).expect("a wait");
        let wait = program.remove(at);
        program.insert(1, wait);
    });
    insta::assert_snapshot!(trace.expect("a hang").text(&|_| String::new()));
    // The copies of a launch follow its own kernel, which waits for them.
    let trace = stuck(&|program| {
        program.retain(|submission| *submission != Submission::Kernel);
        program.insert(0, Submission::Kernel);
    });
    insta::assert_snapshot!(trace.expect("a hang").text(&|_| String::new()));
}

/// Sums that copy engines carry to all ranks: they wait for the kernel, which waits for them.
fn reused_stages() -> Program {
    let mut s = ScheduleBuilder::new("stage_subtiles");
    let (x, w, y) = (
        s.local("x", Bf16),
        s.local("w", Bf16),
        s.all_reduced("y", Bf16),
    );
    let tiles = s.tiles("tiles", y, (128, 128));
    let partial = s.symmetric("partial", Bf16, y.shard(), world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    let made = s.counters("made", [tiles.into()]);
    let done = s.counters("done", [tiles.into()]);
    s.copy_engine(|s| {
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            s.for_items("t", tiles.of(me()), |s, t| {
                s.wait(made.at(t));
                s.copy(y.on(&peer).at(t), y.at(t));
                s.signal(done.on(&peer).at(t), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let acc = s.dot(x.at(t), w.at(t));
                s.store(partial.on(&owner).at(me()).at(t), acc);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            let mine = s.dot(x.at(t), w.at(t));
            s.wait(landed.at(others()).at(t));
            let theirs = s.sum(partial.at(others()).at(t));
            s.store(y.at(t), mine + theirs);
            s.signal(made.at(t), 1);
        });
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| s.wait(done.at(t)));
        });
    });
    s.finish()
}

#[test]
fn copies_that_need_the_kernel_are_submitted_after_it() {
    let (pipeline, plan) = of(&reused_stages(), 2);
    let program = pipeline.submissions(&plan, 0).expect("a program");
    let kernel = program.iter().position(|is| *is == Submission::Kernel);
    let kernel = kernel.expect("a kernel");
    assert!(
        kernel < program.len() - 2,
        "copies after the kernel: {program:?}"
    );
    assert!(pipeline.queued(&plan, &a_gpu_each(2, 1)).is_ok());
    let programs = [0, 1].map(|rank| copies_first(&pipeline, &plan, rank));
    let trace = pipeline.stuck(&plan, &programs, &a_gpu_each(2, 1));
    insta::assert_snapshot!(trace.expect("a hang").text(&|_| String::new()));
}

#[test]
fn ranks_that_share_a_queue_stand_behind_each_others_next_launch() {
    let (pipeline, plan) = of(&library::gemm_rs(&library::real()), 2);
    let trace = pipeline.queued(&plan, &one_gpu(2, 1)).expect_err("a hang");
    let trace = trace.iter().next().cloned();
    insta::assert_snapshot!(trace.expect("a finding").text(&|_| String::new()));
}
