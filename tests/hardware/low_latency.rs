//! Exchanges of low latency on GPUs: the bits of the schedules whose place they take, in launches and replays of any number of rows.

use crate::capture::{MODES, captured, replay, stream};
use crate::few_rows::{ALL, Case, Exchange, Half, rows_of, run};
use crate::fine;
use crate::gpus::both_ways;
use crate::right::JITTER;
use counterflow::family::Collective;
use counterflow::jit::{Compiler, Probes};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Dtype, Error, launch};
use std::time::{Duration, Instant};

/// Compiles what these tests launch.
pub fn compile(compiler: &Compiler) -> Result<(), Error> {
    for probes in [Probes::default(), JITTER] {
        let compiler = compiler.clone().with_probes(probes);
        for world in 1..=4 {
            for collective in ALL {
                for dtype in [Dtype::Bf16, Dtype::F16] {
                    launch::compile_exchange(&compiler, collective, world, dtype)?;
                }
            }
        }
    }
    Ok(())
}

/// Fewer than ranks, shards that differ, and all; threads of several CTAs, and several pieces of a thread.
fn same_bits<E: Half>(world: u32) {
    const MOST: usize = 100;
    let rows = [MOST, 1, 2, 3, 5, 17, MOST - 1, 0, 64, 7, MOST];
    for on_gpus in both_ways(world) {
        let late = fine(Compiler::find()).with_probes(JITTER);
        for (seed, columns) in [8, 72, 2056, 8192].into_iter().enumerate() {
            for collective in ALL {
                let case = Case {
                    collective,
                    most: MOST,
                    columns,
                    seed: seed as u64,
                };
                let all = [None, Some(&late)];
                let few = all
                    .map(|compiler| fine(run::<E>(&on_gpus.ranks, case, true, (&rows, compiler))));
                let bulk = fine(run::<E>(&on_gpus.ranks, case, false, (&rows, None)));
                let told = on_gpus.told();
                assert!(few.iter().all(|few| *few == bulk), "{case:?}, {told}");
            }
        }
        println!("  {} of {}: {}", ALL.len(), E::DTYPE.name(), on_gpus.told());
    }
}

#[test]
fn an_exchange_has_the_bits_of_the_schedule_on_one_rank() {
    same_bits::<bf16>(1);
}

#[test]
fn an_exchange_has_the_bits_of_the_schedule_on_two_ranks() {
    same_bits::<bf16>(2);
    same_bits::<half::f16>(2);
}

#[test]
fn an_exchange_has_the_bits_of_the_schedule_on_three_ranks() {
    same_bits::<bf16>(3);
    same_bits::<half::f16>(3);
}

#[test]
fn an_exchange_has_the_bits_of_the_schedule_on_four_ranks() {
    same_bits::<bf16>(4);
    same_bits::<half::f16>(4);
}

#[test]
fn a_row_has_the_same_bits_in_exchanges_of_any_number_of_rows() {
    const MOST: usize = 256;
    let counts = [MOST, 1, 2, 3, 5, 8, 13, 16, 31, 64, 100, 128, 200, 255];
    for on_gpus in both_ways(2).chain(both_ways(4)) {
        for collective in ALL {
            let case = Case {
                collective,
                most: MOST,
                columns: 1032,
                seed: 11,
            };
            let all = fine(rows_of::<bf16>(&on_gpus.ranks, case, &counts));
            for (launch, rows) in all.iter().zip(counts) {
                assert!(launch[..] == all[0][..rows], "{case:?} of {rows} rows");
            }
        }
    }
}

/// Ten thousand replays between launches of other rows, each launch with tensors of its own, which are looked at after some rounds.
#[test]
fn ten_thousand_replays_of_captured_exchanges_between_launches_of_other_rows() {
    const ROUNDS: usize = 3400;
    const SETS: [usize; 3] = [6, 40, 1];
    /// Rounds between two looks.
    const BLOCK: usize = 20;
    for on_gpus in both_ways(2).chain(both_ways(4)) {
        for collective in ALL {
            let start = Instant::now();
            let case = Case {
                collective,
                most: 40,
                columns: 1032,
                seed: 5,
            };
            fine(Communicator::each(&on_gpus.ranks, |rank| {
                let mut of = Exchange::<bf16>::new(rank, case, true, (5, None))?;
                let stream = stream(rank)?;
                rank.synchronize()?;
                rank.barrier()?;
                let mut graphs = Vec::new();
                for ((set, rows), mode) in SETS.into_iter().enumerate().zip(MODES) {
                    let record = || of.launch(&stream, set, rows);
                    graphs.push(captured(&stream, mode, record)?);
                    rank.synchronize()?;
                }
                let mut others = [1, 1];
                for round in 0..ROUNDS {
                    if round % BLOCK == 0 {
                        // Numbers that no launch before had, so that a word of an old one shows.
                        others = [1 + round / BLOCK * 7 % 40, 1 + round / BLOCK % 5];
                        let rows = SETS.into_iter().chain(others);
                        for (set, rows) in rows.enumerate() {
                            of.fill(rank, set, (round / BLOCK * 5 + set, rows))?;
                        }
                        rank.synchronize()?;
                        rank.barrier()?;
                    }
                    // Ranks that are threads may not be many replays apart: the replays of all-reduces with a norm say why.
                    if round % 5 == 0 {
                        rank.barrier()?;
                    }
                    replay(&graphs[round % 3]);
                    of.launch(&stream, 3, others[0])?;
                    replay(&graphs[2]);
                    of.launch(rank, 4, others[1])?;
                    replay(&graphs[0]);
                    if round % BLOCK == BLOCK - 1 {
                        let rows = SETS.into_iter().chain(others);
                        for (set, rows) in rows.enumerate() {
                            of.after(rank, set, (round / BLOCK * 5 + set, rows))?;
                        }
                        rank.barrier()?;
                    }
                }
                rank.synchronize()?;
                rank.barrier()
            }));
            let took = start.elapsed().as_secs_f64();
            let replays = 3 * ROUNDS;
            println!(
                "  {collective}: {replays} replays in {took:.1} s: {}",
                on_gpus.told()
            );
        }
    }
}

/// The kernel's wait ends, and names the rank and the row. The GPU goes on.
#[test]
#[ignore = "needs UB_TIMEOUT=1 from the start of its process: .ci/hardware runs it so"]
fn a_rank_that_never_comes_to_an_exchange_is_named() {
    let case = Case {
        collective: Collective::AllReduce,
        most: 40,
        columns: 1032,
        seed: 0,
    };
    for on_gpus in both_ways(2) {
        let told = Communicator::each(&on_gpus.ranks, |rank| {
            let mut of = Exchange::<bf16>::new(rank, case, true, (1, None))?;
            of.fill(rank, 0, (0, 40))?;
            rank.synchronize()?;
            rank.barrier()?;
            if rank.rank() == 1 {
                std::thread::sleep(Duration::from_secs(5));
                return Ok(String::new());
            }
            of.launch(rank, 0, 40)?;
            let error = rank.synchronize().expect_err("nobody comes");
            assert_eq!(error.kind(), "stalled", "{error}");
            Ok(error.to_string())
        });
        let told = fine(told);
        let wanted = [
            "rank 0 waited too long",
            "rows of rank 1",
            "low_latency_all_reduce",
        ];
        for part in wanted {
            assert!(told[0].contains(part), "{}", told[0]);
        }
    }
    for on_gpus in both_ways(2) {
        let rows = (&[40, 3][..], None);
        fine(run::<bf16>(&on_gpus.ranks, case, true, rows));
    }
}
