//! Families of the library on emulated ranks: every candidate computes the same bits from the same tensors, in launches of
//! any number of rows across buckets.

mod multicast;

use crate::candidates::{K, MOST, N, Tensors, after, built};
use crate::constants::Case;
use crate::parallel::in_parallel;
use crate::wide::wide;
use counterflow::family::{self, Choice, Family, Reason, SCHEDULE, Stage};
use counterflow::metrics::{OpCounts, Why};
use counterflow::op::Workspace;
use counterflow::prelude::bf16;
use counterflow::tuned::{Tuned, Winner};
use counterflow::tuning::Tuning;
use counterflow::{Communicator, Dtype, Error, Layout, Shape, Variant, families, schedules};

#[test]
fn every_candidate_has_the_same_bits_in_every_world() {
    let families = families::ALL.map(|family| family());
    let worlds: &[u32] = if wide() {
        &[1, 2, 3, 4, 5, 6, 7, 8]
    } else {
        &[1, 2, 5]
    };
    in_parallel(families.len() * worlds.len(), |case| {
        let (of, at) = (case / worlds.len(), case % worlds.len());
        // The sample has each family in one world.
        if !wide() && at != of % worlds.len() {
            return;
        }
        let (family, world) = (&families[of], worlds[at]);
        let names = family.candidates().iter().map(|candidate| candidate.name());
        let names: Vec<String> = names.collect();
        assert!(names.iter().any(|name| name.contains('+')), "not fused");
        let after = |only| {
            let ranks = Communicator::emulated(world).expect("ranks");
            after(&ranks, family, only)
        };
        let wanted = after(Some(&names[0]));
        let others = names[1..].iter().map(|name| Some(&name[..]));
        // The choice among all is the model's, which takes a while.
        let chosen = (wide() || world == 2).then_some(None);
        for only in others.chain(chosen) {
            let found = after(only);
            assert!(
                found == wanted,
                "{} as {only:?}, world {world}",
                family.name()
            );
        }
    });
}

/// Weights that are declared constant, in launches of fewer rows than ranks, of ragged shards, and of all rows.
#[test]
fn a_gather_and_a_product_with_constant_weights_in_every_world() {
    let case = |candidate| Case {
        candidate,
        rows: &[1, 5, 16, 37],
        columns: 40,
        depth: 72,
        rounds: 5,
    };
    let worlds: &[u32] = if wide() {
        &[1, 2, 3, 4, 5, 6, 7, 8]
    } else {
        &[1, 3, 8]
    };
    let candidates = ["all_gather+gemm", "low_latency_all_gather+gemm"];
    in_parallel(candidates.len() * worlds.len(), |at| {
        let (of, at) = (at / worlds.len(), at % worlds.len());
        let candidate = candidates[of];
        // The sample has each world in turn.
        if !wide() && (of + at) % 2 == 1 {
            return;
        }
        let ranks = Communicator::emulated(worlds[at]).expect("ranks");
        let case = case(candidate);
        let done = case.run(&ranks).and_then(|()| case.back_to_back(&ranks, 8));
        done.unwrap_or_else(|error| panic!("{candidate}, world {}: {error}", worlds[at]));
    });
}

/// What peers send, what a launch writes and what is not there are no constants of a family either.
#[test]
fn only_inputs_that_stay_on_their_rank_are_constants() {
    let rank = &Communicator::emulated(1).expect("ranks")[0];
    let refused = |name: &str| {
        let builder = rank.op_for::<families::AllGatherGemm>().constant(name);
        let error = builder.up_to(MOST, N, K).build().expect_err("refused");
        format!("{error}: {}", error.help().unwrap_or_default())
    };
    let legal = "an input that stays on its rank: w";
    for (name, why) in [
        ("x", "launches or peers write it"),
        ("y", "launches or peers write it"),
        ("v", "it has no such tensor"),
    ] {
        let wanted = format!("`{name}` of ag_gemm as a constant: {why}: {legal}");
        assert_eq!(refused(name), wanted);
    }
}

/// What is replayed is what was launched, and what the op has for itself stays.
#[test]
fn candidates_of_two_launches_are_recorded_in_graphs() {
    let family = families::gemm_reduce_scatter();
    let ranks = Communicator::emulated(2).expect("ranks");
    let done = Communicator::each(&ranks, |rank| {
        rank.reserve(16 << 20)?;
        let op = built(rank, &family, Some("gemm+reduce_scatter"))?;
        let mut tensors = Tensors::new(rank, &op, &family)?;
        tensors.fill(rank, (0, MOST))?;
        tensors.launch(rank, &op, MOST)?;
        rank.synchronize()?;
        let wanted = tensors.bits()?;
        rank.barrier()?;
        let graph = rank.capture(|recording| {
            let mut launch = op.on(recording);
            for (name, needs, held) in &mut tensors.0 {
                launch = launch.tensor(name, held.given(!needs.usage.is_input()));
            }
            launch.launch().map(drop)
        })?;
        drop(op);
        for _ in 0..3 {
            tensors.fill(rank, (0, MOST))?;
            graph.launch(rank)?.wait()?;
            assert!(tensors.bits()? == wanted);
            rank.barrier()?;
        }
        Ok(())
    });
    done.map(drop).unwrap_or_else(|error| panic!("{error}"));
}

/// The stage that waits for peers is the second, and they launch something else.
#[test]
fn a_launch_whose_second_stage_is_refused_enqueues_no_stage() {
    let ranks = Communicator::emulated(2).expect("ranks");
    let done = Communicator::each(&ranks, |rank| {
        rank.reserve(16 << 20)?;
        rank.time_launches(true);
        let family = families::gemm_reduce_scatter();
        let [op, other] =
            [Some("gemm+reduce_scatter"), Some("gemm_rs")].map(|only| built(rank, &family, only));
        let (op, other) = (op?, other?);
        let mut tensors = Tensors::new(rank, &op, &family)?;
        tensors.fill(rank, (0, MOST))?;
        // Its host is there first.
        if rank.rank() == 1 {
            tensors.launch(rank, &other, MOST)?;
        }
        rank.barrier()?;
        if rank.rank() == 0 {
            let refused = tensors.launch(rank, &op, MOST).expect_err("it differs");
            assert_eq!(refused.kind(), "mismatch", "{refused}");
            rank.stream().synchronize()?;
            let counts = rank.op_counts();
            let products = counts.iter().filter(|of| of.schedule == "gemm");
            let ran: Vec<[u64; 2]> = products.map(|of| [of.launches, of.timed]).collect();
            assert!(
                !ran.is_empty() && ran.iter().all(|ran| *ran == [0, 0]),
                "{ran:?}"
            );
        }
        Ok(())
    });
    done.map(drop).unwrap_or_else(|error| panic!("{error}"));
}

/// A launch that is refused for its tensors ends nothing, so the rank may correct it.
#[test]
fn a_launch_of_several_stages_that_is_refused_may_be_corrected() {
    let ranks = Communicator::emulated(2).expect("ranks");
    let done = Communicator::each(&ranks, |rank| {
        rank.reserve(16 << 20)?;
        let op = rank.op_for::<families::AllGatherGemm>();
        let op = op.schedule("all_gather+gemm").up_to(MOST, N, K).build()?;
        let x = rank.allocate::<bf16>("x", [MOST, K])?;
        let (w, mut y) = (rank.zeros::<bf16>([N, K])?, rank.zeros::<bf16>([MOST, N])?);
        for _ in 0..2 {
            if rank.rank() == 0 {
                let mut few = rank.zeros::<bf16>([MOST - 1, N])?;
                let refused = op.on(rank).x(&x).w(&w).y(&mut few).launch();
                let refused = refused.expect_err("too few rows").to_string();
                assert_eq!(refused, format!("y is {} x {N}", MOST - 1));
            }
            op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()?;
        }
        rank.barrier()
    });
    done.map(drop).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn ranks_with_other_candidates_are_told_when_they_build() {
    let ranks = Communicator::emulated(2).expect("ranks");
    let told = Communicator::each(&ranks, |rank| {
        rank.reserve(16 << 20)?;
        let only = ["ag_gemm", "all_gather+gemm"][rank.rank() as usize];
        let built = built(rank, &families::all_gather_gemm(), Some(only));
        Ok(built.map(drop).expect_err("another candidate").kind())
    });
    assert_eq!(told.expect("told"), ["mismatch"; 2]);
}

/// Scratch is that of the largest, and what stages hand over is in `own`.
#[test]
fn memory_is_that_of_the_largest_bucket() {
    let family = families::gemm_reduce_scatter();
    let ranks = Communicator::emulated(2).expect("ranks");
    let done = Communicator::each(&ranks, |rank| {
        let [m, n, k] = [8192, 1024, 64];
        for only in ["gemm_rs", "gemm+reduce_scatter"] {
            let builder = || rank.family(&family).schedule(only).up_to(m, n, k);
            let alone: Workspace = builder().workspace()?;
            let all = builder().buckets([16, 4096]);
            let together = all.workspace()?;
            // Rows of ours for a rank, two slots of them.
            let scratch = (m * n * 2) as u64;
            assert!(alone.heap > scratch, "{only}: {alone:?}");
            assert!(
                together.heap < scratch + scratch / 2,
                "{only}: {together:?}"
            );
            let between = if only.contains('+') { scratch } else { 0 };
            assert!(together.own >= between && together.own < between + scratch / 2);
            let before = rank.heap_use().used;
            rank.reserve(before + together.heap + (2 << 20))?;
            let op = all.build()?;
            let used = rank.heap_use().used - before;
            assert_eq!(used, together.heap, "{only}");
            assert_eq!(op.schedule_of(16), only);
            drop(op);
            rank.synchronize()?;
            rank.barrier()?;
        }
        Ok(())
    });
    done.map(drop).unwrap_or_else(|error| panic!("{error}"));
}

/// Stages that do not make what the first candidate makes are no candidate.
#[test]
fn what_computes_something_else_is_no_candidate() {
    let rank = &Communicator::emulated(2).expect("ranks")[0];
    let refused = |family: Family, dtype: Dtype| {
        let last = family.candidates().len() - 1;
        let name = family.candidates()[last].name();
        let builder = rank.family(&family).dtype(dtype).schedule(&name);
        let error = builder.first_options().up_to(64, 64, 64).workspace();
        error.expect_err("another result").to_string()
    };
    let family = || Family::new("gathered", schedules::ag_gemm());
    let rows = family().or(schedules::gemm());
    assert_eq!(
        refused(rows, Dtype::Bf16),
        "gemm instead of ag_gemm: no tensor `x` of that kind"
    );
    let result = family().or(schedules::gemm_rs());
    assert_eq!(
        refused(result, Dtype::Bf16),
        "gemm_rs instead of ag_gemm: another tensor `y`"
    );
    let stages = [
        Stage::new(schedules::ag_gemm()),
        Stage::new(schedules::all_gather()),
    ];
    let twice = family().or_stages(stages);
    assert!(refused(twice, Dtype::Bf16).ends_with("several stages communicate"));
    let stages = [
        Stage::new(schedules::gemm()),
        Stage::new(schedules::all_gather()),
    ];
    let backwards = family().or_stages(stages);
    assert_eq!(
        refused(backwards, Dtype::Bf16),
        "gemm+all_gather instead of ag_gemm: `x` is read before it is gathered"
    );
    let stages = [
        Stage::new(schedules::all_gather()),
        Stage::new(schedules::gemm()).tensor("y", "g"),
        Stage::new(schedules::gemm()).tensor("y", "h"),
        Stage::new(schedules::gemm()),
    ];
    let both = family().or_stages(stages);
    assert_eq!(
        refused(both, Dtype::Bf16),
        "all_gather+gemm+gemm+gemm instead of ag_gemm: stages hand over both `g` and `h`"
    );
}

/// A reduce-scatter of the columns of the product's depth.
fn of_other_columns() -> Family {
    Family::new("scattered", schedules::gemm_rs()).or_stages([
        Stage::new(schedules::gemm()).tensor("y", "g"),
        Stage::new(schedules::reduce_scatter()),
    ])
}

#[test]
fn what_moves_other_columns_is_no_candidate() {
    let family = of_other_columns();
    let ranks = Communicator::emulated(2).expect("ranks");
    let builder = || ranks[0].family(&family).schedule("gemm+reduce_scatter");
    let told = builder().first_options().up_to(64, 64, 32).workspace();
    let told = told.expect_err("other columns");
    assert_eq!(told.kind(), "usage");
    assert_eq!(
        told.to_string(),
        "gemm+reduce_scatter instead of gemm_rs: `g` of reduce_scatter has 64 lines of 64 bytes, not 64 lines of 128 bytes, in a launch of 64x64x32"
    );
}

/// The largest launch has as many columns as its depth, so only another one tells.
#[test]
fn a_launch_in_which_a_stage_moves_other_columns_is_refused() {
    let family = of_other_columns();
    let ranks = Communicator::emulated(2).expect("ranks");
    let done = Communicator::each(&ranks, |rank| {
        rank.reserve(16 << 20)?;
        let builder = rank.family(&family).schedule("gemm+reduce_scatter");
        let op = builder.first_options().up_to(64, 64, 64).build()?;
        let of = counterflow::op::Sizes::default().rows(64).depth(32);
        let told = op.needs_at("y", of).expect_err("other columns").to_string();
        assert!(
            told.contains("`g` of reduce_scatter has 64 lines of 64 bytes"),
            "{told}"
        );
        rank.barrier()
    });
    done.map(drop).unwrap_or_else(|error| panic!("{error}"));
}

/// The reason is told, and no reason is needed where the caller names the candidate.
#[test]
fn the_choice_and_its_reason_are_told() {
    let ranks = Communicator::emulated(2).expect("ranks");
    let told = Communicator::each(&ranks, |rank| {
        rank.reserve(64 << 20)?;
        let builder = rank.op_for::<families::AllGatherGemm>();
        let op = builder.up_to(4096, 512, 512).buckets([16]).build()?;
        let Reason::Model { seconds } = op.why(16) else {
            panic!("{}", op.why(16));
        };
        assert_eq!((seconds.len(), &seconds[0].0[..]), (4, op.schedule_of(16)));
        assert!(seconds.is_sorted_by(|(_, a), (_, b)| a <= b), "{seconds:?}");
        let counts: Vec<OpCounts> = rank.op_counts();
        let names = [op.schedule_of(16), op.schedule_of(4096)].map(|name| name.split('+'));
        for name in names.into_iter().flatten() {
            assert!(counts.iter().any(|of| of.schedule == name), "{name}");
        }
        let named = rank.op_for::<families::AllGatherGemm>().schedule("ag_gemm");
        let named = named.up_to(64, 64, 64).build()?;
        assert_eq!(named.why(64), Reason::Named);
        Ok(op.schedule_of(16).to_owned())
    });
    let told = told.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(told[0], told[1]);
}

/// A family's winner of a launch of 16 rows.
fn won(choices: &[(&str, &str)]) -> Tuned {
    let mut tuned = Tuned::default();
    tuned.put(Winner {
        key: families::all_gather_gemm().key(GPU, &Variant::new(2)),
        m: 16,
        n: 512,
        k: 512,
        microseconds: 9.0,
        p10: 8.9,
        p90: 9.1,
        cublaslt: 5.0,
        choices: (choices.iter())
            .map(|(name, setting)| ((*name).into(), (*setting).into()))
            .collect(),
    });
    tuned
}

const GPU: &str = "NVIDIA H200";

fn choose(tables: &[Tuned], base: &Variant, m: u32) -> Result<Choice, Error> {
    let family = families::all_gather_gemm();
    family::choose(tables, GPU, &family, base, &Shape::new(m, 512, 512), |_| {
        132
    })
}

/// The winner says which candidate, nearby too; and of each stage which variant, where the work is the same.
#[test]
fn a_winner_of_a_family_decides() {
    let base = Variant::new(2);
    let apart = [
        ("schedule", "all_gather+gemm"),
        ("all_gather/chunks", "128"),
        ("all_gather/comm.ctas", "64"),
        ("gemm/tiles", "64x64"),
        ("gemm/gemm.split", "2"),
    ];
    let choice = choose(&[won(&apart)], &base, 16).expect("a choice");
    assert_eq!(choice.name, "all_gather+gemm");
    assert_eq!(choice.why.to_string(), "measured: 9.0 us at 16x512x512");
    let set = |stage: usize, name: &str| choice.variants[stage].choices[name].to_string();
    assert_eq!([set(0, "chunks"), set(0, "comm.ctas")], ["128", "64"]);
    assert_eq!([set(1, "tiles"), set(1, "gemm.split")], ["64x64", "2"]);
    let near = choose(&[won(&apart)], &base, 20).expect("a choice");
    assert_eq!((&near.name, &near.why), (&choice.name, &choice.why));
    let far = choose(&[won(&apart)], &base, 64).expect("a choice");
    assert!(matches!(far.why, Reason::Model { .. }), "{}", far.why);
    let fused = [
        ("schedule", "ag_gemm"),
        ("tiles", "128x192"),
        ("chunks", "256"),
    ];
    let first = choose(&[won(&fused), won(&apart)], &base, 16).expect("a choice");
    assert_eq!(first.name, "ag_gemm", "the first table counts");
    assert_eq!(first.variants[0].choices["tiles"].to_string(), "128x192");
    let before = fused.map(|(name, to)| (if name == "chunks" { "pieces" } else { name }, to));
    let before = choose(&[won(&before)], &base, 16).expect("a choice");
    assert_eq!(
        before.variants, first.variants,
        "chunks by their former name"
    );
    // What the family does not have any more is passed over; what the caller settled stays.
    let gone = choose(&[won(&[("schedule", "ag_gemm_in_a_tree")])], &base, 16);
    assert!(matches!(gone.expect("a choice").why, Reason::Model { .. }));
    let settled = choose(&[won(&apart)], &base.set("comm.ctas", 8), 16).expect("a choice");
    assert_eq!(settled.name, "all_gather+gemm");
    assert_eq!(settled.variants[0].choices["comm.ctas"].to_string(), "8");
}

/// Each is legal where it won, and is what is chosen there.
#[test]
fn every_winner_of_a_family_that_ships_is_taken() {
    let tables = [Tuned::embedded().expect("tables")];
    let all = families::ALL.map(|family| family());
    let named = |winner: &&Winner| all.iter().find(|family| family.name() == winner.key.op);
    let winners: Vec<&Winner> = tables[0].winners().collect();
    let of_families = winners.iter().filter(|winner| named(winner).is_some());
    for winner in of_families.step_by(if wide() { 1 } else { 20 }) {
        let family = named(winner).expect("a family");
        let layout = Layout::from_name(&winner.key.layout).expect("a layout");
        let base = Variant::new(winner.key.world).layout(layout);
        assert_eq!(family.key(&winner.key.gpu, &base), winner.key);
        let shape = Shape::new(winner.m, winner.n, winner.k);
        let choice = family::choose(&tables, &winner.key.gpu, family, &base, &shape, |_| 132);
        let choice = choice.unwrap_or_else(|error| panic!("{winner:?}: {error}"));
        assert_eq!(choice.name, winner.choices[SCHEDULE], "{winner:?}");
        let at = [winner.m, winner.n, winner.k];
        assert!(matches!(choice.why, Reason::Measured { at: there, .. } if there == at));
    }
}

/// Rows that are the same for every number of rows need one candidate in all buckets, which have the reason of the largest.
#[test]
fn batch_invariant_families_have_one_candidate() {
    let ranks = Communicator::emulated(2).expect("ranks");
    let done = Communicator::each(&ranks, |rank| {
        rank.reserve(64 << 20)?;
        let builder = rank.op_for::<families::GemmReduceScatter>();
        let builder = builder.batch_invariant().up_to(4096, 2048, 1024);
        let op = builder.buckets([16, 128]).build()?;
        assert_eq!(op.schedule_of(16), op.schedule_of(4096));
        assert!(
            matches!(op.why(4096), Reason::Model { .. }),
            "{}",
            op.why(4096)
        );
        assert_ne!(op.variant_of(16), op.variant_of(4096), "buckets");
        assert_eq!(op.why(16), op.why(4096));
        rank.barrier()
    });
    done.map(drop).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn rows_of_two_stages_have_the_same_bits_in_all_buckets() {
    const ROWS: usize = 16;
    let family = families::gemm_reduce_scatter();
    let ranks = Communicator::emulated(2).expect("ranks");
    let done = Communicator::each(&ranks, |rank| {
        rank.reserve(64 << 20)?;
        let builder = rank.family(&family).schedule("gemm+reduce_scatter");
        let builder = builder.batch_invariant().up_to(4096, 512, 512);
        let op = builder.buckets([ROWS]).build()?;
        assert_ne!(op.variant_of(ROWS), op.variant_of(ROWS + 8), "buckets");
        assert_eq!(op.why(ROWS), Reason::Named);
        let mut tensors = Tensors::new(rank, &op, &family)?;
        let mut bits = Vec::new();
        for rows in [ROWS, 2 * ROWS] {
            tensors.fill(rank, (0, 4096))?;
            tensors.launch(rank, &op, rows)?;
            rank.synchronize()?;
            let mut all = tensors.bits()?.swap_remove(0);
            all.truncate(rows / 2 * 512);
            bits.push(all);
            rank.barrier()?;
        }
        Ok(bits)
    });
    let done = done.unwrap_or_else(|error| panic!("{error}"));
    let [few, many] = [0, 1].map(|launch| [&done[0][launch][..], &done[1][launch][..]].concat());
    assert!(few.iter().filter(|bits| **bits & 0x7fff != 0).count() > few.len() / 2);
    assert!(few == many[..few.len()]);
}

/// Emulated ranks have no speed worth knowing, but all that a measurement does.
#[test]
fn families_are_measured_bucket_by_bucket() {
    let ranks = Communicator::emulated(2).expect("ranks");
    let done = Communicator::each(&ranks, |rank| {
        rank.reserve(32 << 20)?;
        let builder = rank.op_for::<families::GemmReduceScatter>();
        let builder = builder.tuning(Tuning::Quick).up_to(256, 128, 64);
        let op = builder.buckets([64]).build()?;
        for rows in [64, 256] {
            let Reason::Measured { at, microseconds } = op.why(rows) else {
                panic!("{}", op.why(rows));
            };
            assert!(at[0] as usize >= rows && microseconds > 0.0);
        }
        rank.barrier()?;
        Ok([64, 256].map(|rows| (op.schedule_of(rows).to_owned(), op.variant_of(rows).clone())))
    });
    let done = done.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(done[0], done[1]);
}

/// No peer waits for a product's kernel, so a rank measures alone.
#[test]
fn a_rank_measures_a_product_by_itself() {
    let ranks = Communicator::emulated(2).expect("ranks");
    let done = Communicator::each(&ranks, |rank| {
        if rank.rank() == 0 {
            let builder = rank.op_of::<schedules::GemmOp>().tuning(Tuning::Quick);
            builder.up_to(64, 64, 64).build()?;
            assert_eq!(rank.op_counts()[0].why, Why::Measured);
        }
        rank.barrier()
    });
    done.map(drop).unwrap_or_else(|error| panic!("{error}"));
}
