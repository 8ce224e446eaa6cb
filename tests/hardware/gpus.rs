//! Which GPUs there are, and whether they must be; a world of ranks at a time; ranks that come late.

use crate::{fine, nvidia};
use counterflow::Communicator;
use counterflow::codegen::interp::Numbers;
use counterflow::cuda::Gpu;
use std::sync::{Mutex, MutexGuard, PoisonError};
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
    let opened = Gpu::count().and_then(|count| Gpu::open(0)?.must_be_hopper().map(|()| count));
    match opened {
        Ok(count) if count >= wanted => Some(count),
        Ok(count) => panic!("{count} GPUs, but REQUIRE_GPU={wanted}"),
        Err(error) if wanted > 0 => panic!("{error}, but REQUIRE_GPU={wanted}"),
        Err(error) => {
            nvidia::skipped(&error.to_string());
            None
        }
    }
}

/// The ranks of a world. While it is there no other test has one: kernels of two tests, each waiting for its own peers,
/// could fill the GPUs between them and wait for ever, and what allocates may wait for all kernels.
pub struct World {
    pub ranks: Vec<Communicator>,
    /// How many of them share a GPU.
    pub sharing: u32,
    _turn: MutexGuard<'static, ()>,
}

impl World {
    fn on(world: u32, sharing: u32) -> World {
        static TURN: Mutex<()> = Mutex::new(());
        // A test that failed does not stop the others.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let made = if sharing == 1 {
            Communicator::local(world)
        } else {
            Communicator::loopback(world)
        };
        World {
            ranks: fine(made),
            sharing,
            _turn: turn,
        }
    }

    /// For the table.
    pub fn told(&self) -> String {
        let ranks = self.ranks.len() as u32;
        let gpus = ranks / self.sharing;
        let s = if gpus == 1 { "" } else { "s" };
        format!("world {ranks} on {gpus} GPU{s}")
    }
}

/// Ranks on a GPU each, or, where there are too few, all on one; nothing without a GPU.
pub fn world(world: u32) -> Option<World> {
    let count = here()?;
    Some(World::on(world, if count >= world { 1 } else { world }))
}

/// All ranks on one GPU; nothing without one.
pub fn loopback(world: u32) -> Option<World> {
    here().map(|_| World::on(world, world))
}

/// Both ways that there are, one after the other.
pub fn both_ways(world: u32) -> impl Iterator<Item = World> {
    let count = here();
    let apart = count.is_some_and(|count| world > 1 && count >= world);
    let ways = [(count.is_some(), world), (apart, 1)];
    let ways = ways.into_iter().filter(|(can, _)| *can);
    ways.map(move |(_, sharing)| World::on(world, sharing))
}

/// Sometimes nothing, mostly up to so many microseconds: ranks must not come in step.
pub fn dawdle(numbers: &mut Numbers, microseconds: u64) {
    if microseconds > 0 && numbers.below(4) != 0 {
        std::thread::sleep(Duration::from_micros(numbers.below(microseconds)));
    }
}
