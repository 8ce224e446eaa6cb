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
use crate::undo::{self, Fix};
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, me, others, ranks, world};
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::program::Program;
use plan::{Fault, Sequence, WORLD};
use rank::{Rank, Wrong};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn gather(ctas: u32) -> Program {
    let mut s = ScheduleBuilder::new("gather");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let pieces = s.pieces("pieces", x, 256);
    let tiles = s.tiles("tiles", y, (128, 128));
    let arrived = s.counters("arrived", [pieces.into()]);
    s.comm(ctas, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("p", pieces.of(me()), |s, p| {
                s.copy(x.on(&peer).at(p), x.at(p));
                s.signal(arrived.on(&peer).at(p), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("chunk", ranks().from_me(), |s, chunk| {
            s.for_items("t", tiles.of(&chunk), |s, t| {
                s.wait(arrived.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    s.finish()
}

/// Two schedules of this kind share scratch.
fn scatter(name: &str) -> Program {
    let mut s = ScheduleBuilder::new(name);
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.scattered("y", Bf16);
    let tiles = s.tiles("tiles", y, (128, 128));
    let partial = s.symmetric("partial", Bf16, y, world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let acc = s.dot(x.at(t), w.at(t));
                s.store(partial.on(&owner).at(me()).at(t), acc);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let mine = s.dot(x.at(t), w.at(t));
            s.wait(landed.at(others()).at(t));
            let theirs = s.sum(partial.at(others()).at(t));
            s.store(y.at(t), mine + theirs);
        });
    });
    s.finish()
}

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
                (gather(4), true),
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

    /// What is wrong with the sequence of that seed, if anything is.
    fn wrong(&self, seed: u64) -> Option<String> {
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
        let mut twice = Vec::new();
        for (rank, result) in results.into_iter().enumerate() {
            let told = match result {
                Err(_) => Some("it panicked".into()),
                Ok(Err(Wrong::Value(what))) => Some(what),
                Ok(Err(Wrong::Told(error))) => unfair(&sequence, &error),
                Ok(Ok(at)) => {
                    twice.push(at);
                    let differs = matches!(sequence.fault, Some((_, Fault::Rows | Fault::Op)));
                    let told = differs || (rank == 0 && sequence.fault.is_some());
                    told.then(|| "it was not told of the fault".into())
                }
            };
            if let Some(told) = told {
                return Some(format!("rank {rank} of {sequence:?}: {told}"));
            }
        }
        let apart = twice.iter().flatten().all(|[a, b]| a != b);
        let same = sequence.fault.is_some() || twice.windows(2).all(|ranks| ranks[0] == ranks[1]);
        (!apart || !same).then(|| format!("{sequence:?}: threads got {twice:?}"))
    }

    fn one(&self, comm: Communicator, sequence: &Sequence) -> Result<Vec<[u64; 2]>, Wrong> {
        undo::undo(self.undone);
        let mut rank = Rank::new(&comm, &self.programs, sequence.calls.len())?;
        rank.run(sequence)?;
        Ok(rank.twice)
    }

    /// The first wrong sequence among so many.
    fn find(&self, seeds: u64) -> Option<(u64, String)> {
        (0..seeds).find_map(|seed| Some((seed, self.wrong(seed)?)))
    }
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
    if let Some((_, wrong)) = fuzz.find(count) {
        panic!("{wrong}");
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

/// Each fix closes something that the fuzz finds without it.
#[test]
fn the_fuzz_finds_what_each_fix_closed() {
    for fix in [Fix::Ledger, Fix::Credits, Fix::Drops, Fix::Seats] {
        let fuzz = Fuzz::new(Some(fix), Duration::from_millis(500));
        let Some((seed, found)) = fuzz.find(1000) else {
            panic!("{fix:?} is switched off, and nothing is wrong");
        };
        println!("{fix:?}: {found}");
        let on = Fuzz::new(None, Duration::from_secs(30)).wrong(seed);
        assert_eq!(on, None, "{fix:?} is not what it found");
    }
}
