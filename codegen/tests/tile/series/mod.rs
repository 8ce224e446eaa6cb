//! Series: whatever launches of one follow each other, none fails; launches of two are refused together.

mod halves;
mod random;
mod scratch;
mod shared;
mod size;

use crate::fixtures::small;
use crate::fixtures::wide::wide;
use counterflow_codegen::builder::*;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{Loc, Program};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::value::{Binary, ScalarFn, Value};
use counterflow_codegen::variant::{Arch, Variant};
use counterflow_codegen::verify::{self, Checked, Series};
use counterflow_emulator::{self as interp, Failure, Options};

fn lowered(program: &Program, world: u32) -> Result<Checked<Kernel>, Diagnostics> {
    lower(program, &Variant::new(world).arch(Arch::Cpu)).and_then(verify::kernel)
}

fn kernel(program: &Program, world: u32) -> Checked<Kernel> {
    lowered(program, world).unwrap_or_else(|error| panic!("{}: {error}", program.name))
}

fn series(program: &Program, world: u32, most: &Shape) -> Series {
    let series = verify::series(&kernel(program, world), most, &Machine::h200());
    series.unwrap_or_else(|error| panic!("{}: {error}", program.name))
}

/// The first finding, with the source lines that it points at.
fn trace(found: &Diagnostics) -> String {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    found.first().text(&|at: Loc| {
        let text = std::fs::read_to_string(root.join(at.file())).unwrap_or_default();
        let line = text.lines().nth(at.line() as usize - 1);
        line.unwrap_or_default().trim().into()
    })
}

/// Many orders of turns, watching who touches what.
fn interleave(
    series: &Series,
    launches: &[&Checked<Plan>],
    seeds: std::ops::Range<u64>,
) -> Result<(), Failure> {
    for seed in seeds {
        let options = Options {
            step_limit: 1 << 20,
            ..Options::seed(seed).tags_only()
        };
        interp::run(series, launches, &options, |_, _| {})?;
    }
    Ok(())
}

fn rows(m: u32) -> Shape {
    Shape::new(m, 24, 16)
}

/// Plans of `gemm_rs_add`, each of a series of its own, and the series of the first.
fn apart() -> (Series, Vec<Checked<Plan>>) {
    let of = |m| series(&small::gemm_rs_add(), 4, &rows(m));
    let plans = [1024, 512, 3, 1000].map(|m| of(m).plan(&rows(m)).expect("a plan"));
    (of(1024), plans.into())
}

#[test]
fn launches_of_several_series_are_refused() {
    let (series, plans) = apart();
    let refused = interleave(&series, &plans.iter().collect::<Vec<_>>(), 0..1);
    let told = refused.expect_err("refused").to_string();
    insta::assert_snapshot!(told, @"
    error[shape]: the plan of 512x24x16 does not belong to this series: gemm_rs_add of up to 1024x24x16
      = launches share counters, and each series places their cells
      help: make one series with the largest size of every dimension, and make all plans with its `plan`
    ");
    // Plans of a series that was made anew for the same are the same.
    let again = apart().0.plan(&rows(3)).expect("a plan");
    let plans = [1024, 512, 1000].map(|m| series.plan(&rows(m)).expect("a plan"));
    let seeds = if wide() { 20 } else { 5 };
    let launches: Vec<_> = plans.iter().chain([&again]).collect();
    interleave(&series, &launches, 0..seeds).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn a_launch_above_the_most_is_refused() {
    let series = series(&small::gemm_rs_add(), 4, &rows(64));
    let told = series.plan(&rows(65)).expect_err("too large").to_string();
    insta::assert_snapshot!(told, @"
    error[shape]: m is 65 in a series of up to 64
      help: make the series for at least m = 65
    ");
    // Its cells are a column of tiles each.
    let fewer = Shape { n: 16, ..rows(64) };
    let told = series.plan(&fewer).expect_err("cells move").to_string();
    insta::assert_snapshot!(told, @"
    error[shape]: n is 16 in a series of 24: every column of `tiles` has counter cells, which would move
      help: make another series for n = 16
    ");
}

/// What is not given is said.
#[test]
fn a_plan_names_every_dimension() {
    let series = series(
        &visiting(|me, step, world| (me + step) % world),
        4,
        &rows(29),
    );
    let plan = series.plan(&rows(7)).expect("a plan");
    assert_eq!(plan.shape.to_string(), "7x24x16 x.columns=16 x.rows=7");
    assert_eq!(series.most().to_string(), "29x24x16 x.columns=16 x.rows=29");
}

/// A gather whose comm CTAs visit ranks in that order.
fn visiting(order: fn(u32, u32, u32) -> u32) -> Program {
    let mut s = ScheduleBuilder::new("visiting");
    let x = s.gathered("x", Bf16);
    let chunks = s.chunks("chunks", x, 2u32);
    let arrived = s.counters("arrived", [chunks.into()]);
    s.comm(2u32, |s| {
        s.for_ranks("peer", ranks().by(order), |s, peer| {
            s.when(Cond::compare(Comparison::Ne, &peer, me()), |s| {
                s.for_items("c", chunks.of(me()), |s, c| {
                    s.copy(x.on(&peer).at(c), x.at(c));
                    s.signal(arrived.on(&peer).at(c), 1);
                });
            });
        });
        s.for_ranks("shard", ranks().after_me(), |s, shard| {
            s.for_items("c", chunks.of(&shard), |s, c| s.wait(arrived.at(c)));
        });
    });
    s.finish()
}

#[test]
fn orders_that_differ_tell_plans_apart() {
    let hash = |order| {
        let series = series(&visiting(order), 4, &rows(16));
        series.plan(&rows(16)).expect("a plan").hash
    };
    let onward = hash(|me, step, world| (me + step) % world);
    assert_ne!(onward, hash(|me, step, _| me ^ step));
    // What an order is counts, not how it is written.
    assert_eq!(onward, hash(|me, step, world| (step + world + me) % world));
}

/// A product whose store calls `capped`, with that body.
fn capping(body: Value) -> Program {
    let capped = ScalarFn {
        name: "capped",
        params: &["x"],
        body: body.into(),
    };
    let mut s = ScheduleBuilder::new("capping");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.out("y", Bf16);
    let tiles = s.tiles("tiles", y, (8u32, 8u32));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(1), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product.call(capped.clone(), []));
        });
    });
    s.finish()
}

#[test]
fn functions_that_differ_in_their_bodies_tell_plans_apart() {
    let hash = |most: f32| {
        let body = Value::Arg(0).combine(Binary::Min, most);
        let series = series(&capping(body), 1, &rows(16));
        series.plan(&rows(16)).expect("a plan").hash
    };
    assert_ne!(hash(6.0), hash(8.0));
    assert_eq!(hash(6.0), hash(6.0));
}

#[cfg(debug_assertions)]
mod undone {
    use super::*;
    use counterflow_codegen::undo::{Fix, undoing};

    #[test]
    fn launches_of_several_series_fail() {
        let (series, plans) = apart();
        let launches: Vec<_> = plans.iter().collect();
        let seeds = if wide() { 50 } else { 15 };
        let failed = (0..seeds).filter(|seed| {
            undoing(Fix::Series, || {
                interleave(&series, &launches, *seed..seed + 1)
            })
            .is_err()
        });
        assert_eq!(failed.count() as u64, seeds);
    }
}
