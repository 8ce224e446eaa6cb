//! The variant for a shape: what was measured nearby, else what the model likes best.

use crate::measured::{PRODUCTS, runs};
use crate::wide::{sampled, wide};
use counterflow::codegen::lower::lower;
use counterflow::codegen::program::Setting;
use counterflow::codegen::{model, verify};
use counterflow::tuned::{self, Key, Ranking, Tuned, Winner};
use counterflow::{Checked, Dtype, Kernel, Layout, Machine, Program, Shape, Variant, schedules};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::OnceLock;

const GPU: &str = "a GPU";

fn measured(program: &Program, world: u32, choices: &[(&str, &str)]) -> Tuned {
    let mut tuned = Tuned::default();
    tuned.put(Winner {
        key: Key::new(GPU, program, &Variant::new(world)),
        m: 2048,
        n: 4096,
        k: 4096,
        microseconds: 100.0,
        p10: 99.0,
        p90: 101.0,
        cublaslt: 90.0,
        choices: choices
            .iter()
            .map(|(name, setting)| ((*name).to_owned(), (*setting).to_owned()))
            .collect(),
    });
    tuned
}

fn select(tables: &[Tuned], program: &Program, base: &Variant, m: u32) -> tuned::Choice {
    let shape = Shape::new(m, 4096, 4096);
    tuned::select(tables, GPU, program, base, &shape, &Machine::h200())
        .unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_measurement_nearby_decides() {
    let program = schedules::ag_gemm();
    let slow = measured(&program, 4, &[("tiles", "128x128"), ("comm.ctas", "2")]);
    let base = Variant::new(4);
    // The last tile of each shard is ragged: the GPU does the same.
    let near = select(std::slice::from_ref(&slow), &program, &base, 2040);
    assert!(near.measured);
    assert_eq!(near.variant.choices["comm.ctas"].to_string(), "2");
    let far = select(std::slice::from_ref(&slow), &program, &base, 8192);
    assert!(
        !far.measured,
        "no measurement speaks for four times the rows"
    );
    let other = select(&[slow], &program, &Variant::new(2), 2040);
    assert!(!other.measured, "nor for another world");
}

#[test]
fn what_the_user_settles_stays() {
    let program = schedules::gemm();
    let wide = measured(&program, 1, &[("tiles", "128x256")]);
    let base = Variant::new(1).set("tiles", (128, 128));
    let choice = select(std::slice::from_ref(&wide), &program, &base, 2048);
    assert_eq!(choice.variant.choices["tiles"].to_string(), "128x128");
    assert!(!choice.measured);
    // Who moves nothing does not care for how many ranks it was measured.
    assert!(select(&[wide], &program, &Variant::new(4), 2048).measured);
}

#[test]
fn the_other_16_bit_type_counts_behind_the_type_itself() {
    let program = schedules::gemm();
    let f16 = Variant::new(1).dtype(Dtype::F16);
    let of = |variant: &Variant, tile: &str, m: u32| {
        let known = measured(&program, 1, &[("tiles", tile)]);
        let size = [2048, 4096, 4096];
        let mut winner = known.near(&Key::new(GPU, &program, &Variant::new(1)), size)[0].clone();
        (winner.key, winner.m) = (Key::new(GPU, &program, variant), m);
        let mut table = Tuned::default();
        table.put(winner);
        table
    };
    let tile = |tables: &[Tuned], base: &Variant| {
        select(tables, &program, base, 2048).variant.choices["tiles"].to_string()
    };
    let bf16 = of(&Variant::new(1), "128x192", 2048);
    let near = of(&f16, "128x256", 2304);
    let own = of(&f16, "128x160", 2048);
    assert_eq!(tile(std::slice::from_ref(&bf16), &f16), "128x192");
    assert_eq!(
        tile(&[bf16.clone(), near], &f16),
        "128x192",
        "measured there before nearby"
    );
    assert_eq!(
        tile(&[bf16.clone(), own.clone()], &f16),
        "128x160",
        "whichever table has it"
    );
    assert_eq!(tile(&[own], &Variant::new(1)), "128x160");
}

#[test]
fn what_is_no_longer_legal_is_not_taken() {
    let program = schedules::gemm();
    for choices in [[("tiles", "8x8")], [("subtiles", "3")], [("tiles", "wide")]] {
        let stale = measured(&program, 1, &choices);
        let choice = select(&[stale], &program, &Variant::new(1), 2048);
        assert!(!choice.measured, "{choices:?}");
    }
}

#[test]
fn what_was_measured_among_fewer_options_counts() {
    let program = schedules::gemm();
    let mut fewer = program.clone();
    fewer.tunables[0].options.pop();
    let older = measured(&fewer, 1, &[("tiles", "128x128")]);
    let choice = select(&[older], &program, &Variant::new(1), 2048);
    assert!(choice.measured);
    assert_eq!(choice.variant.choices["tiles"].to_string(), "128x128");
}

#[test]
fn a_choice_that_came_later_is_as_it_was() {
    let program = schedules::gemm();
    let open = tuned::choices(&program);
    let before: Vec<_> = (open.iter())
        .filter(|(name, _)| **name != "gemm.split")
        .map(|(name, options)| (*name, options[0].to_string()))
        .collect();
    let named: Vec<_> = before.iter().map(|(name, one)| (*name, &one[..])).collect();
    let mut older = program.clone();
    older.tunables.retain(|choice| choice.name != "gemm.split");
    let tables = [measured(&older, 1, &named)];
    let choice = select(&tables, &program, &Variant::new(1), 2048);
    assert!(choice.measured);
    assert_eq!(choice.variant.choices["gemm.split"], Setting::One(1));
    // So it says nothing of another.
    let shared = Variant::new(1).set("gemm.split", 2);
    assert!(!select(&tables, &program, &shared, 2048).measured);
}

#[test]
fn few_tiles_of_a_deep_product_are_split_along_k() {
    let (program, base) = (schedules::gemm(), Variant::new(1));
    let favourite = |m, n, k| {
        let shape = Shape::new(m, n, k);
        let choice = tuned::select(&[], GPU, &program, &base, &shape, &Machine::h200());
        let variant = choice.expect("a variant").variant;
        println!("{shape}: {variant}");
        variant.choices["gemm.split"]
    };
    assert_ne!(favourite(64, 2560, 8192), Setting::One(1));
    assert_eq!(favourite(8192, 8192, 2048), Setting::One(1));
}

#[test]
fn the_model_chooses_for_every_schedule_that_has_text() {
    // The sample lacks those that other tests here choose of.
    let all: [fn() -> Program; 4] = [
        schedules::gemm,
        schedules::ag_gemm,
        schedules::gemm_rs,
        schedules::gemm_ar,
    ];
    for schedule in sampled(all, 3) {
        let program = schedule();
        let base = Variant::new(4);
        let all = tuned::combinations(&program, &base, &BTreeMap::new());
        let open = tuned::choices(&program);
        let offered: usize = open.values().map(|options| options.len()).product();
        assert_eq!(all.len(), offered);
        let start = std::time::Instant::now();
        let choice = select(&[], &program, &base, 8192);
        println!(
            "{}: {} of {} in {:?}",
            program.name,
            choice.variant,
            all.len(),
            start.elapsed()
        );
        assert_eq!(choice.variant.choices.len(), open.len());
    }
}

#[test]
fn what_comes_with_the_package_is_used() {
    let (program, machine) = (schedules::gemm(), Machine::h200());
    let tables = [Tuned::embedded().expect("a table")];
    for ([m, n, k], ..) in runs(PRODUCTS)
        .into_keys()
        .filter(|([m, ..], ..)| *m <= 2048)
    {
        let shape = Shape::new(m, n, k);
        let base = Variant::new(1);
        let choice = tuned::select(&tables, "NVIDIA H200", &program, &base, &shape, &machine);
        assert!(choice.expect("a variant").measured, "{shape}");
    }
}

/// A winner of gemm at that shape.
fn won([m, n, k]: [u32; 3], choices: &BTreeMap<String, Setting>) -> Tuned {
    let program = schedules::gemm();
    let mut tuned = Tuned::default();
    tuned.put(Winner {
        key: Key::new(GPU, &program, &Variant::new(1)),
        m,
        n,
        k,
        microseconds: 88.0,
        p10: 87.0,
        p90: 89.0,
        cublaslt: 88.0,
        choices: choices
            .iter()
            .map(|(name, setting)| (name.clone(), setting.to_string()))
            .collect(),
    });
    tuned
}

fn choose(tables: &[Tuned], base: &Variant, [m, n, k]: [u32; 3]) -> tuned::Choice {
    let shape = Shape::new(m, n, k);
    let (program, machine) = (schedules::gemm(), Machine::h200());
    tuned::select(tables, GPU, &program, base, &shape, &machine)
        .unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_winner_nearby_that_overflows_a_wave_here_is_not_taken() {
    let tiles = Variant::new(1).set("tiles", (128, 224)).choices;
    // 4x32 tiles there, one wave of 132 SMs; 4x37 here, two of them.
    let table = [won([512, 7168, 8192], &tiles)];
    let there = choose(&table, &Variant::new(1), [512, 7168, 8192]);
    assert!(there.measured);
    assert_eq!(there.variant.choices["tiles"], tiles["tiles"]);
    let here = choose(&table, &Variant::new(1), [512, 8192, 7168]);
    assert!(!here.measured);
    assert_ne!(here.variant.choices["tiles"], tiles["tiles"]);
}

#[test]
fn the_next_nearest_winner_is_taken_where_the_nearest_is_not_believed() {
    let slow = Variant::new(1).set("tiles", (8, 64)).choices;
    let size = [2048, 4096, 4096];
    let favourite = choose(&[], &Variant::new(1), size);
    let further = won([2048, 4096, 5120], &favourite.variant.choices);
    let nearest = won([2048, 4096, 4160], &slow);
    let choice = choose(&[nearest, further], &Variant::new(1), size);
    assert!(choice.measured);
    assert_eq!(choice.variant, favourite.variant);
}

/// Every variant that is legal on its own, or one of so many.
fn kernels(program: &Program, each: usize) -> Vec<Checked<Kernel>> {
    let all = tuned::combinations(program, &Variant::new(1), &BTreeMap::new());
    sampled(&all, each)
        .filter_map(|variant| lower(program, variant).and_then(verify::kernel).ok())
        .collect()
}

/// Every variant of gemm that is legal on its own.
fn of_gemm() -> &'static [Checked<Kernel>] {
    static ALL: OnceLock<Vec<Checked<Kernel>>> = OnceLock::new();
    ALL.get_or_init(|| kernels(&schedules::gemm(), 1))
}

#[test]
fn the_ranking_is_that_of_all_predictions_to_a_hundredth() {
    let machine = Machine::h200();
    for (program, sizes) in [
        (
            schedules::gemm(),
            vec![[512, 8192, 7168], [100, 264, 1000], [16, 2560, 8192]],
        ),
        (schedules::linear_gelu(), vec![[1000, 3000, 520]]),
    ] {
        let kernels = kernels(&program, 7);
        for [m, n, k] in sampled(sizes, 2) {
            let shape = Shape::new(m, n, k);
            let plans = kernels.iter().enumerate().filter_map(|(which, kernel)| {
                let plan = verify::plan(kernel, &shape, &machine).ok()?;
                Some((which, tuned::predicted(kernel, &plan, &machine)))
            });
            let all: BTreeMap<usize, f64> = plans.collect();
            let ranked: Vec<_> = Ranking::new(&kernels, &shape, &machine).collect();
            let mut least = f64::INFINITY;
            for one in ranked.iter().rev() {
                assert_eq!(one.seconds, all[&one.which], "{} at {shape}", program.name);
                least = least.min(one.seconds);
                assert!(one.seconds <= 1.01 * least, "{} at {shape}", program.name);
            }
            assert_eq!(ranked.len(), all.len(), "{} at {shape}", program.name);
        }
    }
}

#[test]
fn no_plan_is_faster_than_the_least_of_its_kernel() {
    let machine = Machine::h200().at_power_limit();
    for schedule in schedules::ALL {
        let program = schedule();
        for world in [1, 3] {
            let all = tuned::combinations(&program, &Variant::new(world), &BTreeMap::new());
            for variant in sampled(all.iter().step_by(5), 3) {
                let Ok(kernel) = lower(&program, variant).and_then(verify::kernel) else {
                    continue;
                };
                for [m, n, k] in [[768, 512, 256], [1000, 264, 520]] {
                    let shape = Shape::new(m, n, k);
                    let Ok(plan) = verify::plan(&kernel, &shape, &machine) else {
                        continue;
                    };
                    let outline =
                        model::outline(&kernel, &shape, &machine).expect("it was planned");
                    assert_eq!(outline.grid, plan.grid);
                    let least = outline.least;
                    let total = model::predict(&kernel, &plan, &machine)
                        .expect("it ends")
                        .total;
                    assert!(least <= total, "{variant} at {shape}: {least} of {total}");
                    let seconds = model::seconds(&kernel, &plan, &machine).expect("it ends");
                    assert_eq!(seconds.to_bits(), total.to_bits(), "{variant} at {shape}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if wide() { 24 } else { 4 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the model says of it, what won there is taken; and what the user settles stays.
    #[test]
    fn an_exact_hit_is_taken_and_what_is_settled_stays(
        m in 1u32..700,
        n in (1u32..80).prop_map(|n| n * 8),
        k in (1u32..40).prop_map(|k| k * 8),
        which in any::<prop::sample::Index>(),
        settled in any::<prop::sample::Index>(),
    ) {
        let (program, machine) = (schedules::gemm(), Machine::h200());
        let size = [m, n, k];
        let shape = Shape::new(m, n, k);
        let base = Variant::new(1);
        let kernels = of_gemm();
        let winner = &kernels[which.index(kernels.len())];
        let table = [won(size, &winner.variant.choices)];
        let legal = verify::plan(winner, &shape, &machine).is_ok()
            && counterflow::codegen::sm90::build(winner)
                .and_then(counterflow::codegen::verify::pipeline)
                .is_ok();
        let choice = choose(&table, &base, size);
        prop_assert_eq!(choice.measured, legal, "illegal winners are passed over");
        prop_assert!(!legal || choice.variant.choices == winner.variant.choices);

        let open = tuned::choices(&program);
        let (name, options) = open.iter().nth(settled.index(open.len())).expect("a choice");
        let base = base.set(name, options[options.len() / 2]);
        let fits = |kernel: &Checked<Kernel>| {
            kernel.variant.choices[*name] == base.choices[*name]
                && verify::plan(kernel, &shape, &machine).is_ok()
        };
        match tuned::select(&table, GPU, &program, &base, &shape, &machine) {
            Ok(choice) => {
                prop_assert_eq!(choice.variant.choices[*name], base.choices[*name]);
                let agrees = winner.variant.choices[*name] == base.choices[*name];
                prop_assert_eq!(choice.measured, legal && agrees);
            }
            Err(error) => prop_assert!(!kernels.iter().any(fits), "{}", error),
        }
    }
}

#[test]
fn where_no_variant_fits_the_refusal_is_of_one_that_has_a_meaning() {
    let (program, machine) = (schedules::gemm(), Machine::h200());
    let base = Variant::new(1).set("gemm.split", 4);
    let shape = Shape::new(64, 64, 128);
    let error =
        tuned::select(&[], GPU, &program, &base, &shape, &machine).expect_err("too few steps");
    assert!(
        error.to_string().contains("4 CTAs split 2 steps"),
        "{error}"
    );
}

/// Tiles whose width is no multiple of 64 read lines twice where that many elements lie together.
#[test]
fn mn_major_costs_odd_tiles_what_was_measured() {
    let (program, machine) = (schedules::gemm(), Machine::h200());
    let shape = Shape::new(8192, 8192, 8192);
    // in ping-pong, in microseconds.
    for (layout, tile, measured) in [
        (Layout::Nn, (128, 128), 1578.0),
        (Layout::Nn, (128, 160), 1753.0),
        (Layout::Nn, (128, 144), 2218.0),
        (Layout::Tn, (128, 128), 1652.0),
        (Layout::Tn, (128, 160), 1780.0),
        (Layout::Tn, (128, 144), 2137.0),
    ] {
        let variant = Variant::new(1).layout(layout).set("tiles", tile);
        let variant = variant.set("gemm.ping_pong", true);
        let kernel = lower(&program, &variant).and_then(verify::kernel);
        let kernel = kernel.expect("legal");
        let plan = verify::plan(&kernel, &shape, &machine).expect("legal");
        let ratio = tuned::predicted(&kernel, &plan, &machine) * 1e6 / measured;
        println!("{variant}: {ratio:.3} of what was measured");
        assert!((0.93..1.07).contains(&ratio), "{variant}: {ratio:.3}");
    }
}

/// Where an H200 reads tiles of 128x128 through L2 fast enough, an H100 does not.
#[test]
fn large_products_have_large_tiles_on_an_h100() {
    let tile = |program: &Program, world, machine: &Machine, [m, n, k]: [u32; 3]| {
        let shape = Shape::new(m, n, k);
        let choice = tuned::select(&[], GPU, program, &Variant::new(world), &shape, machine);
        let choice = choice.unwrap_or_else(|error| panic!("{error}"));
        choice.variant.choices["tiles"]
    };
    let (h100, h200) = (Machine::h100(), Machine::h200());
    // The gathers: 5278 µs in 128x192 and 5361 in 128x256, where 128x128 in ping-pong takes 6380. The two are nearer to each other than
    // predictions are to times.
    let large = ["128x256", "128x192"];
    for (program, size, fast) in [
        (schedules::gemm_ar(), [8192, 8192, 14336], &large[..1]),
        (schedules::gemm_rs(), [8192, 8192, 4096], &large[..1]),
        (schedules::ag_gemm(), [8192, 28672, 8192], &large),
        (schedules::ag_gemm_pull(), [8192, 28672, 8192], &large),
    ] {
        let tile = tile(&program, 2, &h100, size).to_string();
        assert!(
            fast.contains(&&tile[..]),
            "{} {size:?}: {tile}",
            program.name
        );
    }
    let area = |tile: Setting| match tile {
        Setting::Pair(rows, columns) => rows * columns,
        Setting::One(_) => 0,
    };
    let one = schedules::gemm();
    let size = [8192, 8192, 4096];
    assert!(area(tile(&one, 1, &h100, size)) > area(tile(&one, 1, &h200, size)));
}
