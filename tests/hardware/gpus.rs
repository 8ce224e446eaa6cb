//! Which GPUs there are, and whether they must be; a world of ranks at a time; ranks that come late.

use crate::{fine, nvidia};
use counterflow::codegen::interp::Numbers;
use counterflow::cuda::Gpu;
use counterflow::{Communicator, Error};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// GPUs here. None is told and skips the test, or fails it where `REQUIRE_GPU` asks for more.
pub fn here() -> Option<u32> {
    let wanted = std::env::var("REQUIRE_GPU").unwrap_or_default();
    let wanted: u32 = if wanted.is_empty() {
        0
    } else {
        wanted
            .parse()
            .unwrap_or_else(|_| panic!("REQUIRE_GPU={wanted}: how many GPUs must there be?"))
    };
    // They stay open: a GPU's context goes with its last user, and a new one takes a good part of a second.
    static OPEN: OnceLock<Result<Vec<Gpu>, String>> = OnceLock::new();
    let open = || {
        let count = Gpu::count()?;
        let gpus = (0..count).map(Gpu::open).collect::<Result<Vec<_>, _>>()?;
        gpus.iter().try_for_each(Gpu::must_be_hopper)?;
        Ok(gpus)
    };
    match OPEN.get_or_init(|| open().map_err(|error: Error| error.to_string())) {
        Ok(gpus) if gpus.len() >= wanted as usize => Some(gpus.len() as u32),
        Ok(gpus) => panic!("{} GPUs, but REQUIRE_GPU={wanted}", gpus.len()),
        Err(error) if wanted > 0 => panic!("{error}, but REQUIRE_GPU={wanted}"),
        Err(error) => {
            nvidia::skipped(error);
            None
        }
    }
}

/// The ranks of a world. While it is there no other test has one: kernels of two tests, each waiting for its own peers,
/// could fill the GPUs between them and wait for ever, and what allocates may wait for all kernels.
pub struct World {
    pub ranks: Vec<Communicator>,
    gpus: u32,
    /// How many of them share a GPU, at most.
    pub sharing: u32,
    _turn: MutexGuard<'static, ()>,
}

impl World {
    /// Its ranks on so many GPUs, round robin.
    fn on(world: u32, gpus: u32) -> World {
        let turn = turn();
        let of_rank: Vec<u32> = (0..world).map(|rank| rank % gpus).collect();
        World {
            ranks: fine(Communicator::on(&of_rank, None)),
            gpus: gpus.min(world),
            sharing: world.div_ceil(gpus),
            _turn: turn,
        }
    }

    /// For the table.
    pub fn told(&self) -> String {
        let s = if self.gpus == 1 { "" } else { "s" };
        format!("world {} on {} GPU{s}", self.ranks.len(), self.gpus)
    }
}

/// What keeps worlds of other tests away.
static TURN: Mutex<()> = Mutex::new(());

/// The GPUs without a world: for a test whose worlds are in processes of their own.
pub fn turn() -> MutexGuard<'static, ()> {
    // A test that failed does not stop the others.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ranks on a GPU each, or, where there are too few, some on the same; nothing without a GPU.
pub fn world(world: u32) -> Option<World> {
    here().map(|count| World::on(world, count))
}

/// All ranks on one GPU; nothing without one.
pub fn loopback(world: u32) -> Option<World> {
    here().map(|_| World::on(world, 1))
}

/// On one GPU, and then on all, if there are more.
pub fn both_ways(world: u32) -> impl Iterator<Item = World> {
    let count = here();
    let one = count.map(|_| 1);
    let all = count.filter(|count| *count > 1 && world > 1);
    let ways = one.into_iter().chain(all);
    ways.map(move |gpus| World::on(world, gpus))
}

/// Sometimes nothing, mostly up to so many microseconds: ranks must not come in step.
pub fn dawdle(numbers: &mut Numbers, microseconds: u64) {
    if microseconds > 0 && numbers.below(4) != 0 {
        std::thread::sleep(Duration::from_micros(numbers.below(microseconds)));
    }
}
