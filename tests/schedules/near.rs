//! Random tables of winners against a ranking of every variant: what `select` takes of them by its short cuts is what its documentation
//! says, computed here without any.

use crate::wide::wide;
use counterflow::codegen::lower::lower;
use counterflow::codegen::program::Setting;
use counterflow::codegen::{sm90, verify};
use counterflow::tuned::{self, Key, Tuned, Winner};
use counterflow::{Checked, Dtype, Kernel, Machine, Program, Shape, Variant, schedules};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::OnceLock;

const GPU: &str = "a GPU";
/// What a ranking calls equal, and how much slower than its favourite a winner nearby may be predicted to be.
const ALIKE: f64 = 1.01;
const TRUST: f64 = 1.03;

type Choices = BTreeMap<String, Setting>;

/// `gemm` with a few options of each choice.
fn program() -> Program {
    let mut program = schedules::gemm();
    for choice in &mut program.tunables {
        let (each, most) = match &choice.name[..] {
            "tiles" => (3, 9),
            _ => (1, 2),
        };
        let some = choice.options.iter().step_by(each).take(most);
        choice.options = some.copied().collect();
    }
    program
}

/// Every variant, and its kernel if it is legal down to its warps.
fn all() -> &'static [(Choices, Option<Checked<Kernel>>)] {
    static ALL: OnceLock<Vec<(Choices, Option<Checked<Kernel>>)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let program = program();
        let all = tuned::combinations(&program, &Variant::new(1), &BTreeMap::new());
        let legal = |variant: &Variant| {
            let kernel = lower(&program, variant).and_then(verify::kernel).ok()?;
            let warps = sm90::build(&kernel).and_then(verify::pipeline);
            warps.is_ok().then_some(kernel)
        };
        let all = all.into_iter();
        all.map(|variant| (variant.choices.clone(), legal(&variant)))
            .collect()
    })
}

/// The predicted time of each variant that is legal for a shape.
fn predicted(shape: &Shape, machine: &Machine) -> Vec<Option<f64>> {
    let time = |kernel: &Checked<Kernel>| {
        let plan = verify::plan(kernel, shape, machine).ok()?;
        Some(tuned::predicted(kernel, &plan, machine))
    };
    let all = all().iter();
    all.map(|(_, kernel)| time(kernel.as_ref()?)).collect()
}

/// A winner: in which table, by how much its sides differ from the shape's, its type, and which variant of all, or of the
/// fastest few.
#[derive(Clone, Debug)]
struct Won {
    table: usize,
    factors: [f64; 3],
    f16: bool,
    fast: bool,
    which: prop::sample::Index,
}

fn won() -> impl Strategy<Value = Won> {
    // Half of them lie where the same tiles are filled, or nearly.
    let side = || prop_oneof![Just(1.0), 0.97..1.03, 0.65..1.55];
    let sides = [side().boxed(), side().boxed(), side().boxed()];
    (
        0..2usize,
        sides,
        any::<bool>(),
        any::<bool>(),
        any::<prop::sample::Index>(),
    )
        .prop_map(|(table, factors, f16, fast, which)| Won {
            table,
            factors,
            f16,
            fast,
            which,
        })
}

/// How far a shape is from another: none if one side is more than half an octave off.
fn distance(a: [u32; 3], b: [u32; 3]) -> Option<f64> {
    let mut sum = 0.0;
    for (a, b) in a.into_iter().zip(b) {
        let ratio = f64::from(a.max(b)) / f64::from(a.min(b));
        if ratio > std::f64::consts::SQRT_2 {
            return None;
        }
        sum += ratio.ln();
    }
    Some(sum)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if wide() { 200 } else { 30 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_choice_is_what_a_ranking_of_all_says(
        m in 1u32..1200,
        n in (4u32..400).prop_map(|n| n * 8),
        k in (8u32..400).prop_map(|k| k * 8),
        f16 in any::<bool>(),
        won in prop::collection::vec(won(), 0..7),
    ) {
        let (program, machine) = (program(), Machine::h200());
        let (shape, size) = (Shape::new(m, n, k), [m, n, k]);
        let times = predicted(&shape, &machine);
        let mut by_time: Vec<usize> = (0..times.len()).filter(|at| times[*at].is_some()).collect();
        by_time.sort_by(|a, b| times[*a].partial_cmp(&times[*b]).expect("numbers"));
        prop_assume!(!by_time.is_empty());
        let of = |f16: bool| Variant::new(1).dtype(if f16 { Dtype::F16 } else { Dtype::Bf16 });

        let mut tables = [Tuned::default(), Tuned::default()];
        for won in &won {
            let which = match won.fast {
                true => by_time[won.which.index(by_time.len().min(12))],
                false => won.which.index(times.len()),
            };
            let side = |at: usize, whole: f64| {
                let side = f64::from(size[at]) * won.factors[at] / whole;
                (side.round().max(1.0) * whole) as u32
            };
            let choices = all()[which].0.iter();
            tables[won.table].put(Winner {
                key: Key::new(GPU, &program, &of(won.f16)),
                m: side(0, 1.0),
                n: side(1, 8.0),
                k: side(2, 8.0),
                microseconds: 88.0,
                p10: 87.0,
                p90: 89.0,
                cublaslt: 88.0,
                choices: choices.map(|(name, setting)| (name.clone(), setting.to_string())).collect(),
            });
        }

        // As they are told to be taken: the same type, then the other one; the first table, then the second; the nearest first.
        let mut near = Vec::new();
        for f16 in [f16, !f16] {
            let key = Key::new(GPU, &program, &of(f16));
            for table in &tables {
                let own = table.winners().filter(|winner| winner.key == key);
                let own = own.filter_map(|won| Some((distance([won.m, won.n, won.k], size)?, won)));
                let mut own: Vec<_> = own.collect();
                own.sort_by(|a, b| a.0.total_cmp(&b.0));
                near.extend(own.into_iter().map(|(_, winner)| winner));
            }
        }
        let place = |winner: &Winner| {
            let same = |(choices, _): &(Choices, _)| {
                let mut choices = choices.iter();
                choices.all(|(name, setting)| winner.choices[name] == setting.to_string())
            };
            all().iter().position(same).expect("one of all")
        };
        let there = |winner: &&&Winner| {
            let Setting::Pair(rows, _) = all()[place(winner)].0["tiles"] else { return false };
            (winner.n, winner.k) == (n, k) && winner.m.div_ceil(rows) == m.div_ceil(rows)
        };
        let legal = |winner: &&&Winner| times[place(winner)].is_some();
        let choice = tuned::select(&tables, GPU, &program, &of(f16), &shape, &machine);
        let choice = choice.expect("a legal variant");
        if let Some(first) = near.iter().filter(legal).find(there) {
            prop_assert!(choice.measured, "measured there");
            prop_assert_eq!(&choice.variant.choices, &all()[place(first)].0);
            return Ok(());
        }
        let best = times[by_time[0]].expect("a time");
        // Kernels come in the order of their times to a hundredth, so a winner between these two may be taken or not.
        let mut may = Vec::new();
        let mut must = false;
        for winner in near.iter().filter(legal) {
            let time = times[place(winner)].expect("a time");
            if time <= TRUST * ALIKE * ALIKE * best {
                may.push(&all()[place(winner)].0);
            }
            must = time <= TRUST * best;
            if must {
                break;
            }
        }
        if choice.measured {
            prop_assert!(may.contains(&&choice.variant.choices), "{} is none of {may:?}", choice.variant);
        } else {
            prop_assert!(!must, "{:?} is as fast as {}", may.last(), choice.variant);
            let at = all().iter().position(|(choices, _)| *choices == choice.variant.choices);
            let time = times[at.expect("one of all")].expect("it is legal");
            prop_assert!(time <= ALIKE * best, "{time} of {best}");
        }
    }
}
