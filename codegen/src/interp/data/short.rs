//! Sums of FP8 products as Hopper's tensor cores make them, to the bit: `quantise/tests/hardware/sums.rs` holds a GPU to it.
//!
//! They add 32 products and the sum before at once. A product's exponent is the sum of its factors', which for subnormals is
//! that of the smallest normal number. All are aligned to the largest exponent of what is not zero, cut off towards zero after
//! 13 fraction bits, and so is their sum.

use super::Dtype;
use ndarray::ArrayView2;

/// Products that are added at once.
const STEP: usize = 32;
const LANES: usize = 8;
/// Of the largest exponent's power, the last bit that is kept is this part.
const KEPT: f32 = 8192.0;
/// Between this and twice as much, f32 has whole numbers only.
const WHOLE: f32 = 8_388_608.0;

/// Rows of an operand, in steps: numbers, and the powers of two that their codes' exponents say; 0 where the number is.
struct Factors {
    numbers: Vec<[f32; STEP]>,
    powers: Vec<[f32; STEP]>,
    /// Steps of a row.
    steps: usize,
}

impl Factors {
    fn of(rows: &ArrayView2<'_, f32>, dtype: Dtype) -> Factors {
        let least = match dtype {
            Dtype::E4M3 => 1.0 / 64.0,
            Dtype::E5M2 => 1.0 / 16384.0,
            Dtype::Bf16 | Dtype::F16 | Dtype::F32 => f32::MIN_POSITIVE,
        };
        let steps = rows.ncols().div_ceil(STEP);
        let mut factors = Factors {
            numbers: vec![[0.0; STEP]; rows.nrows() * steps],
            powers: vec![[0.0; STEP]; rows.nrows() * steps],
            steps,
        };
        for ((row, column), number) in rows.indexed_iter() {
            let (step, at) = (row * steps + column / STEP, column % STEP);
            factors.numbers[step][at] = *number;
            factors.powers[step][at] = match *number == 0.0 {
                true => 0.0,
                false => power(*number).max(least),
            };
        }
        factors
    }
}

/// The power of two that begins a number: infinite for what is no number.
fn power(number: f32) -> f32 {
    f32::from_bits(number.to_bits() & 0x7f80_0000)
}

/// The whole number next to it towards zero, of at most 2^22.
fn whole(number: f32) -> f32 {
    let size = number.abs();
    let near = (size + WHOLE) - WHOLE;
    let below = if near > size { near - 1.0 } else { near };
    below.copysign(number)
}

/// A sum with a step more. Lanes are for the compiler: whole numbers of 24 bits add up alike in every order.
fn step(sum: f32, a: (&[f32; STEP], &[f32; STEP]), b: (&[f32; STEP], &[f32; STEP])) -> f32 {
    let mut lanes = [power(sum); LANES];
    for (a, b) in a.1.chunks_exact(LANES).zip(b.1.chunks_exact(LANES)) {
        for ((most, a), b) in lanes.iter_mut().zip(a).zip(b) {
            let power = a * b;
            if power > *most {
                *most = power;
            }
        }
    }
    let most = lanes.into_iter().fold(0.0, f32::max);
    if most == 0.0 {
        return 0.0;
    }
    if most.is_infinite() {
        // NaN and infinities are what they are in any sum.
        return a.0.iter().zip(b.0).fold(sum, |sum, (a, b)| sum + a * b);
    }
    let unit = KEPT / most;
    let mut lanes = [0.0; LANES];
    for (a, b) in a.0.chunks_exact(LANES).zip(b.0.chunks_exact(LANES)) {
        for ((units, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *units += whole(a * b * unit);
        }
    }
    let units = lanes.into_iter().sum::<f32>() + whole(sum * unit);
    // As many bits as are kept, of a sum that has more.
    let last = (power(units) / KEPT).max(1.0);
    whole(units / last) * last / unit
}

/// The size of the largest number, if all are whole.
fn largest_of_whole<'a>(numbers: impl IntoIterator<Item = &'a f32>) -> Option<f32> {
    let size = |most: f32, number: &f32| (number.fract() == 0.0).then(|| most.max(number.abs()));
    numbers.into_iter().try_fold(0.0, size)
}

/// Whether all sums on the way are whole numbers of as many bits as are kept, so that nothing is cut off.
fn is_exact(sums: &[f32], a: &ArrayView2<'_, f32>, b: &ArrayView2<'_, f32>) -> bool {
    let (Some(sum), Some(left), Some(right)) = (
        largest_of_whole(sums),
        largest_of_whole(a),
        largest_of_whole(b),
    ) else {
        return false;
    };
    sum + left * right * a.ncols() as f32 <= KEPT
}

/// `sums += a · bᵀ`, row by row of the sums.
pub(super) fn add(
    sums: &mut [f32],
    a: (&ArrayView2<'_, f32>, Dtype),
    b: (&ArrayView2<'_, f32>, Dtype),
) {
    let columns = b.0.nrows();
    if is_exact(sums, a.0, b.0) {
        for (sum, more) in sums.iter_mut().zip(&a.0.dot(&b.0.t())) {
            *sum += more;
        }
        return;
    }
    let (a, b) = (Factors::of(a.0, a.1), Factors::of(b.0, b.1));
    for (at, sum) in sums.iter_mut().enumerate() {
        let (row, column) = (at / columns * a.steps, at % columns * b.steps);
        for next in 0..a.steps {
            let (left, right) = (row + next, column + next);
            *sum = step(
                *sum,
                (&a.numbers[left], &a.powers[left]),
                (&b.numbers[right], &b.powers[right]),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use counterflow_codegen::interp::Numbers;
    use ndarray::Array2;

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
}
