//! Sums of FP8 products as tensor cores make them: the emulator's arithmetic beside the same in whole numbers.

use counterflow_codegen::dtype::Dtype;
use counterflow_emulator::Numbers;
use ndarray::Array2;
use short::{Factors, STEP, add, power, step, whole_of_few_bits};

#[path = "../../../emulator/src/data/short.rs"]
mod short;

/// The same in whole numbers, from codes.
fn by_codes(sum: f32, a: &[u8], b: &[u8], of: [Dtype; 2]) -> f32 {
    // Sign and significand, exponent, fraction bits.
    let parts = |code: u8, of: Dtype| -> (i64, i32, i32) {
        let (bits, bias) = if of == Dtype::E4M3 { (3, 7) } else { (2, 15) };
        let field = i32::from(code & 0x7f) >> bits;
        let fraction = i64::from(code) & ((1 << bits) - 1);
        let significand = fraction + if field > 0 { 1 << bits } else { 0 };
        let sign = if code >= 0x80 { -1 } else { 1 };
        (sign * significand, field.max(1) - bias, bits)
    };
    let mut terms: Vec<(i64, i32, i32)> = a
        .iter()
        .zip(b)
        .map(|(a, b)| {
            let (a, b) = (parts(*a, of[0]), parts(*b, of[1]));
            (a.0 * b.0, a.1 + b.1, a.2 + b.2)
        })
        .collect();
    let bits = sum.to_bits();
    if sum != 0.0 {
        let significand = i64::from(bits & 0x7f_ffff | 0x80_0000);
        let sign = if sum < 0.0 { -1 } else { 1 };
        terms.push((sign * significand, (bits >> 23 & 0xff) as i32 - 127, 23));
    }
    terms.retain(|term| term.0 != 0);
    let Some(most) = terms.iter().map(|term| term.1).max() else {
        return 0.0;
    };
    let shifted = |(significand, exponent, fraction): (i64, i32, i32)| {
        let by = 13 - fraction - (most - exponent);
        match by >= 0 {
            true => significand << by,
            false => significand / (1i64 << (-by).min(62)),
        }
    };
    let units: i64 = terms.into_iter().map(shifted).sum();
    let more = (63 - 13 - units.unsigned_abs().leading_zeros() as i32).max(0);
    let units = units / (1 << more) * (1 << more);
    (units as f64 * 2f64.powi(most - 13)) as f32
}

#[test]
fn sums_are_those_of_whole_numbers() {
    let pairs = [
        [Dtype::E4M3, Dtype::E4M3],
        [Dtype::E4M3, Dtype::E5M2],
        [Dtype::E5M2, Dtype::E4M3],
    ];
    let mut numbers = Numbers::new(5);
    for (pair, round) in pairs
        .into_iter()
        .flat_map(|pair| (0..200).map(move |round| (pair, round)))
    {
        let depth = [32, 48, 7][round % 3];
        let mut codes = |of: Dtype, rows: usize| -> Vec<u8> {
            let mut code = || {
                let code = numbers.below(256) as u8;
                let code = if round % 4 == 1 { code & 0x8f } else { code };
                if of.read(&[code]).is_finite() {
                    code
                } else {
                    0x31
                }
            };
            (0..rows * depth).map(|_| code()).collect()
        };
        let (a, b) = (codes(pair[0], 3), codes(pair[1], 5));
        let view = |codes: &[u8], of: Dtype| {
            let numbers = codes.iter().map(|code| of.read(&[*code])).collect();
            Array2::from_shape_vec((codes.len() / depth, depth), numbers).expect("rows")
        };
        let (left, right) = (view(&a, pair[0]), view(&b, pair[1]));
        let start = [0.0, 1.0, -3.7e-5, 123_456.7, 1e-12, -7e9][round % 6];
        let mut sums = vec![start; 15];
        add(&mut sums, (&left.view(), pair[0]), (&right.view(), pair[1]));
        for (at, sum) in sums.iter().enumerate() {
            let row = &a[at / 5 * depth..][..depth];
            let column = &b[at % 5 * depth..][..depth];
            let steps = row.chunks(32).zip(column.chunks(32));
            let wanted = steps.fold(start, |sum, (a, b)| by_codes(sum, a, b, pair));
            assert_eq!(*sum, wanted, "{pair:?} on {start}");
        }
    }
}

/// Products of two codes have at most 8 bits, and are below 2^15 in units.
#[test]
fn few_bits_are_cut_off_behind_the_point() {
    for significand in 0..=255u8 {
        for exponent in -60..=7 {
            let number = f32::from(significand) * 2f32.powi(exponent);
            for number in [number, -number] {
                let found = whole_of_few_bits(number);
                assert_eq!(found.to_bits(), number.trunc().to_bits(), "{number}");
            }
        }
    }
}

#[test]
fn small_whole_numbers_are_added_exactly_and_larger_ones_in_13_bits() {
    let mut numbers = Numbers::new(7);
    for most in [1u64, 4, 15, 16] {
        let depth = 48;
        let mut whole = |rows: usize| {
            let number = |_| numbers.below(2 * most + 1) as f32 - most as f32;
            let all = (0..rows * depth).map(number).collect();
            Array2::from_shape_vec((rows, depth), all).expect("rows")
        };
        let (a, b) = (whole(3), whole(5));
        let of = Dtype::E4M3;
        for start in [0.0, -37.0, 8192.0] {
            let mut sums = vec![start; 15];
            add(&mut sums, (&a.view(), of), (&b.view(), of));
            let (left, right) = (Factors::of(&a.view(), of), Factors::of(&b.view(), of));
            for (at, sum) in sums.iter().enumerate() {
                let wanted = (0..2).fold(start, |sum, next| {
                    let (row, column) = (at / 5 * 2 + next, at % 5 * 2 + next);
                    step(
                        sum,
                        (&left.numbers[row], &left.powers[row]),
                        (&right.numbers[column], &right.powers[column]),
                    )
                });
                assert_eq!(*sum, wanted, "numbers to {most} on {start}");
            }
        }
    }
}

#[test]
fn bits_below_13_are_cut_off() {
    let mut a = ([0.0; STEP], [0.0; STEP]);
    let mut b = a;
    for (at, (left, right)) in [(1.0, 1.0), (0.0078125, 0.0078125)].into_iter().enumerate() {
        (a.0[at], b.0[at]) = (left, right);
        (a.1[at], b.1[at]) = (power(left).max(1.0 / 64.0), power(right).max(1.0 / 64.0));
    }
    // 2^-14 is less than the last bit.
    assert_eq!(step(0.0, (&a.0, &a.1), (&b.0, &b.1)), 1.0);
    assert_eq!(step(-0.5, (&a.0, &a.1), (&b.0, &b.1)), 0.5);
    assert!(step(f32::NAN, (&a.0, &a.1), (&b.0, &b.1)).is_nan());
}
