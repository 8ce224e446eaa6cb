//! What outputs are compared with: what a program says, one statement after another, and what the types of its outputs
//! promise. Both share nothing with the emulator's kernel but the program, and nothing with each other.

use super::{Case, library, padded, schedules};
use crate::fixtures::wide::{in_turn, sampled};
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::{Bf16, F32};
use counterflow_codegen::given::{Given, Matrix};
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::value::{Binary, Unary, Value};
use counterflow_codegen::variant::{Arch, Variant};
use counterflow_emulator::{
    self as interp, Expected, ExpectedTensor, NoReference, Options, Outcome, Says,
};
use std::collections::BTreeSet;

pub const TILE: (u32, u32) = (4, 8);

fn meaning(case: &Case, launch: usize, seed: u64) -> Expected {
    let (kernel, shape) = (&case.kernel, &case.plans[launch].shape);
    interp::meaning(
        &kernel.program,
        &kernel.variant,
        shape,
        launch,
        interp::uniform(seed),
    )
    .unwrap_or_else(|error| panic!("{error}"))
}

pub fn reference(case: &Case, launch: usize, seed: u64) -> Result<Expected, NoReference> {
    interp::reference(
        &case.kernel,
        &case.plans[launch],
        launch,
        interp::uniform(seed),
    )
}

/// Every launch of every rank is what the program says, which is what types promise where they do. Gives who says what.
pub fn agrees(
    program: &Program,
    variant: &Variant,
    rows: &[u32],
    n: u32,
    k: u32,
) -> BTreeSet<(String, Says)> {
    let case = Case::new(program, variant, rows, n, k);
    let mut said = BTreeSet::new();
    for seed in 0..2 {
        let outcome = case.run(seed, interp::uniform(seed));
        for launch in 0..rows.len() {
            let told = format!("{} {} launch {launch}", program.name, case.kernel.variant);
            let written = meaning(&case, launch, seed);
            let expected =
                reference(&case, launch, seed).unwrap_or_else(|error| panic!("{told}: {error}"));
            for (written, expected) in written.tensors.iter().zip(&expected.tensors) {
                assert_eq!(
                    (written.rank, written.tensor),
                    (expected.rank, expected.tensor)
                );
                let off = largest(written, expected);
                assert!(off < 1e-12, "{told}: {off} on rank {}", written.rank);
                let name = case.kernel.buffers[written.tensor.index()].name.clone();
                said.insert((name, expected.says));
            }
            for expected in [&written, &expected] {
                let agreed = interp::compare(&outcome, expected);
                let agreed = agreed.unwrap_or_else(|error| panic!("{told}: {error}"));
                assert!(agreed.elements > 0, "{told}");
            }
        }
    }
    said
}

/// The largest distance of two tensors' elements.
fn largest(a: &ExpectedTensor, b: &ExpectedTensor) -> f64 {
    assert_eq!(a.values.len(), b.values.len());
    let pairs = a.values.iter().zip(&b.values);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn every_schedule_is_what_its_program_says_and_its_types_promise() {
    for (at, (name, schedule)) in schedules::ALL.into_iter().enumerate() {
        for world in in_turn([1, 8, 2, 7, 3, 6, 4, 5], at) {
            let said = agrees(&schedule(), &Variant::new(world), &[29, 7, 1], 24, 16);
            // What arrives from other ranks is what a type promises.
            let promised = [
                "gemm_rs",
                "gemm_rs_add",
                "gemm_ar",
                "gemm_ag",
                "all_to_all",
                "gemm_ar_switch",
            ]
            .contains(&name);
            let says = match promised {
                true => Says::Type,
                false => Says::Schedule,
            };
            assert!(said.contains(&("y".into(), says)), "{name}: {said:?}");
        }
    }
    for program in sampled(library::all(), 5) {
        agrees(&program, &Variant::new(3), &[520, 100], 264, 64);
    }
}

pub fn gemm(s: &mut ScheduleBuilder, body: impl FnOnce(&mut ScheduleBuilder)) {
    s.gemm(
        GemmOptions {
            k: Some(4.into()),
            ..GemmOptions::default()
        },
        body,
    );
}

/// y = silu(x · uᵀ) · dᵀ, what lies between in scratch.
fn mlp() -> Program {
    let mut s = ScheduleBuilder::new("mlp");
    let [x, up, down, like] = ["x", "up", "down", "like"].map(|name| s.local(name, Bf16));
    let y = s.out("y", F32);
    let hidden = s.symmetric("hidden", Bf16, like.whole(), 1);
    let first = s.tiles("first", hidden, TILE);
    let tiles = s.tiles("tiles", y, TILE);
    let made = s.counters("made", [first.into()]);
    gemm(&mut s, |s| {
        s.for_items("t", first.all(), |s, t| {
            let product = s.dot(x.at(t), up.at(t));
            s.store(hidden.at(t), product.silu());
            s.signal(made.at(t), 1);
        });
        s.for_items("t", tiles.all(), |s, t| {
            s.wait(made.at(t.rows()));
            let product = s.dot(hidden.at(t), down.at(t));
            s.store(y.at(t), product);
        });
    });
    s.finish()
}

/// y = reduce_scatter(x · wᵀ) along a ring: each rank adds its product to what it was sent, and sends it on.
fn ring_reduction(sent: fn(Value, Value) -> Value) -> Program {
    let mut s = ScheduleBuilder::new("ring_reduction");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.reduce_scattered("y", Bf16);
    let tiles = s.tiles("tiles", y, TILE);
    let partial = s.symmetric("partial", Bf16, y.whole(), 1);
    let landed = s.counters("landed", [tiles.into()]);
    let next = || (me() + 1) % world();
    let first = || (me() - 1) % world();
    gemm(&mut s, |s| {
        s.when(Cond::compare(Comparison::Gt, world(), 1), |s| {
            s.for_items("t", tiles.of(first()), |s, t| {
                let mine = s.dot(x.at(t), w.at(t));
                s.store(partial.on(next()).at(t), mine);
                s.signal(landed.on(next()).at(t), 1);
            });
        });
        s.for_ranks("shard", ranks().before_me(), |s, shard| {
            s.when(Cond::compare(Comparison::Ne, &shard, first()), |s| {
                s.for_items("t", tiles.of(&shard), |s, t| {
                    let mine = s.dot(x.at(t), w.at(t));
                    s.wait(landed.at(t));
                    let theirs = s.load(partial.at(t));
                    s.store(partial.on(next()).at(t), sent(mine, theirs));
                    s.signal(landed.on(next()).at(t), 1);
                });
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            let mine = s.dot(x.at(t), w.at(t));
            s.wait(landed.at(t));
            let theirs = s.load(partial.at(t));
            s.store(y.at(t), sent(mine, theirs));
        });
    });
    s.finish()
}

/// y = all_gather(x) · wᵀ, shards in an order that is a closure's.
fn by_table() -> Program {
    let mut s = ScheduleBuilder::new("by_table");
    let (x, w) = (s.gathered("x", Bf16), s.local("w", Bf16));
    let y = s.out("y", Bf16);
    let chunks = s.chunks("chunks", x, 3u32);
    let tiles = s.tiles("tiles", y, TILE);
    let arrived = s.counters("arrived", [chunks.into()]);
    let order = || ranks().by(|me, step, world| (me * 3 + world - step) % world);
    s.comm(2u32, |s| {
        s.for_ranks("peer", order(), |s, peer| {
            s.when(Cond::compare(Comparison::Ne, &peer, me()), |s| {
                s.for_items("c", chunks.of(me()), |s, c| {
                    s.copy(x.on(&peer).at(c), x.at(c));
                    s.signal(arrived.on(&peer).at(c), 1);
                });
            });
        });
    });
    gemm(&mut s, |s| {
        s.for_ranks("shard", order(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait(arrived.at(t.rows()));
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
            });
        });
    });
    s.finish()
}

/// y = reduce_scatter(x · wᵀ), partial sums added up in an order that is a closure's.
fn added_by_table() -> Program {
    let mut s = ScheduleBuilder::new("added_by_table");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.reduce_scattered("y", Bf16);
    let tiles = s.tiles("tiles", y, TILE);
    let partial = s.symmetric("partial", Bf16, y, world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    let order = || ranks().by(|me, step, world| (me + 2 * world - 1 - step) % world);
    gemm(&mut s, |s| {
        s.for_ranks("owner", order(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let mine = s.dot(x.at(t), w.at(t));
                s.store(partial.on(&owner).at(me()).at(t), mine);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            let mut sum = None;
            s.for_ranks("from", order(), |s, from| {
                s.wait(landed.at(&from).at(t));
                sum = Some(s.sum(partial.at(&from).at(t)));
            });
            s.store(y.at(t), sum.expect("a sum"));
        });
    });
    s.finish()
}

/// y = x · wᵀ + z of the next rank, which is fetched by way of scratch.
fn by_scratch() -> Program {
    let mut s = ScheduleBuilder::new("by_scratch");
    let [x, w, z] = ["x", "w", "z"].map(|name| s.local(name, Bf16));
    let y = s.out("y", Bf16);
    let chunks = s.chunks("chunks", y, 3u32);
    let tiles = s.tiles("tiles", y, TILE);
    let there = s.symmetric("there", Bf16, y.whole(), 1);
    let arrived = s.counters("arrived", [chunks.into()]);
    let before = || (me() - 1) % world();
    s.comm(2u32, |s| {
        s.for_items("c", chunks.all(), |s, c| {
            s.copy(there.on(before()).at(c), z.at(c));
            s.signal(arrived.on(before()).at(c), 1);
        });
    });
    gemm(&mut s, |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.wait(arrived.at(t.rows()));
            let more = s.load(there.at(t));
            s.store(y.at(t), product + more);
        });
    });
    s.finish()
}

/// One element off by a little more than rounding allows is told, and no other.
pub fn planted(program: &Program, world: u32) {
    let case = Case::new(program, &Variant::new(world), &[29], 24, 16);
    let expected = reference(&case, 0, 3).unwrap_or_else(|error| panic!("{error}"));
    let right = case.run(3, interp::uniform(3));
    let y = program
        .tensors
        .iter()
        .position(|tensor| tensor.name == "y")
        .expect("there");
    for (index, of) in expected
        .tensors
        .iter()
        .enumerate()
        .filter(|(_, of)| of.tensor.index() == y && !of.values.is_empty())
    {
        let mut outcome: Outcome = right.clone();
        let at = (7 * index + 5) % of.values.len();
        let output = outcome
            .outputs
            .iter_mut()
            .find(|output| (output.rank, output.tensor) == (of.rank, of.tensor));
        let value = of.values[at] + 3.0 * of.bounds[at] + 1e-3 * of.values[at].abs();
        #[expect(clippy::cast_possible_truncation, reason = "outputs are f32")]
        let wrong = value as f32;
        output.expect("there").values[at] = wrong;
        let told = interp::compare(&outcome, &expected).expect_err("wrong");
        let place = (
            of.rows.start + at as u32 / of.columns,
            at as u32 % of.columns,
        );
        assert_eq!(
            (told.rank, told.at),
            (of.rank, Some(place)),
            "{}",
            program.name
        );
    }
}

/// What nothing was compared with: now each is, and a wrong element is told.
#[test]
fn what_no_pattern_knows_is_compared() {
    let ring = ring_reduction(|mine, theirs| mine + theirs);
    for (program, worlds, says) in [
        (mlp(), 1..=2, Says::Schedule),
        (ring, 2..=5, Says::Type),
        (by_table(), 1..=5, Says::Schedule),
        (added_by_table(), 1..=5, Says::Type),
        (by_scratch(), 1..=4, Says::Schedule),
    ] {
        for world in worlds {
            let said = agrees(&program, &Variant::new(world), &[29, 7, 13], 24, 16);
            assert!(
                said.contains(&("y".into(), says)),
                "{}: {said:?}",
                program.name
            );
            planted(&program, world);
        }
    }
}

/// What the types promise and what the statements say, of a schedule that the emulator refuses.
pub fn provoked(program: &Program, world: u32) -> (Expected, Expected) {
    let kernel = lower(program, &Variant::new(world).arch(Arch::Cpu)).expect("a schedule");
    let shape = padded(&kernel, 13, 24, 16);
    let plan = Plan::new(&kernel, &shape, &Machine::h200()).expect("a shape");
    let inputs = || interp::uniform(1);
    let failure = interp::provoke(&kernel, &[vec![&plan]], &Options::seed(1), inputs());
    let failure = failure.expect_err("the emulator counts terms as well");
    assert_eq!(failure.kind.name(), "Contribution", "{failure}");
    let promised = interp::reference(&kernel, &plan, 0, inputs()).expect("a reference");
    let written = interp::meaning(program, &kernel.variant, &shape, 0, inputs());
    (promised, written.expect("a meaning"))
}

/// Whether some number of an output is by far another one.
pub fn differ(promised: &Expected, written: &Expected) -> bool {
    let mut pairs = promised.tensors.iter().flat_map(|tensor| {
        let same =
            |other: &&ExpectedTensor| (other.rank, other.tensor) == (tensor.rank, tensor.tensor);
        let other = written.tensors.iter().find(same).expect("the same outputs");
        assert_eq!(tensor.values.len(), other.values.len());
        let values = tensor.values.iter().zip(&other.values);
        values.zip(&tensor.bounds)
    });
    pairs.any(|((promised, written), bound)| (promised - written).abs() > 2.0 * bound)
}

/// A product that is added twice is what the statements say, and not what the type promises.
#[test]
fn a_product_that_is_added_twice_is_wrong() {
    let mut s = ScheduleBuilder::new("gemm_rs");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.reduce_scattered("y", Bf16);
    let tiles = s.tiles("tiles", y, TILE);
    let partial = s.symmetric("partial", Bf16, y, world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    gemm(&mut s, |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let mine = s.dot(x.at(t), w.at(t));
                s.store(partial.on(&owner).at(me()).at(t), mine.clone() + mine);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            let mine = s.dot(x.at(t), w.at(t));
            s.wait(landed.at(others()).at(t));
            let rest = s.sum(partial.at(others()).at(t));
            s.store(y.at(t), mine + rest);
        });
    });
    for (program, world) in [
        (s.finish(), 3),
        (
            ring_reduction(|mine, theirs| mine.clone() + mine + theirs),
            3,
        ),
        (
            ring_reduction(|mine, theirs| mine.clone() + mine + theirs),
            2,
        ),
    ] {
        let (promised, written) = provoked(&program, world);
        assert!(differ(&promised, &written));
        assert!(
            promised
                .tensors
                .iter()
                .all(|tensor| tensor.says == Says::Type)
        );
    }
}

/// A function of the whole sum, with inputs of the owner beside it.
#[test]
fn a_function_of_a_sum_is_of_the_whole_sum() {
    let schedule = |twice: bool| {
        let mut s = ScheduleBuilder::new("gemm_rs");
        let [x, w, z] = ["x", "w", "z"].map(|name| s.local(name, Bf16));
        let y = s.reduce_scattered("y", Bf16);
        let tiles = s.tiles("tiles", y, TILE);
        let partial = s.symmetric("partial", Bf16, y, world());
        let landed = s.counters("landed", [world().into(), tiles.into()]);
        gemm(&mut s, |s| {
            s.for_ranks("owner", ranks().after_me(), |s, owner| {
                s.for_items("t", tiles.of(&owner), |s, t| {
                    let mine = s.dot(x.at(t), w.at(t));
                    s.store(partial.on(&owner).at(me()).at(t), mine);
                    s.signal(landed.on(&owner).at(me()).at(t), 1);
                });
            });
            s.for_items("t", tiles.of(me()), |s, t| {
                let mine = s.dot(x.at(t), w.at(t));
                s.wait(landed.at(others()).at(t));
                let rest = s.sum(partial.at(others()).at(t));
                let residual = s.load(z.at(t));
                let sum = if twice {
                    mine.clone() + mine + rest
                } else {
                    mine + rest
                };
                s.store(y.at(t), sum.silu().combine(Binary::Max, residual));
            });
        });
        s.finish()
    };
    for world in 1..=4 {
        let said = agrees(&schedule(false), &Variant::new(world), &[29, 7], 24, 16);
        assert_eq!(said, BTreeSet::from([("y".into(), Says::Type)]));
    }
    let (promised, written) = provoked(&schedule(true), 2);
    assert!(differ(&promised, &written));
}

/// Where an element is no number, or rounding may make any number of it, nothing can be compared.
#[test]
fn what_is_no_number_has_no_reference() {
    let of = |function: fn(Value, Value) -> Value| {
        let mut s = ScheduleBuilder::new("function");
        let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
        let tiles = s.tiles("tiles", y, TILE);
        gemm(&mut s, |s| {
            s.for_items("t", tiles.all(), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), function(product.clone(), product));
            });
        });
        let program = s.finish();
        let case = Case::new(&program, &Variant::new(1), &[29], 24, 16);
        reference(&case, 0, 3)
    };
    let none = of(|a, _| a.apply(Unary::Ln)).expect_err("logarithms of what is below zero");
    assert_eq!(none.of, "y");
    assert!(none.why.contains("is NaN"), "{none}");
    let none = of(|a, b| Value::from(1.0).combine(Binary::Div, a - b)).expect_err("1 / 0");
    assert!(none.why.contains("is inf"), "{none}");
    assert!(of(|a, _| a.apply(Unary::Exp)).is_ok());
}

/// The user's reference goes before all others, and its absence is told with its reason.
#[test]
fn what_the_user_says_goes_first() {
    fn product(given: &Given<'_>) -> Result<Matrix, String> {
        if given.output() == "x" {
            return Ok(given.as_written());
        }
        let (x, w) = (
            given.input("x", given.rank())?,
            given.input("w", given.rank())?,
        );
        assert_eq!((x.rows(), w.columns(), given.world()), (29, 16, 3));
        Ok(x.times(&w))
    }
    fn off_by_one(given: &Given<'_>) -> Result<Matrix, String> {
        product(given).map(|y| y.map(|value| value + 1.0))
    }
    let with = |reference| {
        let program = schedules::ag_gemm().reference(reference);
        Case::new(&program, &Variant::new(3), &[29], 24, 16)
    };
    let case = with(product);
    let expected = reference(&case, 0, 3).expect("a reference");
    assert!(
        expected
            .tensors
            .iter()
            .all(|tensor| tensor.says == Says::User)
    );
    let outcome = case.run(3, interp::uniform(3));
    interp::compare(&outcome, &expected).expect("agreement");
    let expected = reference(&with(off_by_one), 0, 3).expect("a reference");
    interp::compare(&outcome, &expected).expect_err("off by one");

    let why = |reference_fn| {
        reference(&with(reference_fn), 0, 3)
            .expect_err("no reference")
            .to_string()
    };
    let unknown = why(|given| given.input("q", 0));
    assert!(
        unknown.contains("the reference asks for the input `q`; there are x, w"),
        "{unknown}"
    );
    let far = why(|given| given.input("w", 7));
    assert!(far.contains("the reference asks for rank 7 of 3"), "{far}");
    let shape = why(|_| Ok(Matrix::of(2, 3, |_, _| 0.0)));
    assert!(
        shape.contains("gives 2 rows of 3 columns, but rank 0 holds 29 of"),
        "{shape}"
    );
    let nothing = why(|given| Err(format!("nobody knows {}", given.output())));
    assert!(nothing.contains("nobody knows x"), "{nothing}");
}

/// A scattered output is asked for by the rows that a rank holds.
#[test]
fn a_reference_of_rows() {
    fn sums(given: &Given<'_>) -> Result<Matrix, String> {
        let bias = given.input("bias", given.rank())?;
        let mut sum = Matrix::of(29, 24, |_, column| bias.at(0, column));
        for rank in 0..given.world() {
            sum = sum.plus(&given.input("x", rank)?.times(&given.input("w", rank)?));
        }
        Ok(sum.part(given.rows()))
    }
    let program = schedules::gemm_rs();
    let [theirs, ours] = [program.clone(), program.reference(sums)].map(|program| {
        let case = Case::new(&program, &Variant::new(4), &[29], 24, 16);
        reference(&case, 0, 3).expect("a reference")
    });
    for (theirs, ours) in theirs.tensors.iter().zip(&ours.tensors) {
        assert_eq!((theirs.says, ours.says), (Says::Type, Says::User));
        assert!(largest(theirs, ours) < 1e-12);
    }
}

/// A launch adds any expression of complete products to what is accumulated, once.
#[test]
fn what_is_accumulated_is_what_was_there_and_what_is_added() {
    for function in [
        (|a, _| a) as fn(Value, Value) -> Value,
        |a, b| a + b,
        |a, _| a.silu(),
        |a, b| a * b,
    ] {
        let mut s = ScheduleBuilder::new("accumulated");
        let [x, u, v] = ["x", "u", "v"].map(|name| s.local(name, Bf16));
        let y = s.accumulated("y", F32);
        let tiles = s.tiles("tiles", y, TILE);
        gemm(&mut s, |s| {
            s.for_items("t", tiles.all(), |s, t| {
                let [first, second] = [u, v].map(|w| s.dot(x.at(t), w.at(t)));
                s.store_add(y.at(t), function(first, second));
            });
        });
        let said = agrees(&s.finish(), &Variant::new(2), &[29, 7], 24, 16);
        assert_eq!(said, BTreeSet::from([("y".into(), Says::Type)]));
    }
}
