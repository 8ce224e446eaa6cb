//! Choosing among thousands of variants takes short cuts. The choice is that of who looks at each of them.

use crate::wide::wide;
use counterflow::codegen::bits::BitsClass;
use counterflow::codegen::lower::{Written, lower};
use counterflow::codegen::model::{self, Outlines};
use counterflow::codegen::plan::Plan;
use counterflow::codegen::verify;
use counterflow::tuned::{self, Ranking};
use counterflow::{
    Checked, Dtype, Error, Kernel, Layout, Machine, Program, Scales, Shape, Variant, schedules,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Predictions that differ by less are equal.
const ALIKE: f64 = 1.01;

/// A way to encode operands, of all that ops have.
fn encodings() -> impl Strategy<Value = Variant> {
    let plain = [Dtype::Bf16, Dtype::F16].map(|dtype| Variant::new(1).dtype(dtype));
    let fp8 = Variant::new(1).dtype(Dtype::E4M3);
    let scaled = [Scales::PerTensor, Scales::PerRow].map(|scales| fp8.clone().scales(scales));
    let mixed = Variant::new(1).dtype(Dtype::E5M2).rhs_dtype(Dtype::E4M3);
    let promoted = Variant {
        promote: true,
        ..fp8.clone()
    };
    let all = plain
        .into_iter()
        .chain(scaled)
        .chain([fp8, mixed, promoted]);
    prop::sample::select(all.collect::<Vec<_>>())
}

/// A schedule of the library, and a variant with some of its choices settled, so that a few dozen are left.
fn asked() -> impl Strategy<Value = (Program, Variant)> {
    let world = prop_oneof![2 => Just(1u32), 1 => Just(2), 1 => Just(3), 1 => Just(4)];
    let layout = prop::sample::select(Layout::ALL.to_vec());
    let settled = prop::collection::vec(
        (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        2..5,
    );
    let parts = (
        0..schedules::ALL.len() * 2,
        world,
        layout,
        encodings(),
        settled,
    );
    parts.prop_map(|(which, world, layout, encoding, settled)| {
        // The schedules whose tiles' order is open come as often as all others together.
        let orders: [fn() -> Program; 2] = [schedules::gemm, schedules::swiglu];
        let program = match schedules::ALL.get(which) {
            Some(schedule) => schedule(),
            None => orders[which % 2](),
        };
        let mut base = Variant {
            world,
            layout,
            ..encoding
        };
        let all = tuned::choices(&program);
        let mut left: usize = all.values().map(|options| options.len()).product();
        for (name, option) in settled {
            let (name, options) = all.iter().nth(name.index(all.len())).expect("a choice");
            let settles = !base.choices.contains_key(*name) && !name.ends_with("grouped");
            if settles && left > if wide() { 400 } else { 60 } {
                left /= options.len();
                base = base.set(name, options[option.index(options.len())]);
            }
        }
        (program, base)
    })
}

/// What every variant is predicted to take, by no short cut: its outline, and the time of its verified plan.
fn exhaustive(
    kernels: &[Checked<Kernel>],
    shape: &Shape,
    machine: &Machine,
) -> Vec<Option<(f64, f64)>> {
    let hot = machine.at_power_limit();
    let one = |kernel| {
        let outline = model::outline(kernel, shape, &hot).ok()?;
        let worth = tuned::worth_asking(kernel, &outline.grid, machine);
        let plan = verify::plan(kernel, shape, machine).ok()?;
        let seconds = tuned::predicted(kernel, &plan, machine);
        Some((if worth { outline.least } else { f64::INFINITY }, seconds))
    };
    kernels.iter().map(one).collect()
}

/// The order in which kernels are given out, by the rule alone: who has the least outline is looked at, and comes as if it were
/// a hundredth faster than predicted.
fn in_order(all: &[Option<(f64, f64)>]) -> Vec<(usize, f64)> {
    let known = all
        .iter()
        .enumerate()
        .filter_map(|(which, of)| Some((which, (*of)?)));
    let mut open: Vec<_> = known
        .map(|(which, (least, seconds))| (least, which, seconds, false))
        .collect();
    let mut given = Vec::new();
    while !open.is_empty() {
        let least = |a: &usize, b: &usize| {
            (open[*a].0, open[*a].1)
                .partial_cmp(&(open[*b].0, open[*b].1))
                .expect("numbers")
        };
        let first = (0..open.len()).min_by(least).expect("some");
        let (_, which, seconds, looked_at) = open.swap_remove(first);
        match looked_at {
            true => given.push((which, seconds)),
            false => open.push((seconds / ALIKE, which, seconds, true)),
        }
    }
    given
}

fn lowered(program: &Program, variant: &Variant) -> Result<Checked<Kernel>, Error> {
    Ok(verify::kernel(lower(program, variant)?)?)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if wide() { 200 } else { 12 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_choice_is_that_of_all_predictions(
        (program, base) in asked(),
        m in prop_oneof![1u32..40, 40u32..3000],
        n in (1u32..300).prop_map(|n| n * 8),
        k in (1u32..160).prop_map(|k| k * 16),
        h100 in any::<bool>(),
    ) {
        let machine = if h100 { Machine::h100() } else { Machine::h200() };
        let shape = Shape::new(m, n, k);
        let all = tuned::combinations(&program, &base, &BTreeMap::new());
        let mut variants = all.iter().filter_map(|variant| Some((variant, lowered(&program, variant).ok()?)));
        let (variants, kernels): (Vec<_>, Vec<_>) = variants.by_ref().unzip();
        let predictions = exhaustive(&kernels, &shape, &machine);
        for (variant, of) in variants.iter().zip(&predictions) {
            if let Some((least, seconds)) = of {
                prop_assert!(least <= seconds, "{} {variant} at {shape}: a bound of {least}, {seconds} predicted", program.name);
            }
        }
        let expected = in_order(&predictions);
        let ranking = Ranking::new(&kernels, &shape, &machine);
        let ranked: Vec<_> = ranking.map(|one| (one.which, one.seconds)).collect();
        prop_assert_eq!(&ranked, &expected, "{} {} at {}", program.name, base, shape);
        let mut known = expected.iter();
        let expected = known.find(|(which, _)| verify::warps(&kernels[*which]).is_ok());
        match (tuned::select(&[], "a GPU", &program, &base, &shape, &machine), expected) {
            (Ok(choice), Some((which, _))) => prop_assert_eq!(&choice.variant, variants[*which], "{} at {}", program.name, shape),
            (Err(_), None) => {}
            (choice, expected) => prop_assert!(false, "{choice:?}, expected {expected:?}"),
        }
    }

    /// Nothing that is decided of a kernel depends on the order of its tiles, and its outline in another order is that of the kernel
    /// that has it.
    #[test]
    fn kernels_of_one_group_differ_in_the_order_of_tiles_alone(
        (program, base) in asked(),
        m in 1u32..3000,
        n in (1u32..300).prop_map(|n| n * 8),
        k in (1u32..160).prop_map(|k| k * 16),
    ) {
        let (shape, machine) = (Shape::new(m, n, k), Machine::h200());
        let Ok(written) = Written::new(&program, &base) else {
            prop_assert!(lower(&program, &base).is_err());
            return Ok(());
        };
        let open = tuned::choices(&program);
        let orders: Vec<_> = open.keys().filter(|name| written.orders_only(name)).collect();
        prop_assert_eq!(orders.len(), open.keys().filter(|name| name.ends_with("grouped")).count(), "{}", program.name);
        for variant in tuned::combinations(&program, &base, &BTreeMap::new()) {
            let own = written.lower(&variant.choices);
            let alone = lower(&program, &variant);
            prop_assert_eq!(format!("{:?}", own), format!("{:?}", alone), "{} {}", program.name, variant);
            let mut first = variant.clone();
            for name in &orders {
                first = first.set(name, open[**name][0]);
            }
            let (kernel, own) = match (lowered(&program, &first), lowered(&program, &variant)) {
                (Ok(kernel), Ok(own)) => (kernel, own),
                (Err(first), Err(own)) => {
                    prop_assert_eq!(first.to_string(), own.to_string());
                    continue;
                }
                (first, own) => return Err(TestCaseError::fail(format!("{first:?}, {own:?}"))),
            };
            prop_assert!(tuned::reordered(&kernel, &own), "{} {variant}", program.name);
            prop_assert_eq!(format!("{:?}", kernel.decided()), format!("{:?}", own.decided()));
            let bits = [&kernel, &own].map(|of| BitsClass::of(of).map_err(|error| error.to_string()));
            prop_assert_eq!(&bits[0], &bits[1], "{} {}", program.name, variant);
            match (Outlines::new(&kernel, &shape, &machine), Plan::outlined(&own, &shape, &machine)) {
                (Ok(outlines), Ok(plan)) => {
                    prop_assert_eq!(outlines.grid(), plan.grid);
                    let outline = model::outline(&own, &shape, &machine).expect("it has a plan");
                    let least = outlines.least(&written.orders(&variant.choices));
                    prop_assert_eq!(least.to_bits(), outline.least.to_bits(), "{} {}", program.name, variant);
                }
                (Err(first), Err(own)) => prop_assert_eq!(first.to_string(), own.to_string()),
                (first, own) => return Err(TestCaseError::fail(format!("{first:?}, {own:?}"))),
            }
        }
    }
}
