//! Emulated ranks: the run time's own calls, on GPUs that are in this process.

mod agree;
mod alone;
mod buckets;
mod dlpack;
mod dropped;
mod ends;
mod graphs;
#[path = "../common/groups.rs"]
mod groups;
mod held;
mod log;
mod no_rows;
mod orders;
mod partial;
mod planes;
mod quantised;
mod refused;
mod rounds;
mod schedules;
mod shown;
mod sizes;
mod tuning;
#[path = "../../../codegen/tests/fixtures/wide.rs"]
mod wide;
mod within;

use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked, Series};
use counterflow_codegen::warp::Pipeline;
use counterflow_runtime::driver::{Event, Local};
use counterflow_runtime::{Communicator, Error, gpus};
use schedules::Sender;

fn made(program: &Program, world: u32, most: &Shape) -> (Checked<Pipeline>, Series) {
    let kernel = lower(program, &Variant::new(world)).and_then(verify::kernel);
    let kernel = kernel.expect("a kernel");
    let series = verify::series(&kernel, most, &Machine::h200()).expect("a series");
    (verify::warps(&kernel).expect("warps"), series)
}

#[test]
fn groups_of_two_in_four_launch_beside_each_other() -> Result<(), Error> {
    let ranks = Communicator::emulated(4)?;
    Communicator::each(&ranks, |rank| {
        groups::layers(rank, [256, 64], |rank, program| {
            rank.op(program).up_to(256, 64, 64).build()
        })
    })?;
    // They may be split again, and a difference ends nothing.
    Communicator::each(&ranks, |rank| {
        let told = match rank.rank() {
            3 => rank.barrier(),
            _ => rank.split(0, 0).map(drop),
        };
        let told = told.expect_err("different calls").to_string();
        assert!(
            told.contains("rank 0 splits by color 0 and key 0"),
            "{told}"
        );
        let alone = rank.split(rank.rank(), 0)?;
        assert_eq!((alone.rank(), alone.world()), (0, 1));
        alone.barrier()
    })?;
    Ok(())
}

/// Launches of several shapes, one after another, with the reference's results.
#[test]
fn launches_agree_with_the_reference() -> Result<(), Error> {
    let all = [
        (schedules::gather(Sender::Ctas(4)), 1),
        (schedules::gather(Sender::Ctas(4)), 3),
        (schedules::gather(Sender::CopyEngine), 2),
        (schedules::scatter("scatter"), 2),
        (schedules::product((64, 64)), 2),
    ];
    for (program, world) in all {
        let shape = |m| Shape::new(m, 136, 72);
        let (pipeline, series) = made(&program, world, &shape(300));
        let plans = [300, 7, 140].map(|m| series.plan(&shape(m)).expect("a plan"));
        let ranks = Communicator::emulated(world)?;
        let launches = plans.iter().collect();
        let run = gpus::run(&ranks, None, &pipeline, &series, launches, 3)?;
        for launch in 0..plans.len() {
            let compared = run.run.compare(launch)?.expect("a reference");
            assert!(compared.elements > 0, "{}", program.name);
        }
    }
    Ok(())
}

#[test]
fn streams_events_and_memory_behave_as_on_a_gpu() -> Result<(), Error> {
    let ranks = Communicator::emulated(2)?;
    Communicator::each(&ranks, |rank| {
        let gpu = rank.gpu();
        assert!(gpu.is_emulated() && gpu.cuda().is_err());
        let (one, other) = (gpu.stream()?, gpu.stream()?);
        let local = Local::of(&one, &[1u32, 2, 3])?;
        let written = Event::record(&one)?;
        other.wait(&written)?;
        written.wait()?;
        assert!(written.is_done()?);
        assert_eq!(local.read()?, [1, 2, 3]);
        local.fill(0xff)?;
        assert_eq!(local.read()?, [u32::MAX; 3]);
        rank.reserve(1 << 20)?;
        let buffer = rank.allocate::<u32>("x", [4])?;
        let peer = 1 - rank.rank();
        buffer.write_on(peer, &[rank.rank(); 4])?;
        rank.synchronize()?;
        rank.barrier()?;
        assert_eq!(buffer.read()?, [peer; 4]);
        rank.barrier()
    })?;
    Ok(())
}
