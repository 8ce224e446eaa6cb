//! Kernels are fused: one kernel a call and rank, in which tiles are finished while chunks that others wait for have
//! not arrived yet, by one GPU's own clock.

use crate::case::{self, Case, Fill};
use crate::fine;
use crate::gpus;
use crate::memory::{Heap, Memory, Words};
use crate::right::KINDS;
use counterflow::codegen::cuda::{Site, SiteKind};
use counterflow::codegen::kernel::Purpose;
use counterflow::codegen::program::CounterId;
use counterflow::codegen::trace::Recorded;
use counterflow::cuda::{Enqueued, enqueued};
use counterflow::jit::{Compiler, Probes};
use counterflow::launch::Loaded;
use counterflow::{Communicator, Program, Shape};
use std::time::Duration;

pub const TRACE: Probes = Probes {
    jitter: None,
    trace: true,
};

/// A wait that lasted so long looked at its counter several times in the half of it before it was met: nanoseconds.
const LATE: u64 = 20_000;

/// When each tile that a rank stored was complete in memory: at the latest when its signal was about to be sent.
fn tiles(events: &Recorded, sites: &[Site]) -> Vec<u64> {
    let mut tiles = Vec::new();
    for strand in &events.strands {
        let mut of_tiles = false;
        for mark in &strand.marks {
            match sites[mark.site as usize].kind {
                SiteKind::Tile { .. } => of_tiles = true,
                // What a comm role passes on is no tile.
                SiteKind::Move => of_tiles = false,
                SiteKind::Stored => tiles.push(mark.time),
                SiteKind::Signals if of_tiles => tiles.push(mark.time),
                SiteKind::Signals
                | SiteKind::Start
                | SiteKind::Waits
                | SiteKind::Met
                | SiteKind::MetEarlier
                | SiteKind::Loaded
                | SiteKind::Multiplied
                | SiteKind::Sent
                | SiteKind::End => {}
            }
        }
    }
    tiles
}

/// When a chunk that a peer sends was surely still missing: half of [`LATE`] before the wait for it was met.
fn last_missing(events: &Recorded, sites: &[Site], data: &[CounterId]) -> Option<u64> {
    let mut missing = None;
    for strand in &events.strands {
        assert_eq!(strand.lost, 0, "the shape has more events than are kept");
        for pair in strand.marks.windows(2) {
            let [from, met] = [0, 1].map(|at| &sites[pair[at].site as usize]);
            let counted = met.counter.is_some_and(|counter| data.contains(&counter));
            if (from.kind, met.kind) == (SiteKind::Waits, SiteKind::Met)
                && counted
                && pair[1].time - pair[0].time > LATE
            {
                missing = missing.max(Some(pair[1].time - LATE / 2));
            }
        }
    }
    missing
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
    let data: Vec<CounterId> = (kernel.counters.iter().enumerate())
        .filter(|(_, counter)| counter.purpose == Purpose::Data)
        .map(|(index, _)| CounterId(index as u16))
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
            let (events, sites) = (loaded.recorded(rank)?, loaded.sites());
            let tiles = tiles(&events, sites);
            if let Some(missing) = last_missing(&events, sites, &data) {
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
            "{} on rank {rank}: none of {tiles} tiles was finished before the last chunk arrived",
            kernel.name
        );
        println!(
            "  {:13} fused, rank {rank} of {}: one kernel; {before} of {tiles} tiles finished before the last chunk arrived, the first {} us before",
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
