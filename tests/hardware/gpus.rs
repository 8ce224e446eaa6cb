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

/// Worlds of which `COUNTERFLOW_TEST_WORLDS` has the numbers of ranks: `3,4`. Only those run, and only with a GPU for each rank.
const WORLDS: &str = "COUNTERFLOW_TEST_WORLDS";

/// True if a world on so many GPUs is to run here. Says what is left out.
pub fn runs(world: u32, gpus: u32) -> bool {
    let Some(wanted) = std::env::var(WORLDS).ok().filter(|text| !text.is_empty()) else {
        return true;
    };
    let runs = is_among(&wanted, world, gpus);
    let runs = runs.unwrap_or_else(|| panic!("{WORLDS}={wanted}: numbers of ranks, as in 3,4"));
    if !runs {
        println!("  left out by {WORLDS}={wanted}: ranks {world}, GPUs {gpus}");
    }
    runs
}

/// True if the list has the world, which has a GPU for each rank. None: it is no list of numbers of ranks.
fn is_among(wanted: &str, world: u32, gpus: u32) -> Option<bool> {
    let numbers = wanted.split(',').map(|number| number.trim().parse::<u32>());
    let numbers = numbers.collect::<Result<Vec<_>, _>>().ok()?;
    (!numbers.contains(&0)).then(|| numbers.contains(&world) && gpus >= world)
}

/// Ranks on a GPU each, or, where there are too few, some on the same; nothing without a GPU, nor of a world that is left out.
pub fn world(world: u32) -> Option<World> {
    let count = here()?;
    runs(world, count).then(|| World::on(world, count))
}

/// One rank whose results those of worlds are held to: it is never left out.
pub fn alone() -> Option<World> {
    here().map(|_| World::on(1, 1))
}

/// All ranks on one GPU; nothing without one, nor of a world that is left out.
pub fn loopback(world: u32) -> Option<World> {
    here()?;
    runs(world, 1).then(|| World::on(world, 1))
}

/// On one GPU, and then on all, if there are more.
pub fn both_ways(world: u32) -> impl Iterator<Item = World> {
    let count = here();
    let one = count.map(|_| 1);
    let all = count.filter(|count| *count > 1 && world > 1);
    let ways = one.into_iter().chain(all);
    let ways = ways.filter(move |gpus| runs(world, *gpus));
    ways.map(move |gpus| World::on(world, gpus))
}

/// Sometimes nothing, mostly up to so many microseconds: ranks must not come in step.
pub fn dawdle(numbers: &mut Numbers, microseconds: u64) {
    if microseconds > 0 && numbers.below(4) != 0 {
        std::thread::sleep(Duration::from_micros(numbers.below(microseconds)));
    }
}

#[test]
fn worlds_run_where_they_are_asked_for_and_each_rank_has_a_gpu() {
    let among = |world, gpus| is_among("3, 4", world, gpus);
    assert_eq!([3, 4].map(|world| among(world, 4)), [Some(true); 2]);
    // Another world, and ranks that share a GPU.
    let others = [(2, 4), (8, 4), (4, 3), (3, 1)];
    assert_eq!(
        others.map(|(world, gpus)| among(world, gpus)),
        [Some(false); 4]
    );
    for nonsense in ["", "3;4", "all", "0", "-1"] {
        assert_eq!(is_among(nonsense, 1, 1), None, "{nonsense}");
    }
}
