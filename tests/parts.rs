//! Parts of K that different CTAs multiply: right on emulated ranks, refused where they do not add up, and compiled.

#[path = "common/gates.rs"]
mod gates;

use counterflow::codegen::interp::{self, Options};
use counterflow::codegen::lower::lower;
use counterflow::codegen::verify;
use counterflow::prelude::*;
use counterflow::{
    Arch, Checked, Dtype, Layout, Machine, Plan, Program, Shape, Variant, schedules,
};
use gates::all_pass;

fn variant(world: u32, parts: u32) -> Variant {
    Variant::new(world).arch(Arch::Cpu).set("parts", parts)
}

#[test]
fn parts_are_added_in_order_whatever_their_number_and_depth() {
    let program = schedules::gemm_split();
    for (world, parts, k) in [
        (1, 2, 200),
        (1, 3, 200),
        (2, 3, 136),
        (1, 4, 512),
        (3, 4, 456),
    ] {
        let variant = variant(world, parts).set("tiles", (8, 8));
        let kernel = lower(&program, &variant)
            .and_then(verify::kernel)
            .expect("legal");
        let series = verify::series(&kernel, &Shape::new(29, 24, k), &Machine::h200());
        let series = series.expect("a series");
        let plans: Vec<Checked<Plan>> = [29, 1, 7, 29]
            .map(|m| series.plan(&Shape::new(m, 24, k)).expect("a plan"))
            .into();
        let launches: Vec<&Checked<Plan>> = plans.iter().collect();
        for seed in 0..4 {
            let run = || interp::run(&series, &launches, &Options::seed(seed), interp::uniform(5));
            let outcome = run().unwrap_or_else(|failure| panic!("{parts} of {k}: {failure}"));
            for (launch, plan) in plans.iter().enumerate() {
                let expected = interp::reference(&kernel, plan, launch, interp::uniform(5));
                interp::compare(&outcome, &expected.expect("a reference"))
                    .unwrap_or_else(|error| panic!("{parts} of {k}, launch {launch}: {error}"));
            }
        }
    }
}

#[test]
fn every_tile_and_number_of_parts_passes_the_gates() {
    let mut cases = Vec::new();
    for tile in [(128, 256), (128, 192), (128, 128)] {
        for parts in [2, 3, 4] {
            let variant = Variant::new(1).set("tiles", tile).set("parts", parts);
            cases.push((schedules::gemm_split(), variant));
        }
    }
    let kind = |dtype, layout| {
        let variant = Variant::new(1).dtype(dtype).layout(layout);
        (schedules::gemm_split(), variant.set("tiles", (128, 128)))
    };
    cases.push(kind(Dtype::F16, Layout::Nt));
    cases.push(kind(Dtype::Bf16, Layout::Nn));
    cases.push(kind(Dtype::Bf16, Layout::Tn));
    all_pass(&cases);
}

fn refused(program: &Program, k: u32) -> String {
    let kernel = lower(program, &variant(1, 3))
        .and_then(verify::kernel)
        .expect("legal");
    let plan = verify::plan(&kernel, &Shape::new(256, 256, k), &Machine::h200());
    plan.expect_err("no plan").to_string()
}

/// The part in the middle is stored, but not added.
#[schedule]
fn gap(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let parts = splits(tune(3, 4));
    let partial = symmetric::<f32>(y, slots = parts.before_last());
    let done = counters(parts.before_last(), tiles);

    #[gemm]
    for s in parts.before_last() {
        for t in tiles.grouped() {
            partial[s][t] = dot(x[t][s], w[t][s]);
            done[s][t].add(1);
        }
    }
    #[gemm]
    for s in parts.last() {
        for t in tiles.grouped() {
            y[t] = dot(x[t][s], w[t][s]) + partial[0][t].wait(done[parts.before_last()][t]).sum();
        }
    }
}

/// Nobody adds the others.
#[schedule]
fn lonely(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let parts = splits(tune(3, 4));

    #[gemm]
    for s in parts.last() {
        for t in tiles.grouped() {
            y[t] = dot(x[t][s], w[t][s]);
        }
    }
}

/// A function of a part is no part.
#[schedule]
fn applied(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let parts = splits(tune(3, 4));
    let partial = symmetric::<f32>(y, slots = parts.before_last());
    let done = counters(parts.before_last(), tiles);

    #[gemm]
    for s in parts.before_last() {
        for t in tiles.grouped() {
            partial[s][t] = dot(x[t][s], w[t][s]).gelu();
            done[s][t].add(1);
        }
    }
    #[gemm]
    for s in parts.last() {
        for t in tiles.grouped() {
            y[t] = dot(x[t][s], w[t][s]) + partial[parts.before_last()][t].wait(done).sum();
        }
    }
}

/// The sum does not wait.
#[schedule]
fn hasty(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let parts = splits(tune(3, 4));
    let partial = symmetric::<f32>(y, slots = parts.before_last());

    #[gemm]
    for s in parts.before_last() {
        for t in tiles.grouped() {
            partial[s][t] = dot(x[t][s], w[t][s]);
        }
    }
    #[gemm]
    for s in parts.last() {
        for t in tiles.grouped() {
            y[t] = dot(x[t][s], w[t][s]) + partial[parts.before_last()][t].sum();
        }
    }
}

/// Whoever waits comes before whom it waits for.
#[schedule]
fn backwards(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 256));
    let parts = splits(tune(3, 4));
    let partial = symmetric::<f32>(y, slots = parts.before_last());
    let done = counters(parts.before_last(), tiles);

    #[gemm]
    for s in parts.last() {
        for t in tiles.grouped() {
            y[t] = dot(x[t][s], w[t][s]) + partial[parts.before_last()][t].wait(done).sum();
        }
    }
    #[gemm]
    for s in parts.before_last() {
        for t in tiles.grouped() {
            partial[s][t] = dot(x[t][s], w[t][s]);
            done[s][t].add(1);
        }
    }
}

#[test]
fn parts_that_do_not_add_up_are_refused() {
    let found = |program: Program, words: &str| {
        let told = refused(&program, 512);
        assert!(told.contains(words), "{}: {told}", program.name);
    };
    found(gap(), "adds up parts of K that do not make up one product");
    found(lonely(), "stores a product over 128 of 512 elements of K");
    found(
        applied(),
        "adds up parts of K that do not make up one product",
    );
    found(hasty(), "race");
    found(backwards(), "waits");
}

#[test]
fn a_part_without_a_step_is_refused_with_numbers() {
    let variant = Variant::new(1).set("parts", 3);
    let kernel = lower(&schedules::gemm_split(), &variant).and_then(verify::kernel);
    let kernel = kernel.expect("legal");
    let series = verify::series(&kernel, &Shape::new(256, 256, 264), &Machine::h200());
    let refused = series
        .expect("2, 2 and 1 steps")
        .plan(&Shape::new(256, 256, 256))
        .expect_err("2, 2 and none");
    let told = refused.to_string();
    assert!(
        told.contains("part 2 of a K of 256 in 3 has no step of 64: each part has 2"),
        "{told}"
    );
}
