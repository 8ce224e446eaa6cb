//! Sequences of API calls on emulated ranks, by seed, against what they must compute: launches of several schedules and
//! sizes, memory that is dropped and replaced under them, threads, ranks that launch something else or end.
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
use crate::schedules::{Sender, gather, scatter};
use crate::undo::{self, Fix};
use counterflow_codegen::program::Program;
use plan::{Fault, Sequence, WORLD};
use rank::{Rank, Wrong};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What every sequence of a run uses.
struct Fuzz {
    programs: Vec<(Program, bool)>,
    proven: Arc<Proven>,
    undone: Option<Fix>,
    /// How long a rank waits for another.
    limit: Duration,
}

impl Fuzz {
    fn new(undone: Option<Fix>, limit: Duration) -> Fuzz {
        Fuzz {
            programs: vec![
                (gather(Sender::Ctas(4)), true),
                (scatter("scatter"), false),
                (scatter("scatter_too"), false),
            ],
            proven: Arc::default(),
            undone,
            limit,
        }
    }

    /// Emulated ranks, of which some machines go on in small steps.
    fn comms(&self, seed: u64) -> Vec<Communicator> {
        let piece = [1, 6, 40][seed as usize / 6 % 3];
        let machine = Machine::new(WORLD as usize, seed, piece);
        let gpus = (0..WORLD).map(|gpu| Gpu::of(&machine, gpu).into());
        let comms = Communicator::of(gpus.collect(), Some(8 << 20), self.limit);
        Communicator::proving_in(comms.expect("emulated ranks"), &self.proven)
    }

    /// What is wrong with the sequence of that seed: a wrong result before a time-out.
    fn wrong(&self, seed: u64) -> Option<Found> {
        let sequence = Sequence::of(seed, self.programs.len());
        let comms = self.comms(seed);
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = comms
                .into_iter()
                .map(|comm| scope.spawn(|| self.one(comm, &sequence)))
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.collect()
        });
        let (mut twice, mut found) = (Vec::new(), Vec::new());
        for (rank, result) in results.into_iter().enumerate() {
            let (late, told) = match result {
                Err(_) => (false, Some("it panicked".into())),
                Ok(Err(Wrong::Value(what))) => (false, Some(what)),
                Ok(Err(Wrong::Told(error))) => {
                    let late = matches!(error, Error::Stalled(_));
                    (late, unfair(&sequence, &error))
                }
                Ok(Ok(at)) => {
                    twice.push(at);
                    let differs = matches!(sequence.fault, Some((_, Fault::Rows | Fault::Op)));
                    let told = differs || (rank == 0 && sequence.fault.is_some());
                    (false, told.then(|| "it was not told of the fault".into()))
                }
            };
            found.extend(told.map(|told| Found {
                what: format!("rank {rank} of {sequence:?}: {told}"),
                late,
            }));
        }
        let apart = twice.iter().flatten().all(|[a, b]| a != b);
        let same = sequence.fault.is_some() || twice.windows(2).all(|ranks| ranks[0] == ranks[1]);
        found.extend((!apart || !same).then(|| Found {
            what: format!("{sequence:?}: threads got {twice:?}"),
            late: false,
        }));
        found.into_iter().min_by_key(|found| found.late)
    }

    fn one(&self, comm: Communicator, sequence: &Sequence) -> Result<Vec<[u64; 2]>, Wrong> {
        undo::undo(self.undone);
        let mut rank = Rank::new(&comm, &self.programs, sequence.calls.len())?;
        rank.run(sequence)?;
        Ok(rank.twice)
    }

    /// The first wrong sequence among so many that counts.
    fn find(&self, seeds: u64, counts: impl Fn(&Found) -> bool) -> Option<(u64, Found)> {
        let wrong = |seed| Some((seed, self.wrong(seed).filter(&counts)?));
        (0..seeds).find_map(wrong)
    }
}

/// What is wrong with a sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Found {
    what: String,
    /// Whether it is no more than that somebody waited too long.
    late: bool,
}

/// An error that a rank of this sequence must not get.
fn unfair(sequence: &Sequence, error: &Error) -> Option<String> {
    let fair = match sequence.fault {
        None => false,
        Some((_, Fault::Rows | Fault::Op)) => matches!(error, Error::Mismatch { .. }),
        Some((_, Fault::Ends | Fault::Aborts)) => matches!(error, Error::Aborted { .. }),
    };
    (!fair).then(|| error.to_string())
}

/// The sequences that a test run makes: as many as `COUNTERFLOW_SEQUENCES` says, or a part of what CI makes.
fn sequences() -> u64 {
    let said = std::env::var("COUNTERFLOW_SEQUENCES").ok();
    said.and_then(|text| text.parse().ok()).unwrap_or(1000)
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
    let comms = fuzz.comms(0);
    let over = std::sync::Barrier::new(2);
    let told = std::thread::scope(|scope| {
        let mut threads = comms.iter().map(|comm| {
            let (fuzz, over) = (&fuzz, &over);
            scope.spawn(move || {
                let mut rank = Rank::new(comm, &fuzz.programs, 1)?;
                let start = Instant::now();
                let told = match comm.rank() {
                    0 => {
                        rank.launch(0, plan::ROWS[0], None, 1)?;
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
        let fuzz = Fuzz::new(Some(fix), Duration::from_millis(500));
        let Some((seed, found)) = fuzz.find(1000, |found| !found.late) else {
            panic!("{fix:?} is switched off, and no result is wrong");
        };
        println!("{fix:?}: {}", found.what);
        let on = Fuzz::new(None, Duration::from_secs(30)).wrong(seed);
        assert_eq!(on, None, "{fix:?} is not what it found");
    }
}
