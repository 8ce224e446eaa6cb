//! Layers against an unsharded reference in f64: on emulated ranks, or with `REQUIRE_GPU=n` on n GPUs, which ranks share.

mod ahead;
mod cases;
mod comm_overlap;
mod defects;
mod enqueued;
mod fp8;
mod graph;
mod host;
mod layer_norm_linear;
mod memory;
mod model;
mod norm;
mod one;
mod peers;
mod place;
mod processes;
mod products;
mod reference;
mod refused;
mod reported;
mod right;
mod room;
mod settings;
mod side;
mod suites;
mod tape;
mod training;
mod vocabulary;
mod whole;
#[path = "../../../codegen/tests/fixtures/wide.rs"]
mod wide;

use counterflow::{Communicator, Error};
use counterflow_layers::overlap::Config;
use counterflow_layers::{Initialize, QuantizationMode, Userbuffers};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// GPUs that ranks are on. None: they are emulated.
fn gpus() -> Option<u32> {
    let gpus = std::env::var("REQUIRE_GPU").ok()?;
    gpus.parse().ok().filter(|gpus| *gpus > 0)
}

/// True if so many ranks are on GPUs.
fn are_on_gpus(world: u32) -> bool {
    gpus().is_some_and(|gpus| world <= gpus)
}

/// Held while something of this program runs on GPUs: kernels of two communicators on the same GPUs may wait for each other's SMs.
fn alone() -> MutexGuard<'static, ()> {
    static GPUS: Mutex<()> = Mutex::new(());
    GPUS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs it on that many ranks, a thread each: on a GPU each, or emulated. A rank that fails ends the
/// others' waits. In a job of so many processes it runs on this process's rank alone.
fn each<T: Send>(
    world: u32,
    run: impl Fn(&Arc<Communicator>) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    if let Some(job) = processes::job().filter(|job| job.world() == world) {
        return processes::on_own(job, run).map(|found| vec![found]);
    }
    let on_gpus = are_on_gpus(world) && processes::job().is_none();
    let _alone = on_gpus.then(alone);
    let ranks = match gpus() {
        Some(_) if on_gpus => {
            let each: Vec<u32> = (0..world).collect();
            Communicator::on(&each, None)?
        }
        _ => Communicator::emulated(world)?,
    };
    let ranks: Vec<_> = ranks.into_iter().map(Arc::new).collect();
    let run = |rank: &Arc<Communicator>| run(rank).inspect_err(|error| rank.abort(error));
    std::thread::scope(|scope| {
        let run = &run;
        let spawn = |rank| scope.spawn(move || run(rank));
        let threads: Vec<_> = ranks.iter().map(spawn).collect();
        let ended = threads.into_iter();
        ended
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    })
}

/// Buffers for so many rows and columns, with a heap that has room for some layers.
fn userbuffers(
    rank: &Arc<Communicator>,
    shape: [usize; 2],
    config: &str,
) -> Result<Userbuffers, Error> {
    userbuffers_of(rank, shape, config, vec![QuantizationMode::None])
}

/// The same, of these modes.
fn userbuffers_of(
    rank: &Arc<Communicator>,
    shape: [usize; 2],
    config: &str,
    modes: Vec<QuantizationMode>,
) -> Result<Userbuffers, Error> {
    let arguments = Initialize {
        ub_cfgs: vec![Config::from_yaml(config)?],
        quantization_modes: modes,
        ..Initialize::new(shape, rank.world())
    };
    rank.reserve(arguments.heap_bytes() + (32 << 20))?;
    Userbuffers::initialize(rank, &arguments)
}
