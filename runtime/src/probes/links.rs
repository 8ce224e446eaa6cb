//! Links between GPUs: copies by CTAs and by copy engine, of all ranks at once, and signals.

use super::bench::Bench;
use crate::cuda::{CHUNK, Moves, Signals};
use crate::driver::{Local, copy, fill};
use crate::error::Error;
use crate::user_buffer::UserBuffer;
use counterflow_codegen::machine::Curve;
use std::collections::BTreeMap;

/// Bytes that are moved at most, and bytes of the heap for both ends and the cells.
const BYTES: u64 = 64 << 20;
pub(super) const HEAP: u64 = 2 * BYTES;
/// CTAs that move data.
const CTAS: [u32; 7] = [1, 2, 4, 8, 12, 16, 32];
/// KiB of a copy engine's copies.
const COPIES: [u64; 6] = [64, 256, 1024, 4096, 16384, 65536];
/// Signals of each side, and those that are not timed.
const ROUNDS: u64 = 2000;
const WARM: u64 = 200;

/// Ways to move bytes: to a peer, from a peer, added to a peer's.
const WAYS: [&str; 3] = ["push", "pull", "add"];

/// Both ends of what moves, on this rank and on the next.
pub(super) struct Ends {
    from: UserBuffer<u8>,
    to: UserBuffer<u8>,
    ticket: Local<u32>,
    peer: u32,
}

impl Ends {
    /// Allocates both. Collective.
    ///
    /// # Errors
    /// Too little memory.
    pub fn new(bench: &Bench<'_>) -> Result<Ends, Error> {
        let rank = bench.rank;
        let buffer = |name| {
            let buffer = rank.allocate::<u8>(name, [BYTES as usize])?;
            buffer.fill(0)?;
            Ok::<_, Error>(buffer)
        };
        let ends = Ends {
            from: buffer("probe.from")?,
            to: buffer("probe.to")?,
            ticket: Local::zeros(&bench.stream, 1)?,
            peer: (rank.rank() + 1) % rank.world(),
        };
        rank.synchronize()?;
        rank.barrier()?;
        Ok(ends)
    }

    /// Bytes a second by so many CTAs.
    fn rate(&self, bench: &Bench<'_>, way: &str, ctas: u32) -> Result<[f64; 2], Error> {
        let stream = bench.stream.cuda()?;
        // As long with a few CTAs as with many.
        let bytes = (u64::from(ctas) * (8 << 20)).min(BYTES);
        let (from, to) = match way {
            "pull" => (self.from.on(self.peer), self.to.address()),
            _ => (self.from.address(), self.to.on(self.peer)),
        };
        let moves = Moves {
            from,
            to,
            chunks: bytes / CHUNK,
            add: way == "add",
            ticket: self.ticket.address(),
        };
        bench.rank.barrier()?;
        let seconds = bench.seconds(
            || fill(&bench.stream, self.ticket.address(), 0, 4),
            |_| bench.probes.moves(stream, ctas, moves),
        )?;
        Ok([f64::from(ctas), bytes as f64 / seconds])
    }

    fn curves(&self, bench: &Bench<'_>) -> Result<BTreeMap<String, Curve>, Error> {
        let each = WAYS.map(|way| {
            let rates = CTAS.iter().map(|ctas| self.rate(bench, way, *ctas));
            Ok((way.to_owned(), rates.collect::<Result<_, Error>>()?))
        });
        each.into_iter().collect()
    }
}

/// Links between GPUs that do nothing else.
pub(super) fn idle(bench: &Bench<'_>, ends: &Ends) -> Result<BTreeMap<String, Curve>, Error> {
    let mut curves = ends.curves(bench)?;
    let copies = COPIES.map(|kib| {
        let bytes = kib << 10;
        let count = (BYTES / bytes).clamp(2, 32);
        bench.rank.barrier()?;
        let (from, to) = (ends.from.address(), ends.to.on(ends.peer));
        let copies = |_| (0..count).try_for_each(|_| copy(&bench.stream, to, from, bytes));
        let seconds = bench.seconds(|| Ok(()), copies)?;
        Ok::<_, Error>([bytes as f64, seconds / count as f64])
    });
    let copies: Curve = copies.into_iter().collect::<Result<_, _>>()?;
    curves.insert("copy".into(), copies);
    bench.rank.barrier()?;
    Ok(curves)
}

/// Seconds of a signal between two CTAs of one GPU, at 0 links.
pub(super) fn local_signal(bench: &Bench<'_>) -> Result<[f64; 2], Error> {
    let cells: Local<u64> = Local::zeros(&bench.stream, 64)?;
    let told: Local<u64> = Local::zeros(&bench.stream, 1)?;
    let signals = Signals {
        own: cells.address(),
        other: cells.address().plus(256),
        begins: true,
        rounds: ROUNDS,
        warm: WARM,
        told: told.address(),
    };
    bench.probes.signal(bench.stream.cuda()?, 2, signals)?;
    Ok([0.0, seconds_of(&told)?])
}

/// Seconds of a signal between two GPUs, at 1 link. Ranks beyond the second one wait, and tell what the first found.
pub(super) fn signal(bench: &Bench<'_>) -> Result<[f64; 2], Error> {
    let rank = bench.rank;
    let cells: UserBuffer<u64> = rank.allocate("probe.cells", [64])?;
    cells.fill(0)?;
    rank.synchronize()?;
    let told: Local<u64> = Local::zeros(&bench.stream, 1)?;
    bench.stream.synchronize()?;
    rank.barrier()?;
    let mut seconds = 0.0;
    if rank.rank() < 2 {
        let other = cells.on(1 - rank.rank());
        let signals = Signals {
            own: cells.address(),
            other,
            begins: rank.rank() == 0,
            rounds: ROUNDS,
            warm: WARM,
            told: told.address(),
        };
        bench.probes.signal(bench.stream.cuda()?, 1, signals)?;
        bench.stream.synchronize()?;
        if rank.rank() == 0 {
            seconds = seconds_of(&told)?;
        }
    }
    rank.barrier()?;
    Ok([1.0, seconds])
}

/// Seconds of one signal, by the nanoseconds of all.
fn seconds_of(told: &Local<u64>) -> Result<f64, Error> {
    match told.read()?.first() {
        Some(nanoseconds) if *nanoseconds > 0 => {
            let signals = 2 * (ROUNDS - WARM);
            Ok(*nanoseconds as f64 * 1e-9 / signals as f64)
        }
        Some(_) | None => Err(Error::Wrong {
            what: "a signal did not come within two seconds".into(),
            help: "probes need GPUs that nobody else uses: see nvidia-smi, then try again".into(),
        }),
    }
}
