//! Wholes that only a reading of all statements finds: operands that are computed, functions that depend on the rank, terms
//! of another rank than the owner, sums of inputs.

use super::meaning::{TILE, agrees, differ, gemm, planted, provoked};
use super::padded;
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::value::Value;
use counterflow_codegen::variant::{Arch, Variant};
use counterflow_emulator::{self as interp, Says};

/// y = reduce_scatter(own): `part` of it goes to its owner from every rank, `whole` makes y of the sum.
fn reduce_scatter(
    s: &mut ScheduleBuilder,
    part: impl Fn(&mut ScheduleBuilder, Item) -> Value,
    whole: impl Fn(&mut ScheduleBuilder, Item, TensorRef, Value),
) {
    let y = s.reduce_scattered("y", Bf16);
    let tiles = s.tiles("tiles", y, TILE);
    let partial = s.symmetric("partial", Bf16, y, world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    gemm(s, |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let mine = part(s, t);
                s.store(partial.on(&owner).at(me()).at(t), mine);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            let mine = part(s, t);
            s.wait(landed.at(others()).at(t));
            let theirs = s.sum(partial.at(others()).at(t));
            whole(s, t, y, mine + theirs);
        });
    });
}

/// y = reduce_scatter(silu(x · uᵀ) · dᵀ): what is multiplied is made by each rank. `again` adds the second product twice.
fn mlp_reduced(again: bool) -> Program {
    let mut s = ScheduleBuilder::new("mlp_reduced");
    let [x, up, down, like] = ["x", "up", "down", "like"].map(|name| s.local(name, Bf16));
    let hidden = s.symmetric("hidden", Bf16, like.whole(), 1);
    let first = s.tiles("first", hidden, TILE);
    let made = s.counters("made", [first.into()]);
    gemm(&mut s, |s| {
        s.for_items("t", first.all(), |s, t| {
            let product = s.dot(x.at(t), up.at(t));
            s.store(hidden.at(t), product.silu());
            s.signal(made.at(t), 1);
        });
    });
    let part = |s: &mut ScheduleBuilder, t: Item| {
        s.wait(made.at(t.rows()));
        let product = s.dot(hidden.at(t), down.at(t));
        if again {
            product.clone() + product
        } else {
            product
        }
    };
    reduce_scatter(&mut s, part, |s, t, y, sum| s.store(y.at(t), sum));
    s.finish()
}

/// A sum of which the even ranks make another function than the odd ones.
fn by_rank() -> Program {
    let mut s = ScheduleBuilder::new("by_rank");
    let [x, w] = ["x", "w"].map(|name| s.local(name, Bf16));
    let part = |s: &mut ScheduleBuilder, t: Item| s.dot(x.at(t), w.at(t));
    reduce_scatter(&mut s, part, |s, t, y, sum| {
        let even = Cond::compare(Comparison::Eq, me() % 2, 0);
        s.when_else(
            even,
            |s| s.store(y.at(t), sum.clone().silu()),
            |s| s.store(y.at(t), sum.clone().relu()),
        );
    });
    s.finish()
}

/// What every rank holds, without a product, less a residual of the owner.
fn inputs_summed() -> Program {
    let mut s = ScheduleBuilder::new("inputs_summed");
    let [x, r] = ["x", "r"].map(|name| s.local(name, Bf16));
    let part = |s: &mut ScheduleBuilder, t: Item| {
        let own = s.load(x.at(t));
        own.clone() + own.clone() - own
    };
    reduce_scatter(&mut s, part, |s, t, y, sum| {
        let residual = s.load(r.at(t));
        s.store(y.at(t), sum - residual);
    });
    s.finish()
}

/// The sum is complete at the next rank, which adds its own bias and hands it to the owner.
fn completed_elsewhere() -> Program {
    let mut s = ScheduleBuilder::new("completed_elsewhere");
    let [x, w] = ["x", "w"].map(|name| s.local(name, Bf16));
    let bias = s.vector("bias", Bf16);
    let y = s.reduce_scattered("y", Bf16);
    let tiles = s.tiles("tiles", y, TILE);
    let partial = s.symmetric("partial", Bf16, y.whole(), world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    let done = s.counters("done", [tiles.into()]);
    gemm(&mut s, |s| {
        s.for_ranks("owner", ranks().from_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let mine = s.dot(x.at(t), w.at(t));
                let to = (owner.clone() + 1) % world();
                s.store(partial.on(to.clone()).at(me()).at(t), mine);
                s.signal(landed.on(to).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of((me() - 1) % world()), |s, t| {
            s.wait(landed.at(everyone()).at(t));
            let sum = s.sum(partial.at(everyone()).at(t));
            let bias = s.load(bias);
            let owner = (me() - 1) % world();
            s.store(y.on(owner.clone()).at(t), sum.bias(bias));
            s.signal(done.on(owner).at(t), 1);
        });
    });
    s.spare_warps(|s| s.for_items("t", tiles.of(me()), |s, t| s.wait(done.at(t))));
    s.finish()
}

#[test]
fn what_a_sum_over_ranks_promises_is_known_whatever_it_is_of() {
    // The columns of the second product are a dimension of their own, which stays.
    for (program, worlds, rows) in [
        (mlp_reduced(false), 1..=3, &[29][..]),
        (by_rank(), 1..=4, &[29, 7, 13]),
        (inputs_summed(), 2..=4, &[29, 7, 13]),
        (completed_elsewhere(), 2..=4, &[29, 7, 13]),
    ] {
        for world in worlds {
            let (n, k) = (16, 16);
            let said = agrees(&program, &Variant::new(world), rows, n, k);
            assert!(
                said.contains(&("y".into(), Says::Type)) && said.len() == 1,
                "{}: {said:?}",
                program.name
            );
            planted(&program, world);
        }
    }
}

/// Not the schedule's own statements: those are wrong here.
#[test]
fn a_product_of_what_is_computed_that_is_added_twice_is_wrong() {
    let (promised, written) = provoked(&mlp_reduced(true), 3);
    assert!(differ(&promised, &written));
}

/// What stands beside a sum is there once. Where several ranks add theirs, nobody knows whose.
#[test]
fn where_the_statements_leave_open_what_is_promised_nothing_is_compared() {
    let mut s = ScheduleBuilder::new("bias_in_parts");
    let [x, w] = ["x", "w"].map(|name| s.local(name, Bf16));
    let bias = s.vector("bias", Bf16);
    let part = |s: &mut ScheduleBuilder, t: Item| {
        let product = s.dot(x.at(t), w.at(t));
        product.bias(s.load(bias))
    };
    reduce_scatter(&mut s, part, |s, t, y, sum| s.store(y.at(t), sum));
    let kernel = lower(&s.finish(), &Variant::new(3).arch(Arch::Cpu)).expect("a schedule");
    let shape = padded(&kernel, 13, 24, 16);
    let plan = Plan::new(&kernel, &shape, &Machine::h200()).expect("a shape");
    let none = interp::reference(&kernel, &plan, 0, interp::uniform(1));
    let none = none.expect_err("whose bias?").to_string();
    assert_eq!(none, "no reference for y: 3 ranks add bias to the sum");
}
