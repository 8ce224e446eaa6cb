//! The variant for a shape: what was measured nearby, else what the model likes best.

use counterflow::codegen::lower::lower;
use counterflow::codegen::program::Setting;
use counterflow::codegen::verify;
use counterflow::tuned::{self, Key, Tuned, Winner};
use counterflow::{Machine, Program, Shape, Variant, schedules};
use std::collections::BTreeMap;

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
        among: tuned::offered(program),
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
    let near = select(std::slice::from_ref(&slow), &program, &base, 2100);
    assert!(near.measured);
    assert_eq!(near.variant.choices["comm.ctas"].to_string(), "2");
    let far = select(std::slice::from_ref(&slow), &program, &base, 8192);
    assert!(
        !far.measured,
        "no measurement speaks for four times the rows"
    );
    let other = select(&[slow], &program, &Variant::new(2), 2100);
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
fn what_is_no_longer_legal_is_not_taken() {
    let program = schedules::gemm();
    for choices in [[("tiles", "8x8")], [("panels", "3")], [("tiles", "wide")]] {
        let stale = measured(&program, 1, &choices);
        let choice = select(&[stale], &program, &Variant::new(1), 2048);
        assert!(!choice.measured, "{choices:?}");
    }
    // Measured when there was less to choose from.
    let mut fewer = program.clone();
    fewer.tunables[0].options.pop();
    let stale = measured(&fewer, 1, &[("tiles", "128x128")]);
    assert!(!select(&[stale], &program, &Variant::new(1), 2048).measured);
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
    let choice = select(
        &[measured(&older, 1, &named)],
        &program,
        &Variant::new(1),
        2048,
    );
    assert!(choice.measured);
    assert!(!choice.variant.choices.contains_key("gemm.split"));
}

#[test]
fn few_tiles_of_a_deep_product_share_their_steps() {
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
    for schedule in [
        schedules::gemm,
        schedules::ag_gemm,
        schedules::gemm_rs,
        schedules::gemm_ar,
    ] {
        let program = schedule();
        let base = Variant::new(4);
        let all = tuned::combinations(&program, &base, &BTreeMap::new());
        let open = tuned::choices(&program);
        assert_eq!(all.len(), tuned::offered(&program));
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

/// What was measured on an H200: medians of every variant in the same run, shape by shape.
fn runs() -> BTreeMap<[u32; 3], Vec<(Variant, f64)>> {
    let mut runs: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in include_str!("measured/gemm.csv").lines().skip(1) {
        let words: Vec<&str> = line.split(',').collect();
        let size = [0, 1, 2].map(|at| words[at].parse().expect("a size"));
        let mut variant = Variant::new(1);
        for (name, at) in [("tiles", 3), ("gemm.cluster", 4), ("gemm.ping_pong", 5)] {
            variant = variant.set(name, Setting::parse(words[at]).expect("a setting"));
        }
        let median = words[6].parse().expect("a time");
        let program = schedules::gemm();
        let offered = tuned::choices(&program);
        let offers = |(name, setting): (&String, &Setting)| offered[&name[..]].contains(setting);
        if variant.choices.iter().all(offers) {
            runs.entry(size).or_default().push((variant, median));
        }
    }
    runs
}

#[test]
fn the_models_favourite_is_about_as_fast_as_the_fastest_measured() {
    let (program, machine) = (schedules::gemm(), Machine::h200());
    let mut logs = Vec::new();
    for ([m, n, k], measured) in runs() {
        let shape = Shape::new(m, n, k);
        let rank = |variant: &Variant| {
            let kernel = lower(&program, variant)
                .and_then(verify::kernel)
                .expect("legal");
            let plan = verify::plan(&kernel, &shape, &machine).expect("legal");
            tuned::predicted(&kernel, &plan, &machine)
        };
        let favourite = measured
            .iter()
            .min_by(|(a, _), (b, _)| rank(a).total_cmp(&rank(b)))
            .expect("variants");
        let fastest = measured.iter().map(|(_, median)| *median);
        let ratio = favourite.1 / fastest.fold(f64::INFINITY, f64::min);
        println!("{shape}: {} takes {ratio:.3} of the fastest", favourite.0);
        assert!(ratio < 1.06, "{shape}: {} takes {ratio:.3}", favourite.0);
        logs.push(ratio.ln());
    }
    let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
    println!("geometric mean {mean:.3}");
    assert!(mean < 1.01, "geometric mean {mean:.3}");
}

#[test]
fn what_comes_with_the_package_is_used() {
    let (program, machine) = (schedules::gemm(), Machine::h200());
    let tables = [Tuned::embedded().expect("a table")];
    for [m, n, k] in runs().into_keys().filter(|[m, ..]| *m <= 2048) {
        let shape = Shape::new(m, n, k);
        let base = Variant::new(1);
        let choice = tuned::select(&tables, "NVIDIA H200", &program, &base, &shape, &machine);
        assert!(choice.expect("a variant").measured, "{shape}");
    }
}
