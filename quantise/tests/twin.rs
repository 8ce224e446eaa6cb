//! Properties of the twin, and the bit patterns that the conventions fix.

#[path = "../../codegen/tests/fixtures/wide.rs"]
mod wide;

use counterflow_codegen::dtype::Dtype;
use counterflow_quantise::{
    BlocksLast, Delayed, Fp8, Granularity, History, Layout, Matrix, Pick, Plane, RowsLast,
    ScaleRule, SquareByColumn, SquareByRow, SquarePadded, twin,
};
use proptest::prelude::*;

const KINDS: [Granularity; 4] = [
    Granularity::PerTensor,
    Granularity::PerRow,
    Granularity::BLOCK_1X128,
    Granularity::BLOCK_128X128,
];

fn rules() -> Vec<ScaleRule> {
    let theirs = [Fp8::E4M3, Fp8::E5M2].map(ScaleRule::transformer_engine);
    let deep = ScaleRule::deep_gemm();
    let all = [theirs[0], theirs[1], deep];
    (all.iter().copied())
        .chain(all.map(ScaleRule::powers_of_two))
        .collect()
}

/// Rows and columns, and numbers of bf16 of all sizes that no piece overflows with.
fn matrices() -> impl Strategy<Value = ([usize; 2], Vec<f32>)> {
    let number = prop_oneof![
        4 => -1.0f32..1.0,
        1 => -1e30f32..1e30,
        1 => (-60i32..60).prop_map(|power| 2f32.powi(power)),
        1 => Just(0.0),
    ];
    ([0usize..40, 1usize..20], Just(number)).prop_flat_map(|([rows, columns], number)| {
        let columns = columns * 16;
        let rounded = number.prop_map(|value| Dtype::Bf16.round(value));
        let values = prop::collection::vec(rounded, rows * columns);
        (Just([rows, columns]), values)
    })
}

/// The stored scale of an element, found from the layout of pieces in the text of the convention.
fn scale_at(q: &twin::Quantised, row: usize, column: usize) -> f32 {
    let [_, across] = q.pieces.count(q.shape);
    let at = match q.pieces {
        Granularity::PerTensor => 0,
        Granularity::PerRow => row,
        Granularity::Block(block) => {
            row / block.rows as usize * across + column / block.columns as usize
        }
    };
    q.scales[at]
}

/// So many matrices are drawn, or a sixteenth of them without `WIDE=1`.
fn drawn() -> ProptestConfig {
    let wide = wide::wide();
    ProptestConfig::with_cases(if wide { 256 } else { 16 })
}

proptest! {
    #![proptest_config(drawn())]

    #[test]
    fn an_element_comes_back_within_half_a_step((shape, values) in matrices()) {
        let x = Matrix::new(&values, shape, Dtype::Bf16);
        for rule in rules() {
            let dtype = rule.to.dtype();
            for pieces in KINDS {
                let q = twin::quantise(&x, &rule, pieces);
                for (at, value) in values.iter().enumerate() {
                    let scale = f64::from(scale_at(&q, at / shape[1], at % shape[1]));
                    let (wanted, got) = (f64::from(*value), f64::from(rule.to.value(q.codes[at])) * scale);
                    // The scale, its reciprocal and the product are rounded, too.
                    let slack = 1.0 + 2f64.powi(-18);
                    let bound = (wanted.abs() * dtype.unit_roundoff() + scale * dtype.half_subnormal()) * slack;
                    prop_assert!((wanted - got).abs() <= bound, "{rule:?} {pieces:?} {wanted} {got}");
                }
            }
        }
    }

    #[test]
    fn the_transposed_copy_is_quantised_from_the_source((shape, values) in matrices()) {
        let x = Matrix::new(&values, shape, Dtype::Bf16);
        let turned = x.transposed();
        let xt = Matrix::new(&turned, [shape[1], shape[0]], Dtype::Bf16);
        prop_assert_eq!(xt.transposed(), &values[..]);
        for rule in rules() {
            // Where the same elements share a scale, the codes are the same.
            for pieces in [Granularity::PerTensor, Granularity::BLOCK_128X128] {
                let (q, qt) = (twin::quantise(&x, &rule, pieces), twin::quantise(&xt, &rule, pieces));
                for at in 0..values.len() {
                    let (row, column) = (at / shape[1], at % shape[1]);
                    prop_assert_eq!(q.codes[at], qt.codes[column * shape[0] + row]);
                }
            }
            let rows = twin::quantise(&xt, &rule, Granularity::PerRow);
            for column in 0..shape[1] {
                let own: Vec<f32> = (0..shape[0]).map(|row| values[row * shape[1] + column]).collect();
                let own = Matrix::new(&own, [1, shape[0]], Dtype::Bf16);
                prop_assert_eq!(rows.scales[column], rule.of_tensor(twin::amax(&own, &rule)).stored);
            }
        }
    }

    #[test]
    fn powers_of_two_are_the_same_in_both_conventions(amax in 1e-20f32..1e30) {
        let theirs = ScaleRule::transformer_engine(Fp8::E4M3).powers_of_two();
        let deep = ScaleRule::deep_gemm().powers_of_two().with_eps(0.0);
        let (one, other) = (theirs.of_tensor(amax), deep.of_tensor(amax));
        prop_assert_eq!(one, other);
        prop_assert_eq!(one.multiplier.to_bits() & 0x7f_ffff, 0);
        prop_assert_eq!(one.multiplier * one.stored, 1.0);
        prop_assert!(amax * one.multiplier <= 448.0 && amax * one.multiplier > 224.0);
    }

    #[test]
    fn no_convention_overflows(bits in 0u32..0x7f80_0000) {
        let amax = f32::from_bits(bits);
        for rule in rules() {
            for scale in [rule.of_tensor(amax), rule.of_block(amax, Dtype::Bf16)] {
                let scaled = amax * scale.multiplier;
                prop_assert!(scaled <= rule.to.largest() * (1.0 + 2f32.powi(-22)), "{rule:?} {amax}");
                prop_assert!(scale.stored.is_finite() && scale.stored > 0.0);
            }
        }
    }

    #[test]
    fn a_history_is_a_queue(
        length in 1usize..6,
        recent in any::<bool>(),
        skips_zero in any::<bool>(),
        amaxes in prop::collection::vec(prop_oneof![Just(0.0f32), Just(f32::INFINITY), 1e-30f32..1e30, Just(1e-40)], 0..20),
    ) {
        let pick = if recent { Pick::MostRecent } else { Pick::Max };
        let recipe = Delayed { length, pick, skips_zero, ..Delayed::transformer_engine(Fp8::E5M2) };
        let mut history = History::new(recipe);
        let (mut queue, mut scale) = (std::collections::VecDeque::new(), 1.0f32);
        for amax in amaxes {
            prop_assert_eq!(history.scale().multiplier, scale);
            history.saw(amax);
            history.update();
            if amax == 0.0 && skips_zero {
                continue;
            }
            queue.push_back(amax);
            let counted = if recent { amax } else { queue.iter().copied().fold(0.0, f32::max) };
            // The current step has a place, too.
            if queue.len() == length {
                queue.pop_front();
            }
            if counted > 0.0 && counted < f32::INFINITY {
                scale = (57344.0 / counted).min(f32::MAX);
            }
            prop_assert_eq!(history.scale().stored, 1.0 / scale);
        }
    }

    #[test]
    fn layouts_hold_the_same_scales(rows in 0usize..300, depth in 0usize..900) {
        let number = |[row, block]: [usize; 2]| (row * 100 + block + 1) as f32;
        let shape = [rows, depth];
        let one = Plane::<RowsLast>::of(shape, number);
        let other: Plane<BlocksLast> = one.convert();
        prop_assert_eq!(&other.convert::<RowsLast>(), &one);
        // Each scale once; all else is zero.
        let count = |values: &[f32]| values.iter().filter(|value| **value != 0.0).count();
        prop_assert_eq!(count(one.values()), rows * depth.div_ceil(128));
        prop_assert_eq!(one.values().len(), rows.next_multiple_of(4) * depth.div_ceil(128));
        let square = Plane::<SquareByRow>::of(shape, number);
        let padded: Plane<SquarePadded> = square.convert();
        let turned: Plane<SquareByColumn> = padded.convert();
        prop_assert_eq!(&turned.convert::<SquareByRow>(), &square);
        prop_assert_eq!(count(padded.values()), count(square.values()));
        prop_assert_eq!(padded.values().len() % 4, 0);
        for row in 0..rows.div_ceil(128) {
            for block in 0..depth.div_ceil(128) {
                prop_assert_eq!(turned.values()[block * rows.div_ceil(128) + row], number([row, block]));
                prop_assert_eq!(padded.at([row, block]), number([row, block]));
            }
        }
        prop_assert!(Plane::<RowsLast>::from_memory(shape, vec![0.0; RowsLast::len(RowsLast::pieces(shape)) + 1]).is_none());
    }
}

#[test]
fn amaxes_that_are_no_size_have_the_scale_that_the_convention_says() {
    let theirs = ScaleRule::transformer_engine(Fp8::E4M3);
    let bits = |scale: f32| scale.to_bits();
    for amax in [0.0, f32::INFINITY, f32::NAN] {
        assert_eq!(theirs.of_tensor(amax).multiplier, 1.0, "{amax}");
    }
    // Beyond f32: its largest number, or that of the type.
    let tiny = f32::from_bits(1);
    assert_eq!(bits(theirs.of_tensor(tiny).multiplier), 0x7f7f_ffff);
    assert_eq!(
        bits(theirs.of_block(tiny, Dtype::Bf16).multiplier),
        0x7f7f_0000
    );
    assert_eq!(theirs.of_block(tiny, Dtype::F16).multiplier, 65504.0);
    let powers = theirs.powers_of_two();
    assert_eq!(bits(powers.of_tensor(tiny).multiplier), 0x7f00_0000);
    assert_eq!(bits(powers.of_tensor(tiny).stored), 0x0040_0000); // a subnormal, not zero
    assert_eq!(powers.of_block(tiny, Dtype::F16).multiplier, 32768.0);

    let deep = ScaleRule::deep_gemm();
    assert_eq!(bits(deep.of_tensor(0.0).stored), bits(1e-4f32 / 448.0));
    assert_eq!(deep.of_tensor(f32::INFINITY).multiplier, 0.0);
    let nan = deep.of_tensor(f32::NAN);
    assert_eq!(
        [bits(nan.stored), bits(nan.multiplier)],
        [0x7fc0_0000, 0x7fc0_0000]
    );
    assert_eq!(
        bits(deep.powers_of_two().of_tensor(f32::NAN).stored),
        0x7f00_0000
    );
}

#[test]
fn conventions_differ_in_the_last_bit() {
    let deep = ScaleRule::deep_gemm();
    let theirs = ScaleRule::transformer_engine(Fp8::E4M3);
    let amaxes = (1..2000).map(|at| at as f32 / 64.0);
    let differ = |a: ScaleRule, b: ScaleRule| {
        let apart = |amax: &f32| a.of_tensor(*amax).stored != b.of_tensor(*amax).stored;
        amaxes.clone().filter(apart).count()
    };
    assert!(differ(deep, theirs) > 100);
    for amax in amaxes.clone() {
        let (one, other) = (deep.of_tensor(amax).stored, theirs.of_tensor(amax).stored);
        assert!(one.to_bits().abs_diff(other.to_bits()) <= 1);
    }
}

#[test]
fn codes_are_what_the_hardware_is_documented_to_give() {
    let all = [
        (Fp8::E4M3, 448.0, 0x7e),
        (Fp8::E4M3, 1e9, 0x7e),
        (Fp8::E4M3, f32::NEG_INFINITY, 0xfe),
        (Fp8::E4M3, f32::NAN, 0x7f),
        (Fp8::E4M3, -f32::NAN, 0x7f),
        (Fp8::E4M3, 17.0, 0x58), // half way between 16 and 18: the even one
        (Fp8::E4M3, 19.0, 0x5a),
        (Fp8::E4M3, 0.0009765625, 0x00), // half of the smallest
        (Fp8::E4M3, 0.001, 0x01),
        (Fp8::E4M3, -0.0, 0x80),
        (Fp8::E5M2, f32::INFINITY, 0x7b),
        (Fp8::E5M2, 61440.0, 0x7b),
        (Fp8::E5M2, f32::NAN, 0x7f),
    ];
    for (to, value, code) in all {
        assert_eq!(to.code(value), code, "{to:?} of {value}");
    }
}

#[test]
fn nan_is_seen_by_one_convention_and_not_by_the_other() {
    let values = [1.0, f32::NAN, 2.0, 4.0];
    let x = Matrix::new(&values, [2, 2], Dtype::Bf16);
    let theirs = twin::quantise(
        &x,
        &ScaleRule::transformer_engine(Fp8::E4M3),
        Granularity::PerRow,
    );
    assert_eq!(theirs.codes, [0x7e, 0x7f, 0x76, 0x7e]);
    let deep = twin::quantise(&x, &ScaleRule::deep_gemm(), Granularity::PerRow);
    assert_eq!(deep.codes, [0x7f, 0x7f, 0x76, 0x7e]);
    assert!(deep.scales[0].is_nan() && !deep.scales[1].is_nan());
}
