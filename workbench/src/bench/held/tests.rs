//! Results of emulated ranks pass the checks, and wrong ones are seen.

use super::super::fp8::tests::planned;
use super::super::variants::{self, Built, Planned};
use super::super::written::Codes;
use super::*;
use crate::cuda::{Exactly, Narrowed, Scale, Term, Terms};
use crate::library::{self, Sizes, real};
use crate::suite::{self, Case};
use counterflow_codegen::bounds::of_codes;
use counterflow_codegen::builder::tune;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::{Program, TensorId};
use counterflow_codegen::rule::Fp8;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_emulator::{self as interp, Options, Outcome};
use counterflow_runtime::driver::Address;

/// Rows that 4 does not divide, and a block of 16 columns.
const SIZE: [u32; 3] = [34, 272, 144];
const LINES: usize = 3;
const SEED: u64 = 11;

type Schedule = fn(&Sizes) -> Program;

fn program(schedule: Schedule) -> Program {
    schedule(&Sizes {
        tiles: tune([(128, 128)]),
        ..real()
    })
}

/// A product that is known to within what sums may be off: numbers with their bounds, row by row.
type Product = Vec<(f64, f64)>;

/// Product of each rank.
fn products(schedule: Schedule, world: u32) -> Vec<Product> {
    let variant = Variant::new(world).output(Dtype::F32);
    let [m, n, k] = SIZE;
    let inputs = interp::uniform(SEED);
    let meant = interp::meaning(
        &program(schedule),
        &variant,
        &Shape::new(m, n, k),
        0,
        inputs,
    );
    let meant = meant.unwrap_or_else(|error| panic!("{error}"));
    let all = (meant.tensors.into_iter()).filter(|tensor| tensor.dtype == Dtype::F32);
    all.map(|tensor| tensor.values.into_iter().zip(tensor.bounds).collect())
        .collect()
}

/// The amaxes of its blocks.
fn amaxes(product: &Product) -> Vec<Magnitude> {
    let rows = product.chunks(SIZE[1] as usize);
    let blocks = rows.flat_map(|row| row.chunks(128));
    blocks
        .map(|block| Magnitude::of(block.iter().copied(), false))
        .collect()
}

/// Outcome of emulated ranks.
fn left(planned: &Planned<'_>) -> Outcome {
    let options = Options::seed(SEED);
    let inputs = interp::uniform(SEED);
    interp::run(&planned.series, &[&planned.plan], &options, inputs)
        .unwrap_or_else(|failure| panic!("{failure}"))
}

/// Each rank's output of that name, and the product it is of.
fn each(
    (schedule, variant): (Schedule, &Variant),
    tensor: fn(&Built) -> TensorId,
    mut with: impl FnMut(&Planned<'_>, &[f32], &Product),
) {
    let built = variants::build(&program(schedule), variant).expect("measured");
    let planned = planned(&built, &case());
    let left = left(&planned);
    for (rank, product) in (0..).zip(products(schedule, variant.world)) {
        let output = left.output(0, rank, tensor(&built)).expect("an output");
        with(&planned, &output.values, &product);
    }
}

fn case() -> Case {
    suite::single(SIZE)
}

#[test]
fn amaxes_that_are_wrong_are_seen() {
    for (schedule, world) in [(library::gemm as Schedule, 1), (library::ag_gemm, 2)] {
        let variant = Variant::new(world).output(Dtype::E4M3).amax(true);
        let tensor = |built: &Built| built.roles.beside.amax.expect("an amax");
        let mut ranks = 0;
        each((schedule, &variant), tensor, |_, got, product| {
            let blocks = amaxes(product);
            let right = amax(got, &blocks);
            assert!(right.wrong == 0 && right.worst <= 1.0, "{right:?}");
            let most = got[0];
            for bad in [
                1.001 * most,
                0.999 * most,
                -most,
                0.0,
                f32::INFINITY,
                f32::NAN,
            ] {
                assert_eq!(amax(&[bad], &blocks).wrong, 1, "{bad}");
            }
            assert_eq!(amax(&[], &blocks).wrong, 1);
            ranks += 1;
        });
        assert_eq!(ranks, world);
    }
}

fn rules() -> [ScaleRule; 3] {
    let theirs = ScaleRule::transformer_engine(Fp8::E4M3);
    [theirs, theirs.powers_of_two(), ScaleRule::deep_gemm()]
}

#[test]
fn scales_that_are_wrong_are_seen() {
    for rule in rules() {
        let variant = Variant::new(1).output_scales(rule);
        let tensor = |built: &Built| built.roles.beside.made.expect("a plane");
        each(
            (library::gemm, &variant),
            tensor,
            |planned, made, product| {
                let rows = SIZE[0] as usize;
                let pitch = Codes::of(planned).expect("codes").pitch as usize;
                assert_eq!((pitch, made.len()), (36, LINES * rows));
                let mut plane = vec![0.0; LINES * pitch];
                for (line, made) in plane.chunks_mut(pitch).zip(made.chunks(rows)) {
                    line[..rows].copy_from_slice(made);
                }
                let blocks = amaxes(product);
                let held = |plane: &[f32]| scales(&rule, (plane, pitch), (&blocks, LINES));
                let right = held(&plane);
                assert!(right.wrong == 0 && right.worst <= 1.0, "{rule}: {right:?}");
                let one = |at: usize, bad: f32| {
                    let mut plane = plane.clone();
                    plane[at] = bad;
                    held(&plane).wrong
                };
                for bad in [2.0 * plane[5], 1.001 * plane[5], 0.0, f32::NAN] {
                    assert_eq!(one(5, bad), 1, "{rule}: {bad}");
                }
                // Behind the rows of the second line.
                assert_eq!(one(2 * pitch - 1, 1.0), 1);
                assert_eq!(one(2 * pitch - 1, f32::NAN), 1);
                let swapped = [&plane[pitch..], &plane[..pitch]].concat();
                assert!(held(&swapped).wrong as usize > rows / 2, "{rule}");
                assert_eq!(held(&plane[..pitch]).wrong as usize, (LINES - 1) * pitch);
            },
        );
    }
}

/// Terms whose addresses nobody looks at.
fn terms(rule: &ScaleRule, parts: u32) -> Terms {
    let none = Address::default();
    let exact = Exactly {
        value: none,
        allowed: none,
    };
    Terms {
        parts,
        narrowed: Some(Narrowed {
            least: none,
            loses: of_codes(rule),
            shard: None,
        }),
        ..exact.alone()
    }
}

/// Index of an element's block among all.
fn block(at: usize) -> usize {
    let columns = SIZE[1] as usize;
    at / columns * LINES + at % columns / 128
}

fn term((value, off): (f64, f64), least: Option<f32>) -> Term {
    Term {
        value,
        off: (off as f32).next_up(),
        least,
    }
}

#[test]
fn results_by_scales_that_launches_make_are_within_what_codes_lose() {
    for rule in rules() {
        let variant = Variant::new(1).output_scales(rule);
        let built = variants::build(&program(library::gemm), &variant).expect("measured");
        let planned = planned(&built, &case());
        let left = left(&planned);
        let of = |tensor| &left.output(0, 0, tensor).expect("an output").values;
        let (codes, plane) = (
            of(built.roles.y),
            of(built.roles.beside.made.expect("a plane")),
        );
        let product = &products(library::gemm, 1)[0];
        let least = least(&rule, &amaxes(product));
        let scale = Scale::Plane {
            at: Address::default(),
            pitch: 36,
        };
        let bounds = terms(&rule, 1).bounds(Dtype::E4M3, scale);
        let wrong = |shift: usize| {
            let (rows, columns) = (SIZE[0] as usize, SIZE[1] as usize);
            let is_wrong = |at: &usize| {
                let (row, line) = (at / columns, at % columns / 128);
                let scale = plane[line * rows + (row + shift) % rows];
                let got = f64::from(codes[*at]) * f64::from(scale);
                !bounds.allow(got, &[term(product[*at], Some(least[block(*at)]))])
            };
            (0..codes.len()).filter(is_wrong).count()
        };
        assert_eq!(wrong(0), 0, "{rule}");
        let moved = wrong(1);
        assert!(moved > codes.len() / 10, "{rule}: {moved}");
    }
}

#[test]
fn partial_sums_beyond_what_codes_lose_are_seen() {
    const WORLD: u32 = 3;
    let theirs = ScaleRule::transformer_engine(Fp8::E5M2);
    for (schedule, rule) in [
        (library::gemm_rs as Schedule, rules()[1]),
        (library::gemm_ar, rules()[2]),
        (library::gemm_rs, theirs),
    ] {
        let variant = Variant::new(WORLD).quantised_reduction(rule);
        let built = variants::build(&program(schedule), &variant).expect("measured");
        let planned = planned(&built, &case());
        let left = left(&planned);
        let shard = Codes::of(&planned).and_then(|codes| codes.shard);
        let shard = shard.expect("a rank's own is as it is") as usize;
        let products = products(library::gemm, WORLD);
        let least: Vec<_> = products
            .iter()
            .map(|it| least(&rule, &amaxes(it)))
            .collect();
        let bounds = terms(&rule, WORLD).bounds(Dtype::Bf16, Scale::Given(1.0));
        let columns = SIZE[1] as usize;
        // With codes on their way, or without; of sums that have all terms, or of which one is twice there.
        let wrong = |as_codes: bool, twice: f64| {
            let mut wrong = (0, 0);
            for rank in 0..WORLD {
                let output = left.output(0, rank, built.roles.y).expect("an output");
                let first = output.rows.start as usize * columns;
                for (at, got) in (first..).zip(&output.values) {
                    let own = at / columns / shard;
                    let of = |part: usize| {
                        let sent = as_codes && part != own;
                        term(products[part][at], sent.then(|| least[part][block(at)]))
                    };
                    let terms: Vec<Term> = (0..WORLD as usize).map(of).collect();
                    let got = f64::from(*got) + twice * terms[(own + 1) % 3].value;
                    wrong.0 += usize::from(!bounds.allow(got, &terms));
                    wrong.1 += 1;
                }
            }
            wrong
        };
        let name = &built.kernel.name;
        assert_eq!(wrong(true, 0.0).0, 0, "{name} {rule}");
        let ((rounded, all), (twice, _)) = (wrong(false, 0.0), wrong(true, 1.0));
        assert!(rounded > all / 2, "{name} {rule}: {rounded} of {all}");
        assert!(twice > all / 2, "{name} {rule}: {twice} of {all}");
        assert_eq!(wrong(true, f64::NAN).0, all);
    }
}
