//! Kernels are fused: one kernel a call and rank, in which tiles are finished while pieces that others wait for have
//! not arrived yet, by one GPU's own clock.

use crate::case::{self, Case, Fill};
use crate::fine;
use crate::gpus;
use crate::memory::{Heap, Memory, Words};
use crate::right::KINDS;
use counterflow::codegen::cuda;
use counterflow::codegen::kernel::Purpose;
use counterflow::cuda::{Enqueued, Seen, Sighting, enqueued};
use counterflow::jit::{Compiler, Probes};
use counterflow::launch::Loaded;
use counterflow::{Communicator, Program, Shape};
use std::collections::BTreeMap;
use std::time::Duration;

pub const TRACE: Probes = Probes {
    jitter: None,
    trace: true,
};

/// Columns of an output subtile and of a tile.
const SUBTILE: u32 = 64;
const TILE: u32 = 256;

/// When each tile that a rank stored was complete in memory.
fn tiles(events: &[Sighting]) -> Vec<u64> {
    // A wait that follows a store completes it.
    let mut threads: BTreeMap<(u32, u32), Vec<&Sighting>> = BTreeMap::new();
    for event in events {
        threads
            .entry((event.block, event.thread))
            .or_default()
            .push(event);
    }
    let mut subtiles: BTreeMap<[u32; 5], Vec<u64>> = BTreeMap::new();
    for events in threads.values() {
        let mut open = Vec::new();
        for event in events {
            match event.what {
                Seen::Store {
                    map,
                    column,
                    row,
                    chunk,
                    rank,
                } => {
                    open.push([map, rank, chunk, row, column / TILE]);
                }
                // What a comm role passes on is no tile.
                Seen::Sent => open.clear(),
                Seen::Stored => {
                    for tile in open.drain(..) {
                        subtiles.entry(tile).or_default().push(event.time);
                    }
                }
                Seen::Late { .. } => {}
            }
        }
    }
    let whole = subtiles
        .values()
        .filter(|times| times.len() as u32 == TILE / SUBTILE);
    whole
        .filter_map(|times| times.iter().copied().max())
        .collect()
}

/// When a piece that a peer sends was last seen missing.
fn last_missing(events: &[Sighting], data: &[u32]) -> Option<u64> {
    let late = events
        .iter()
        .filter(|event| matches!(event.what, Seen::Late { what, .. } if data.contains(&what)));
    late.map(|event| event.time).max()
}

fn is_fused(schedule: fn() -> Program) {
    let Some(count) = gpus::here() else { return };
    let ranks = count.clamp(2, 4);
    let Some(world) = gpus::world(ranks) else {
        return;
    };
    let compiler = fine(Compiler::find()).with_probes(TRACE);
    let shape = [Shape::new(256 * ranks, 512, 1024)];
    let program = schedule();
    let variant = case::variant_of(&program, ranks, KINDS[0]);
    let case = Case::new(&program, &variant, &shape, world.sharing);
    let (kernel, plan) = (&case.kernel, &case.plans[0]);
    let barriers = cuda::emit(&case.pipeline).waits.len() - kernel.counters.len();
    let data: Vec<u32> = (kernel.counters.iter().enumerate())
        .filter(|(_, counter)| counter.purpose == Purpose::Data)
        .map(|(index, _)| (barriers + index) as u32)
        .collect();
    let seen = Communicator::each(&world.ranks, |rank| {
        let heap = Heap::new(rank, kernel, &[plan])?;
        let loaded = Loaded::load(rank, &compiler, &case.pipeline, &case.series)?;
        let words = Words::new(kernel, plan, rank.rank(), 0, Fill::Uniform(5));
        let memory = Memory::new(rank, &heap, &words)?;
        let tensors = memory.tensors();
        let mut best: Option<(usize, usize, u64)> = None;
        // Each rank is late once: the others must have finished tiles before anything of it arrives.
        for late in 0..rank.world() {
            memory.before()?;
            rank.synchronize()?;
            rank.barrier()?;
            if rank.rank() == late {
                std::thread::sleep(Duration::from_millis(1));
            }
            loaded.launch(rank, plan, &tensors)?;
            rank.synchronize()?;
            let events = loaded
                .function()
                .expect("machine code")
                .trace(rank.stream().cuda()?)?;
            let tiles = tiles(&events);
            if let Some(missing) = last_missing(&events, &data) {
                let before = tiles.iter().filter(|time| **time < missing).count();
                let first = tiles
                    .iter()
                    .min()
                    .map_or(0, |first| missing.saturating_sub(*first));
                best = best.max(Some((before, tiles.len(), first)));
            }
        }
        let call = enqueued(rank.stream().cuda()?, || {
            loaded.launch(rank, plan, &tensors)
        })?;
        rank.barrier()?;
        Ok((call, best))
    });
    for (rank, (call, best)) in fine(seen).into_iter().enumerate() {
        let one = Enqueued {
            kernels: 1,
            others: 0,
        };
        assert_eq!(call, one, "{} on rank {rank}", kernel.name);
        let (before, tiles, first) = best.unwrap_or_default();
        assert!(
            before > 0,
            "{} on rank {rank}: none of {tiles} tiles was finished before the last piece arrived",
            kernel.name
        );
        println!(
            "  {:13} fused, rank {rank} of {}: one kernel; {before} of {tiles} tiles finished before the last piece arrived, the first {} us before",
            kernel.name,
            world.told(),
            first / 1000
        );
    }
}

mod schedules {
    use super::is_fused;

    // The plain product waits for nobody.
    crate::each_schedule!(is_fused: ag_gemm, ag_gemm_ring, ag_gemm_double_ring, gemm_rs, gemm_rs_add, gemm_ar, bulk);
}
