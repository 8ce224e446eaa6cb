//! Exchanges of low latency on emulated ranks: the same bits as the schedules whose place they take, in every world.

use crate::few_rows::{ALL, Case, Exchange, Half, family, rows_of, run, schedule};
use crate::parallel::in_parallel;
use crate::wide::{sampled, wide};
use counterflow::family::{Collective, Family, Reason, Stage};
use counterflow::op::Workspace;
use counterflow::prelude::*;
use counterflow::{
    Communicator, Dtype, Error, Shape, Variant, families, family as choice, schedules,
};

const MOST: usize = 37;
/// Columns with `WIDE`, and without.
const COLUMNS: [usize; 2] = [72, 24];

/// Rows of launches: fewer than ranks, shards that differ, and all. Every second one without `WIDE`.
fn rows(world: u32) -> Vec<usize> {
    let world = world as usize;
    let all = vec![
        MOST,
        1,
        world - 1,
        world,
        world + 1,
        5,
        2 * world - 1,
        MOST - 1,
        0,
        3,
        MOST,
    ];
    sampled(all, 2).collect()
}

/// Of every exchange, or without `WIDE` of one of them in each world: each in a small one and a large one, of both types.
fn same_bits<E: Half>(world: u32, seed: u64) {
    for (at, collective) in ALL.into_iter().enumerate() {
        if !wide() && at != [0, 1, 2, 3, 1, 0, 3, 2][world as usize - 1] {
            continue;
        }
        let case = Case {
            collective,
            most: MOST,
            columns: COLUMNS[usize::from(!wide())],
            seed,
        };
        let after = |few| {
            let ranks = Communicator::emulated(world).expect("ranks");
            let done = run::<E>(&ranks, case, few, (&rows(world), None));
            done.unwrap_or_else(|error| panic!("{case:?} few: {few}, world {world}: {error}"))
        };
        assert!(after(true) == after(false), "{case:?}, world {world}");
    }
}

#[test]
fn an_exchange_has_the_bits_of_the_schedule_in_every_world() {
    let seeds = if wide() { 12 } else { 1 };
    in_parallel(8 * seeds, |case| {
        let (world, seed) = (1 + (case / seeds) as u32, (case % seeds) as u64);
        match (seed + u64::from(world)) % 2 {
            0 => same_bits::<bf16>(world, seed),
            _ => same_bits::<half::f16>(world, seed),
        }
    });
}

#[test]
fn a_row_has_the_same_bits_in_launches_of_any_number_of_rows() {
    in_parallel(ALL.len(), |at| {
        let case = Case {
            collective: ALL[at],
            most: MOST,
            columns: 16,
            seed: 3,
        };
        let ranks = Communicator::emulated(4).expect("ranks");
        let counts: Vec<usize> = sampled((1..=MOST).rev().step_by(3), 3).collect();
        let all = rows_of::<bf16>(&ranks, case, &counts).unwrap_or_else(|error| panic!("{error}"));
        for (launch, rows) in all.iter().zip(&counts) {
            assert!(launch[..] == all[0][..*rows], "{case:?} of {rows} rows");
        }
    });
}

/// A graph's launches take the buffers by turns with others, of other rows.
#[test]
fn replays_between_launches_of_other_rows() {
    in_parallel(ALL.len(), |at| {
        let case = Case {
            collective: ALL[at],
            most: 11,
            columns: 24,
            seed: 7,
        };
        let ranks = Communicator::emulated(3).expect("ranks");
        let done = Communicator::each(&ranks, |rank| {
            let mut exchange = Exchange::<bf16>::new(rank, case, true, (1, None))?;
            let mut graphs = Vec::new();
            for rows in [11, 2] {
                graphs.push(rank.capture(|recording| exchange.launch(recording, 0, rows))?);
            }
            for round in sampled(0..12, 3) {
                for (graph, rows) in graphs.iter().zip([11, 2]) {
                    exchange.fill(rank, 0, (round, rows))?;
                    rank.barrier()?;
                    graph.launch(rank)?;
                    exchange.after(rank, 0, (round, rows))?;
                    let rows = 1 + round % 11;
                    exchange.fill(rank, 0, (round, rows))?;
                    rank.barrier()?;
                    exchange.launch(rank, 0, rows)?;
                    exchange.after(rank, 0, (round, rows))?;
                }
            }
            rank.barrier()
        });
        done.map(drop).unwrap_or_else(|error| panic!("{error}"));
    });
}

/// Launches without a wait of the host between them, of which some ranks have no rows: none is two launches ahead of a peer that has
/// not read the first.
#[test]
fn ranks_without_rows_do_not_run_ahead() {
    const SETS: usize = 12;
    in_parallel(3 * ALL.len(), |at| {
        let (collective, world) = (ALL[at % ALL.len()], [2, 4, 7][at / ALL.len()]);
        // Each exchange in one world, without `WIDE`.
        if !wide() && at % ALL.len() % 3 != at / ALL.len() {
            return;
        }
        let case = Case {
            collective,
            most: 2,
            columns: 1024,
            seed: at as u64,
        };
        let ranks = Communicator::emulated(world).expect("ranks");
        let done = Communicator::each(&ranks, |rank| {
            let mut exchange = Exchange::<bf16>::new(rank, case, true, (SETS, None))?;
            for round in sampled(0..3, 3) {
                let rows = |set: usize| 1 + (set + round) % 2;
                for set in 0..SETS {
                    exchange.fill(rank, set, (round * SETS + set, rows(set)))?;
                }
                rank.synchronize()?;
                rank.barrier()?;
                for set in 0..SETS {
                    exchange.launch(rank, set, rows(set))?;
                }
                for set in 0..SETS {
                    exchange.after(rank, set, (round * SETS + set, rows(set)))?;
                }
                rank.barrier()?;
            }
            Ok(())
        });
        done.map(drop)
            .unwrap_or_else(|error| panic!("{case:?}, world {world}: {error}"));
    });
}

/// Ranks that launch other rows, or leave, are told by the exchange's name.
#[test]
fn ranks_that_differ_or_leave_are_told() {
    for collective in ALL {
        let case = Case {
            collective,
            most: 4,
            columns: 64,
            seed: 0,
        };
        let told = |rows: [Option<usize>; 2]| {
            let ranks = Communicator::emulated(2).expect("ranks");
            let told = Communicator::each(&ranks, |rank| {
                let mut exchange = Exchange::<bf16>::new(rank, case, true, (1, None))?;
                rank.barrier()?;
                let Some(rows) = rows[rank.rank() as usize] else {
                    return Ok(());
                };
                exchange.launch(rank, 0, rows)?;
                rank.synchronize()
            });
            let error = told.expect_err("they differ");
            (error.kind(), error.to_string())
        };
        let (kind, text) = told([Some(4), Some(3)]);
        assert_eq!(kind, "mismatch", "{text}");
        let name = family(collective).candidates()[1].name();
        assert!(text.contains(&name), "{text}");
        let (kind, text) = told([Some(4), None]);
        assert_eq!(kind, "aborted", "{text}");
        assert!(text.contains("rank 1 ended early"), "{text}");
    }
}

/// The heap has what `workspace` says, and it is the exchange's two buffers.
#[test]
fn memory_is_what_is_told_before() {
    for (collective, rows) in ALL.into_iter().zip([8, 8, 32, 16]) {
        let ranks = Communicator::emulated(4).expect("ranks");
        let done = Communicator::each(&ranks, |rank| {
            let family = family(collective);
            let name = family.candidates()[1].name();
            let builder = || rank.family(&family).schedule(&name).up_to(32, 64, 64);
            let told: Workspace = builder().workspace()?;
            let buffers = 2 * 3 * rows * 64 * 2;
            assert!((buffers..buffers + 4096).contains(&told.heap), "{told:?}");
            let before = rank.heap_use().used;
            rank.reserve(before + told.heap + (2 << 20))?;
            let op = builder().build()?;
            assert_eq!(rank.heap_use().used - before, told.heap);
            drop(op);
            rank.synchronize()?;
            rank.barrier()
        });
        done.map(drop).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[schedule]
fn with_silu(g: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles((128, 128));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);

    #[comm(ctas = 16)]
    {
        for owner in ranks().after_me() {
            for t in tiles.of(owner) {
                let part = g[t];
                partial.on(owner)[me()][t] = part;
                landed.on(owner)[me()][t].add(1);
            }
        }
        for t in tiles.of(me()) {
            let sum = g[t] + partial[others()][t].wait(landed).sum();
            y[t] = sum.silu();
        }
    }
}

/// Sums in another order, rounded at every step.
#[schedule]
fn around(g: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles((128, 128));
    let came = symmetric::<bf16>(y.whole(), slots = 1);
    let landed = counters(tiles);
    let next = (me() + 1) % world();

    #[comm(ctas = 16)]
    {
        for owner in ranks().before_me() {
            for t in tiles.of(owner) {
                let mine = g[t];
                if owner == (me() - 1) % world() {
                    came.on(next)[0][t] = mine;
                } else {
                    landed[t].wait();
                    came.on(next)[0][t] = mine + came[0][t];
                }
                landed.on(next)[t].add(1);
            }
        }
        for t in tiles.of(me()) {
            let mine = g[t];
            if world() == 1 {
                y[t] = mine;
            } else {
                landed[t].wait();
                y[t] = mine + came[0][t];
            }
        }
    }
}

/// The library's reduce-scatter with other names, and scratch of another type, to which sums are rounded on their way.
#[schedule]
fn rounded(a: Local<bf16>, b: ReduceScattered<bf16>) {
    let blocks = b.tiles((128, 64));
    let slots = symmetric::<f16>(b, slots = world());
    let came = counters(world(), blocks);

    #[comm(ctas = 8)]
    {
        for r in ranks().after_me() {
            for i in blocks.of(r) {
                let mine = a[i];
                slots.on(r)[me()][i] = mine;
                came.on(r)[me()][i].add(1);
            }
        }
        for i in blocks.of(me()) {
            b[i] = a[i] + slots[others()][i].wait(came).sum();
        }
    }
}

/// Copies that the host enqueues.
#[schedule]
fn by_host(x: Gathered<bf16>) {
    let chunks = x.chunks(rows = 64);
    let arrived = counters(chunks);

    #[copy_engine]
    {
        for peer in ranks().before_me() {
            for c in chunks.of(me()) {
                x.on(peer)[c] = x[c];
                arrived.on(peer)[c].add(1);
            }
        }
    }
    #[comm(ctas = 16)]
    for shard in ranks().after_me() {
        for c in chunks.of(shard) {
            arrived[c].wait();
        }
    }
}

/// A schedule that is no exchange, or one of other bits, takes no other's place: neither its memory is told nor is it built.
#[test]
fn schedules_with_other_results_are_refused() {
    let scatter = Collective::ReduceScatter;
    let all = [
        (scatter, with_silu()),
        (scatter, around()),
        (scatter, rounded()),
        (Collective::AllGather, by_host()),
    ];
    let mut accepted = Vec::new();
    for (collective, program) in all {
        let name = format!("low_latency_{}", program.name);
        let family = Family::new("other", program.clone())
            .or_stages([Stage::low_latency(collective, program)]);
        let told = Communicator::each(&Communicator::emulated(2).expect("ranks"), |rank| {
            rank.reserve(4 << 20)?;
            let builder = || rank.family(&family).schedule(&name).up_to(16, 64, 64);
            let told = builder().workspace().map(drop);
            let built = builder().build().map(drop);
            Ok([told, built].map(|refused| refused.err().map(|error| error.to_string())))
        });
        let wanted = format!("{collective} of low latency as {name}");
        for refused in told.expect("ranks") {
            if refused != [Some(wanted.clone()), Some(wanted.clone())] {
                accepted.push((wanted.clone(), refused));
            }
        }
    }
    assert!(accepted.is_empty(), "{accepted:#?}");
}

/// Names and choices are the author's.
#[test]
fn a_schedule_with_other_names_and_choices_is_the_same_exchange() {
    let mut program = schedules::reduce_scatter();
    for tensor in &mut program.tensors {
        tensor.name = format!("my_{}", tensor.name);
    }
    program.name = "mine".into();
    program.tunables.iter_mut().for_each(|tunable| {
        tunable.options.reverse();
    });
    let few = Stage::low_latency(Collective::ReduceScatter, program.clone());
    let family = Family::new("mine", program).or_stages([few]);
    let rank = &Communicator::emulated(2).expect("ranks")[0];
    let builder = rank.family(&family).schedule("low_latency_mine");
    let told = builder.up_to(16, 64, 64).workspace();
    assert!(told.is_ok(), "{told:?}");
}

/// The reason that a family without another candidate is refused.
fn refused(family: &Family, world: u32, shape: &Shape, dtype: Dtype) -> String {
    let base = Variant::new(world).dtype(dtype);
    let chosen = choice::choose(&[], GPU, family, &base, shape, |_| 132);
    let error: Error = chosen.map(|chosen| chosen.name).expect_err("refused");
    format!("{error}: {}", error.help().unwrap_or_default())
}

const GPU: &str = "NVIDIA H100 80GB HBM3";

#[test]
fn many_rows_many_ranks_and_other_elements_are_refused_with_the_reason() {
    let few = |collective| {
        let stage = Stage::low_latency(collective, schedule(collective));
        Family::new("bulk", schedule(collective)).or_stages([stage])
    };
    let only = |collective, world, m, dtype| {
        let family = few(collective);
        let name = family.candidates()[1].name();
        let ranks = Communicator::emulated(world).expect("ranks");
        let builder = ranks[0].family(&family).schedule(&name).dtype(dtype);
        let error = builder
            .up_to(m, 8192, 8192)
            .workspace()
            .expect_err("refused");
        format!(
            "{}: {error}: {}",
            error.kind(),
            error.help().unwrap_or_default()
        )
    };
    let told = only(Collective::AllReduce, 4, 512, Dtype::Bf16);
    let many = "too_large: all-reduce of low latency of 512 rows of 16384 bytes: it takes 50331648 bytes of the heap, 33554432 at most: the exchange as a schedule is for many rows";
    assert_eq!(told, many);
    let told = only(Collective::ReduceScatter, 9, 16, Dtype::Bf16);
    let ranks = "too_large: reduce-scatter of low latency of 9 ranks: 8 at most: the exchange as a schedule is for many rows";
    assert_eq!(told, ranks);
    let told = only(Collective::AllGather, 2, 16, Dtype::F32);
    assert!(
        told.starts_with("usage: all-gather of low latency of f32: rows of bf16"),
        "{told}"
    );
    // What does something else is none.
    let wrong = Stage::low_latency(Collective::AllReduce, schedules::reduce_scatter());
    let family = Family::new("wrong", schedules::reduce_scatter()).or_stages([wrong]);
    let only = Family::new("reduce_scatter", schedules::reduce_scatter());
    let name = family.candidates()[1].name();
    let rank = &Communicator::emulated(2).expect("ranks")[0];
    let error = rank
        .family(&family)
        .schedule(&name)
        .up_to(16, 64, 64)
        .workspace();
    let error = error.expect_err("refused").to_string();
    assert_eq!(
        error,
        "all-reduce of low latency as low_latency_reduce_scatter"
    );
    // A family takes another candidate, of many rows and of a shape that none has.
    let base = Variant::new(4);
    let chosen = choice::choose(
        &[],
        GPU,
        &few(Collective::AllReduce),
        &base,
        &Shape::new(4096, 64, 8192),
        |_| 132,
    );
    assert_eq!(chosen.expect("the schedule").name, "all_reduce");
    let told = refused(&only, 2, &Shape::new(16, 4, 4), Dtype::Bf16);
    assert!(told.contains("multiple of 16 bytes"), "{told}");
}

/// The model has them for few rows, and not for many; it says so.
#[test]
fn families_have_them_for_few_rows_by_the_model() {
    let of = |family: &Family, m: u32, [n, k]: [u32; 2]| {
        let shape = Shape::new(m, n, k);
        choice::choose(&[], GPU, family, &Variant::new(4), &shape, |_| 132).expect("a choice")
    };
    let all = [
        (families::gemm_reduce_scatter(), [8192, 2048]),
        (families::gemm_all_reduce(), [8192, 2048]),
        (families::all_gather_gemm(), [2560, 8192]),
        (families::all_gather_swiglu(), [7168, 8192]),
    ];
    for (family, size) in sampled(all, 3) {
        let few = of(&family, 16, size);
        let Reason::Model { seconds } = &few.why else {
            panic!("{}", few.why);
        };
        let mut names = seconds.iter().map(|(name, _)| &name[..]);
        let first = names.position(|name| name.contains("low_latency_"));
        let bulk = seconds
            .iter()
            .position(|(name, _)| name.contains('+') && !name.contains("low_latency_"));
        assert!(first.is_some() && first < bulk, "{}", few.why);
        // The model has the same product fused in one shot before it.
        let wanted = usize::from(family.name() == "gemm_all_reduce");
        assert!(first <= Some(wanted), "{}", few.why);
        let many = of(&family, 4096, size);
        assert!(
            !many.name.contains("low_latency_"),
            "{}: {}",
            many.name,
            many.why
        );
    }
}
