//! Sequences of API calls on emulated ranks, by seed, against what they must compute: launches of several schedules and
//! sizes, graphs between them, ours and those that the program captures in a stream of its own, memory and kernels that are
//! dropped and replaced under them, several threads of a rank, two communicators on the same GPUs, groups that are lent
//! memory, copies by copy engine, refusals, ranks that launch something else, panic or end.
//!
//! A sequence is right if every value is right, threads get memory of their own, and a rank that does something else is
//! found out: all ranks are told. `undo` switches a fix off, and the fuzz must then find a wrong sequence.

mod plan;
mod rank;
mod turns;

use crate::communicator::Communicator;
use crate::emulated::{Gpu, Machine};
use crate::error::Error;
use crate::proof::Proven;
use crate::schedules::{Sender, gather, product, scatter};
use crate::undo::{self, Fix};
use counterflow_codegen::program::Program;
use plan::{Fault, Sequence, WORLD, Way};
use rank::{Kind, Rank, Wrong};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// State that every sequence of a run uses.
struct Fuzz {
    /// Programs whose ranks wait for each other.
    programs: Vec<(Program, Kind)>,
    alone: Program,
    proven: Arc<Proven>,
    undone: Option<Fix>,
    /// Time that a rank waits for another.
    limit: Duration,
}

impl Fuzz {
    fn new(undone: Option<Fix>, limit: Duration) -> Fuzz {
        Fuzz {
            programs: vec![
                // Two of these do not fit on a GPU together.
                (gather(Sender::Ctas(70)), Kind::Gathers),
                (scatter("scatter"), Kind::Scatters),
                (scatter("scatter_too"), Kind::Scatters),
                (gather(Sender::CopyEngine), Kind::Gathers),
            ],
            alone: product((64, 64)),
            proven: Arc::default(),
            undone,
            limit,
        }
    }

    /// So many communicators on one emulated machine. Some machines go on in small steps.
    fn comms(&self, seed: u64, count: usize) -> Vec<Vec<Communicator>> {
        let piece = [1, 6, 40][seed as usize / 6 % 3];
        let machine = Machine::new(WORLD as usize, seed, piece);
        let one = || {
            let gpus = (0..WORLD).map(|gpu| Gpu::of(&machine, gpu).into());
            let ranks = Communicator::of(gpus.collect(), Some(8 << 20), self.limit);
            Communicator::proving_in(ranks.expect("emulated ranks"), &self.proven)
        };
        (0..count).map(|_| one()).collect()
    }

    /// Finding of the sequence of that seed: a wrong result before an error that came of it, or a time-out.
    fn wrong(&self, seed: u64) -> Option<Found> {
        let sequence = Sequence::of(seed, self.programs.len());
        let mut comms: Vec<_> = self.comms(seed, sequence.comms);
        let comms = comms.iter_mut().map(|ranks| ranks.drain(..));
        let mut comms: Vec<_> = comms.collect();
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..WORLD)
                .map(|_| comms.iter_mut().filter_map(Iterator::next).collect())
                .map(|comms: Vec<_>| scope.spawn(|| self.one(comms, &sequence)))
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.collect()
        });
        let (mut twice, mut found) = (Vec::new(), Vec::new());
        for (rank, result) in results.into_iter().enumerate() {
            let (how, told) = match result {
                Err(_) => {
                    let meant = matches!(sequence.fault, Some((_, Fault::Panics))) && rank == 1;
                    (How::Wrong, (!meant).then(|| "it panicked".into()))
                }
                Ok(Err(Wrong::Value(what))) => (How::Wrong, Some(what)),
                Ok(Err(Wrong::Told(error))) => {
                    let how = match error {
                        Error::Stalled(_) => How::Late,
                        _ => How::Refused,
                    };
                    (how, unfair(&sequence, &error))
                }
                Ok(Ok(at)) => {
                    twice.push(at);
                    let differs = matches!(
                        sequence.fault,
                        Some((_, Fault::Rows | Fault::Op | Fault::Overlap))
                    );
                    let told = differs || (rank == 0 && sequence.fault.is_some());
                    let told = told.then(|| "it was not told of the fault".into());
                    (How::Wrong, told)
                }
            };
            found.extend(told.map(|told| Found {
                what: format!("rank {rank} of {sequence:?}: {told}"),
                how,
            }));
        }
        let apart = twice.iter().flatten().all(|[a, b]| a != b);
        let same = sequence.fault.is_some() || twice.windows(2).all(|ranks| ranks[0] == ranks[1]);
        found.extend((!apart || !same).then(|| Found {
            what: format!("{sequence:?}: threads got {twice:?}"),
            how: How::Wrong,
        }));
        found.into_iter().min_by_key(|found| found.how)
    }

    /// One rank's part, on its communicators.
    fn one(&self, comms: Vec<Communicator>, sequence: &Sequence) -> Result<Vec<[u64; 2]>, Wrong> {
        undo::undo(self.undone);
        let ready = comms.iter().enumerate().map(|(at, comm)| {
            let used = sequence.used(at, self.programs.len());
            let launches = sequence.calls.len();
            let programs = (&self.programs[..], &self.alone);
            Rank::new(comm, programs, &used, launches, sequence.way)
        });
        let mut ranks = ready.collect::<Result<Vec<_>, Error>>()?;
        let ours = |ranks: Vec<Rank<'_>>| ranks.into_iter().flat_map(|rank| rank.twice).collect();
        for (at, (on, call)) in sequence.calls.iter().enumerate() {
            let fault = sequence.fault.filter(|(fault, _)| *fault == at);
            let fault = fault
                .map(|(_, fault)| fault)
                .filter(|_| comms[0].rank() == 1);
            let input = sequence.seed ^ (at as u64 + 1) << 52;
            if !ranks[*on].call(*call, fault, input)? {
                return Ok(ours(ranks));
            }
        }
        ranks.iter_mut().try_for_each(Rank::end)?;
        Ok(ours(ranks))
    }

    /// The first wrong sequence that somebody finds among so many, of those that count.
    fn find(&self, seeds: u64, counts: impl Fn(&Found) -> bool + Sync) -> Option<(u64, Found)> {
        let (next, found) = (AtomicU64::new(0), Mutex::new(None));
        let work = || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds {
                    return;
                }
                if let Some(wrong) = self.wrong(seed).filter(&counts) {
                    next.store(seeds, Ordering::Relaxed);
                    *found.lock().expect("no panic") = Some((seed, wrong));
                }
            }
        };
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
        found.into_inner().expect("no panic")
    }
}

/// Finding of a sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Found {
    what: String,
    how: How,
}

/// Severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum How {
    /// A value, an allocation, or a success is wrong.
    Wrong,
    /// A rank got an error that it must not get.
    Refused,
    /// Somebody waited too long.
    Late,
}

/// An error that a rank of this sequence must not get.
fn unfair(sequence: &Sequence, error: &Error) -> Option<String> {
    let fair = match sequence.fault {
        None => false,
        // Who is told on one communicator leaves the other.
        Some((_, Fault::Rows | Fault::Op)) => match error {
            Error::Mismatch { .. } => true,
            error => sequence.comms > 1 && matches!(error, Error::Aborted { .. }),
        },
        Some((_, Fault::Overlap)) => matches!(error, Error::Usage { .. } | Error::Aborted { .. }),
        Some((_, Fault::Ends | Fault::Panics | Fault::Aborts)) => {
            matches!(error, Error::Aborted { .. })
        }
    };
    (!fair).then(|| error.to_string())
}

/// The sequences that a test run makes: as many as `COUNTERFLOW_SEQUENCES` says, or a part of what `.ci/run` makes, which
/// sets `WIDE`.
fn sequences() -> u64 {
    let said = std::env::var("COUNTERFLOW_SEQUENCES").ok();
    let otherwise = if crate::wide::wide() { 10_000 } else { 200 };
    said.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn no_sequence_of_safe_calls_is_wrong() {
    let fuzz = Fuzz::new(None, Duration::from_secs(30));
    let (start, count) = (Instant::now(), sequences());
    if let Some((_, wrong)) = fuzz.find(count, |_| true) {
        panic!("{}", wrong.what);
    }
    println!("{count} sequences in {:.1?}", start.elapsed());
}

/// A wait for a launch that never comes ends after the limit, with who waits for what, and the GPU can be used again.
#[test]
fn a_rank_whose_peer_never_launches_is_told_for_what_it_waits() {
    let limit = Duration::from_millis(300);
    let fuzz = Fuzz::new(None, limit);
    let comms = fuzz.comms(0, 1).remove(0);
    let over = std::sync::Barrier::new(2);
    let told = std::thread::scope(|scope| {
        let mut threads = comms.iter().map(|comm| {
            let (fuzz, over) = (&fuzz, &over);
            scope.spawn(move || {
                let used = [true, false, false, false];
                let programs = (&fuzz.programs[..], &fuzz.alone);
                let mut rank = Rank::new(comm, programs, &used, 1, Way::default())?;
                let start = Instant::now();
                let told = match comm.rank() {
                    0 => {
                        rank.launch(0, plan::MOST, None, false, 1)?;
                        let told = comm.synchronize().map_err(|error| error.to_string());
                        assert!(start.elapsed() < limit * 8, "{told:?}");
                        told
                    }
                    _ => Ok(()),
                };
                over.wait();
                Ok::<_, Wrong>(told)
            })
        });
        let (first, second) = (threads.next().expect("two"), threads.next().expect("two"));
        let told = first.join().expect("no panic");
        assert!(second.join().is_ok());
        told
    });
    let told = told.unwrap_or_else(|_| panic!("a launch waits for nobody"));
    let told = told.expect_err("nobody comes");
    assert!(told.starts_with("rank 0 waited too long: "), "{told}");
    // The role that moves data and the one that multiplies both wait: whoever began first is told.
    let waits = [
        "comm of CTA 0 in gather saw 0 of 1 on ready_x[1]",
        "gemm of CTA 0 in gather saw 0 of 1 on arrived[1]",
    ];
    assert!(waits.iter().any(|wait| told.contains(wait)), "{told}");
}

/// Each fix closes something that the fuzz finds without it: a wrong result, and not only a wait that is too long.
#[test]
fn the_fuzz_finds_what_each_fix_closed() {
    for fix in [Fix::Ledger, Fix::Credits, Fix::Drops, Fix::Seats] {
        let fuzz = Fuzz::new(Some(fix), Duration::from_millis(200));
        let Some((seed, found)) = fuzz.find(1000, |found| found.how == How::Wrong) else {
            panic!("{fix:?} is switched off, and no result is wrong");
        };
        println!("{fix:?}: {}", found.what);
        let on = Fuzz::new(None, Duration::from_secs(30)).wrong(seed);
        assert_eq!(on, None, "{fix:?} is not what it found");
    }
}
