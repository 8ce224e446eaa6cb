//! Rounding to element types.

use crate::fixtures::wide::sampled;
// Named as in the library, for its sums of FP8 products (`short_sums`).
pub(crate) use counterflow_codegen::dtype::Dtype;

/// Writing rounds as `round` does, and reading gives that back.
#[test]
fn what_is_written_is_read_rounded() {
    for dtype in Dtype::ALL {
        let mut place = vec![0; dtype.bytes() as usize];
        for value in [
            0.0,
            -1.0,
            0.1,
            3.0e-6,
            65504.0,
            f32::INFINITY,
            1.0 / 3.0,
            1e30,
        ] {
            dtype.write(value, &mut place);
            assert_eq!(dtype.read(&place), dtype.round(value), "{value} as {dtype}");
        }
        dtype.write(f32::NAN, &mut place);
        assert!(dtype.read(&place).is_nan(), "{dtype}");
        let least = 2.0 * dtype.half_subnormal();
        assert_eq!(f64::from(dtype.round(least as f32)), least, "{dtype}");
        assert_eq!(dtype.round((least * 0.49) as f32), 0.0, "{dtype}");
    }
}

/// The numbers of an FP8 type that its 256 codes stand for, worked out from exponent and mantissa.
fn numbers(dtype: Dtype) -> Vec<(u8, f64)> {
    let (mantissa_bits, bias) = match dtype {
        Dtype::E4M3 => (3, 7),
        _ => (2, 15),
    };
    let of = |code: u8| {
        let magnitude = i32::from(code & 0x7f);
        let (exponent, mantissa) = (magnitude >> mantissa_bits, magnitude % (1 << mantissa_bits));
        let none = match dtype {
            Dtype::E4M3 => magnitude == 0x7f,
            _ => exponent == 31,
        };
        let (whole, power) = match exponent {
            0 => (mantissa, 1),
            _ => (mantissa + (1 << mantissa_bits), exponent),
        };
        let value = f64::from(whole) * 2f64.powi(power - bias - mantissa_bits);
        let sign = if code < 0x80 { 1.0 } else { -1.0 };
        (!none).then_some((code, sign * value))
    };
    (0..=255).filter_map(of).collect()
}

/// The code of the nearest of all those numbers with that sign, of two as near the even one.
fn nearest(numbers: &[(u8, f64)], value: f32) -> u8 {
    if value.is_nan() {
        return 0x7f;
    }
    let alike = |(code, _): &&(u8, f64)| (*code >= 0x80) == value.is_sign_negative();
    let value = f64::from(value).clamp(-1e6, 1e6);
    let far = |(_, number): &(u8, f64)| (number - value).abs();
    let order =
        |a: &&(u8, f64), b: &&(u8, f64)| far(a).total_cmp(&far(b)).then((a.0 % 2).cmp(&(b.0 % 2)));
    let found = numbers.iter().filter(alike).min_by(order);
    found.expect("there are numbers of each sign").0
}

fn code(dtype: Dtype, value: f32) -> u8 {
    let mut place = [0];
    dtype.write(value, &mut place);
    place[0]
}

/// A number is written as that code, and rounded to the number that the code stands for.
fn rounds_to(dtype: Dtype, value: f32, wanted: u8) {
    assert_eq!(code(dtype, value), wanted, "{value} as {dtype}");
    let (rounded, read) = (dtype.round(value), dtype.read(&[wanted]));
    let same = rounded.to_bits() == read.to_bits() || rounded.is_nan() && read.is_nan();
    assert!(same, "{value} as {dtype}: {rounded}, {read}");
}

const FP8: [Dtype; 2] = [Dtype::E4M3, Dtype::E5M2];

#[test]
fn codes_of_fp8_are_read_as_the_numbers_that_they_stand_for() {
    for dtype in FP8 {
        let known = numbers(dtype);
        for code in 0..=255u8 {
            let read = dtype.read(&[code]);
            match known.iter().find(|(known, _)| *known == code) {
                Some((_, number)) => {
                    assert_eq!(f64::from(read), *number, "{dtype} {code:#x}");
                    assert_eq!(read.is_sign_negative(), code >= 0x80, "{dtype} {code:#x}");
                }
                None => assert!(!read.is_finite(), "{dtype} {code:#x}"),
            }
        }
    }
}

#[test]
fn every_bf16_becomes_the_nearest_fp8() {
    for dtype in FP8 {
        let known = numbers(dtype);
        for bits in sampled(0..=u16::MAX, 5) {
            let value = half::bf16::from_bits(bits).to_f32();
            rounds_to(dtype, value, nearest(&known, value));
        }
    }
}

/// Between neighbours the middle goes to the even code, and the next f32 on either side of it to that side. Beyond the
/// largest, all is the largest.
#[test]
fn every_boundary_of_fp8_is_where_the_nearest_number_changes() {
    for dtype in FP8 {
        let known = numbers(dtype);
        let mut sorted: Vec<f64> = known.iter().map(|(_, number)| *number).collect();
        sorted.sort_by(f64::total_cmp);
        let middles = sorted.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
        let largest = sorted[sorted.len() - 1];
        let ends = [largest, 1.04 * largest, f64::INFINITY];
        let all = middles
            .chain(ends)
            .chain(ends.map(|end| -end))
            .chain(sorted.iter().copied());
        for middle in all {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "f32 has more bits than two neighbours need"
            )]
            let middle = middle as f32;
            for value in [middle.next_down(), middle, middle.next_up()] {
                rounds_to(dtype, value, nearest(&known, value));
            }
        }
        let signed = [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001)];
        assert!(
            signed.iter().all(|nan| code(dtype, *nan) == 0x7f),
            "{dtype}"
        );
    }
}
