//! The reference's products: blocked and on several threads, yet what one loop over K gives.

use crate::fixtures::library;
use crate::fixtures::wide::{in_turn, sampled};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::{Program, TensorId};
use counterflow_codegen::shape::{Extent, Shape};
use counterflow_codegen::variant::{Scales, Tensors, Variant};
use counterflow_emulator::{self as interp, Expected, ExpectedTensor, Input, Numbers};

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
    for row in sampled(0..m as usize, 7) {
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
    for (at, variant) in [Variant::new(2), fp8, promoted].into_iter().enumerate() {
        let wanted = bits(&variant, (512, 256));
        assert_eq!(wanted.len(), 2 * 2 * 301 * 250);
        for tiles in in_turn([(128, 256), (64, 96), (256, 8)], at) {
            assert!(bits(&variant, tiles) == wanted, "{variant}: {tiles:?}");
        }
    }
}

/// One step of 32 of K after another, as [`interp`] says that tensor cores add FP8: all of K, or 128 at a time that are added in
/// f32. The last block of K has one to four steps.
#[test]
fn bounds_of_fp8_are_those_of_one_step_after_another() {
    let cases = [
        (1100, false),
        (1041, true),
        (1073, true),
        (1100, true),
        (1152, true),
    ];
    for (k, promotes) in sampled(cases, 3) {
        bounds_are_those_of_steps([133, 70, k], promotes);
    }
}

fn bounds_are_those_of_steps([m, n, k]: [u32; 3], promotes: bool) {
    let variant = Variant::new(1).dtype(Dtype::E4M3).promote(promotes);
    let variant = variant.set("tiles", (128, 64));
    let numbers = |seed| Box::new(interp::uniform(seed)) as Box<_>;
    let program = library::gemm(&library::real());
    let ([x, w], y) = product(&program, &variant, [m, n, k], numbers);
    let share = 34.0 / 8192.0;
    let stepwise = |block: &[f64]| {
        let (mut sum, mut off, mut most) = (0.0f64, 0.0f64, 0.0f64);
        for step in block.chunks(32) {
            let magnitudes: f64 = step.iter().map(|term| term.abs()).sum();
            off += (2.0 * most + magnitudes + off) * share;
            sum += step.iter().sum::<f64>();
            most = most.max(sum.abs());
        }
        (sum, off)
    };
    let unit = Dtype::F32.unit_roundoff();
    // The sample has rows of both tiles.
    for row in sampled(0..m as usize, 4) {
        for column in 0..n as usize {
            let k = k as usize;
            let operands: Vec<f64> = (x[row * k..][..k].iter().zip(&w[column * k..][..k]))
                .map(|(x, w)| f64::from(*x) * f64::from(*w))
                .collect();
            let (mut sum, mut off) = (0.0, 0.0);
            if promotes {
                let mut sizes = 0.0;
                for block in operands.chunks(128) {
                    let (term, by) = stepwise(block);
                    let by = by + (term.abs() + by) * unit + Dtype::F32.half_subnormal();
                    sum += term;
                    off += by;
                    sizes += term.abs() + by;
                }
                // An add of each, and one of each CTA that shares K.
                off += (k.div_ceil(128) + 16) as f64 * unit * sizes;
            } else {
                (sum, off) = stepwise(&operands);
            }
            // Rounded once to bf16 when stored.
            let off = off + (sum.abs() + off) * y.dtype.unit_roundoff() + y.dtype.half_subnormal();
            let at = row * n as usize + column;
            let close = |a: f64, b: f64| (a - b).abs() <= 1e-12 * b.abs();
            assert!(
                close(y.bounds[at], off),
                "K of {k}, [{row}, {column}]: {} {off}",
                y.bounds[at]
            );
            assert!(
                (y.values[at] - sum).abs() < 1e-12 * off,
                "K of {k}, [{row}, {column}]"
            );
        }
    }
}

/// Numbers are drawn in blocks, on several threads: they are those of one stream.
#[test]
fn uniform_numbers_are_those_of_one_stream() {
    let mut values = vec![f32::NAN; 200_001];
    let input = Input {
        launch: 3,
        rank: 1,
        tensor: TensorId(0),
        name: "x",
        rows: Extent {
            start: 0,
            end: values.len() as u32,
        },
        columns: 1,
    };
    interp::uniform(9)(input, &mut values);
    let of_name = (9 ^ u64::from(b'x')).wrapping_mul(0x0100_0000_01b3);
    let at = (3u64 << 32 | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut stream = Numbers::new(Numbers::new(of_name).draw() ^ at);
    for (at, value) in values.iter().enumerate() {
        let unit = (stream.draw() >> 40) as f32 / (1 << 24) as f32;
        assert_eq!(*value, 2.0 * unit - 1.0, "number {at}");
    }
}
