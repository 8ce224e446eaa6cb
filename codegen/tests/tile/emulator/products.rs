//! The reference's products: blocked and on several threads, yet what one loop over K gives.

use crate::fixtures::library;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::interp::{self, Expected, ExpectedTensor, Input};
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Scales, Tensors, Variant};

/// Fills an input.
type Fill = Box<dyn FnMut(Input<'_>, &mut [f32])>;

/// The operands `x` and `w` as the reference gets them, and the output.
fn product(
    program: &Program,
    variant: &Variant,
    [m, n, k]: [u32; 3],
    numbers: fn(u64) -> Fill,
) -> ([Vec<f32>; 2], ExpectedTensor) {
    let (mut x, mut w) = (Vec::new(), Vec::new());
    let mut fill = numbers(5);
    let keep = |input: Input<'_>, values: &mut [f32]| {
        let name = input.name;
        fill(input, values);
        let dtype = variant
            .asked(&Tensors::OfFirstType)
            .element
            .unwrap_or(Dtype::Bf16);
        let rounded = values.iter().map(|value| dtype.round(*value)).collect();
        *(if name == "x" { &mut x } else { &mut w }) = rounded;
    };
    let meant = interp::meaning(program, variant, &Shape::new(m, n, k), 0, keep);
    let Expected { mut tensors, .. } = meant.expect("a meaning");
    assert_eq!((x.len(), w.len()), ((m * k) as usize, (n * k) as usize));
    ([x, w], tensors.remove(0))
}

/// Rows and columns that no block divides, in tiles that are worth several threads.
#[test]
fn sums_of_integers_are_exact_on_several_threads() {
    let [m, n, k] = [301, 250, 700];
    let variant = Variant::new(1).set("tiles", (256, 128));
    let numbers = |seed| Box::new(interp::integers(seed)) as Box<_>;
    let program = library::gemm(&library::real());
    let ([x, w], y) = product(&program, &variant, [m, n, k], numbers);
    for row in 0..m as usize {
        for column in 0..n as usize {
            let k = k as usize;
            let (x, w) = (&x[row * k..][..k], &w[column * k..][..k]);
            let sum: f64 = x.iter().zip(w).map(|(x, w)| f64::from(x * w)).sum();
            assert_eq!(
                y.values[row * n as usize + column],
                sum,
                "[{row}, {column}]"
            );
        }
    }
}

/// Tiles decide which blocks there are, and how many products are computed together.
#[test]
fn values_and_bounds_have_the_same_bits_whatever_the_tiles() {
    let program = library::gemm(&library::real());
    let bits = |variant: &Variant, tiles: (u32, u32)| -> Vec<u64> {
        let variant = variant.clone().set("tiles", tiles);
        let shape = Shape::new(301, 250, 700);
        let meant = interp::meaning(&program, &variant, &shape, 0, interp::uniform(3));
        let Expected { tensors, .. } = meant.expect("a meaning");
        let numbers = tensors
            .iter()
            .flat_map(|of| of.values.iter().chain(&of.bounds));
        numbers.map(|number| number.to_bits()).collect()
    };
    let fp8 = Variant::new(2).dtype(Dtype::E4M3);
    let promoted = fp8.clone().scales(Scales::Blocks1d2d);
    for variant in [Variant::new(2), fp8, promoted] {
        let wanted = bits(&variant, (512, 256));
        assert_eq!(wanted.len(), 2 * 2 * 301 * 250);
        for tiles in [(128, 256), (64, 96), (256, 8)] {
            assert!(bits(&variant, tiles) == wanted, "{variant}: {tiles:?}");
        }
    }
}

/// One step of 32 of K after another, as [`interp`] says that tensor cores add FP8.
#[test]
fn bounds_of_fp8_are_those_of_one_step_after_another() {
    let [m, n, k] = [133, 70, 1100];
    let variant = Variant::new(1).dtype(Dtype::E4M3).promote(false);
    let variant = variant.set("tiles", (128, 64));
    let numbers = |seed| Box::new(interp::uniform(seed)) as Box<_>;
    let program = library::gemm(&library::real());
    let ([x, w], y) = product(&program, &variant, [m, n, k], numbers);
    let share = 34.0 / 8192.0;
    for row in 0..m as usize {
        for column in 0..n as usize {
            let k = k as usize;
            let operands: Vec<f64> = (x[row * k..][..k].iter().zip(&w[column * k..][..k]))
                .map(|(x, w)| f64::from(*x) * f64::from(*w))
                .collect();
            let (mut sum, mut off, mut most) = (0.0f64, 0.0f64, 0.0f64);
            for step in operands.chunks(32) {
                let magnitudes: f64 = step.iter().map(|term| term.abs()).sum();
                off += (2.0 * most + magnitudes + off) * share;
                sum += step.iter().sum::<f64>();
                most = most.max(sum.abs());
            }
            // Rounded once to bf16 when stored.
            let off = off + (sum.abs() + off) * y.dtype.unit_roundoff() + y.dtype.half_subnormal();
            let at = row * n as usize + column;
            let close = |a: f64, b: f64| (a - b).abs() <= 1e-12 * b.abs();
            assert!(
                close(y.bounds[at], off),
                "[{row}, {column}]: {} {off}",
                y.bounds[at]
            );
            assert!(
                (y.values[at] - sum).abs() < 1e-12 * off,
                "[{row}, {column}]"
            );
        }
    }
}
