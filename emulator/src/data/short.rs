//! Sums of FP8 products as Hopper's tensor cores make them, to the bit: `quantise/tests/hardware/sums.rs` holds a GPU to it.
//!
//! They add 32 products and the sum before at once. A product's exponent is the sum of its factors', which for subnormals is
//! that of the smallest normal number. All are aligned to the largest exponent of what is not zero, cut off towards zero after
//! 13 fraction bits, and so is their sum.

use counterflow_codegen::dtype::Dtype;
use ndarray::ArrayView2;

/// Products that are added at once.
pub(super) const STEP: usize = 32;
const LANES: usize = 8;
/// Of the largest exponent's power, the last bit that is kept is this part.
const KEPT: f32 = 8192.0;
/// Between this and twice as much, f32 has whole numbers only.
const WHOLE: f32 = 8_388_608.0;

/// Rows of an operand, in steps: numbers, and the powers of two that their codes' exponents say; 0 where the number is.
pub(super) struct Factors {
    pub(super) numbers: Vec<[f32; STEP]>,
    pub(super) powers: Vec<[f32; STEP]>,
    /// Steps of a row.
    steps: usize,
}

impl Factors {
    pub(super) fn of(rows: &ArrayView2<'_, f32>, dtype: Dtype) -> Factors {
        // The smallest number with all bits of precision.
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a power of two that f32 has"
        )]
        let least = (dtype.half_subnormal() / dtype.unit_roundoff()) as f32;
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

/// Rows of an operand beside each other, so many at a time: of each step, the numbers of all of them at each place.
struct Beside {
    numbers: Vec<[[f32; LANES]; STEP]>,
    powers: Vec<[[f32; LANES]; STEP]>,
}

impl Beside {
    /// Behind the last row there are zeros.
    fn of(factors: &Factors, rows: usize) -> Beside {
        let steps = factors.steps;
        let turned = |of: &[[f32; STEP]]| -> Vec<[[f32; LANES]; STEP]> {
            let mut all = vec![[[0.0; LANES]; STEP]; rows.div_ceil(LANES) * steps];
            for (at, step) in of.iter().enumerate() {
                let (row, next) = (at / steps, at % steps);
                let beside = &mut all[row / LANES * steps + next];
                for (places, number) in beside.iter_mut().zip(step) {
                    places[row % LANES] = *number;
                }
            }
            all
        };
        Beside {
            numbers: turned(&factors.numbers),
            powers: turned(&factors.powers),
        }
    }
}

/// As [`step`], of one row's sums with several rows beside each other: without a sum over lanes, a processor does all of them at
/// once. False, and nothing is done, where one of the first `rows` has no numbers to align, or is none. Others are garbage.
fn steps_beside(
    sums: &mut [f32; LANES],
    rows: usize,
    a: (&[f32; STEP], &[f32; STEP]),
    b: (&[[f32; LANES]; STEP], &[[f32; LANES]; STEP]),
) -> bool {
    let mut most = sums.map(power);
    for (a, b) in a.1.iter().zip(b.1) {
        for (most, b) in most.iter_mut().zip(b) {
            let power = a * b;
            if power > *most {
                *most = power;
            }
        }
    }
    if !(most[..rows].iter()).all(|most| *most > 0.0 && most.is_finite()) {
        return false;
    }
    let unit = most.map(|most| KEPT / most);
    let mut units = [0.0; LANES];
    for (a, b) in a.0.iter().zip(b.0) {
        for ((units, b), unit) in units.iter_mut().zip(b).zip(&unit) {
            *units += whole_of_few_bits(a * b * unit);
        }
    }
    for ((sum, units), unit) in sums.iter_mut().zip(units).zip(unit) {
        *sum = rounded(units + whole(*sum * unit), unit);
    }
    true
}

/// The power of two that begins a number: infinite for what is no number.
pub(super) fn power(number: f32) -> f32 {
    f32::from_bits(number.to_bits() & 0x7f80_0000)
}

/// The whole number next to it towards zero, of at most 2^22.
fn whole(number: f32) -> f32 {
    let size = number.abs();
    let near = (size + WHOLE) - WHOLE;
    let below = if near > size { near - 1.0 } else { near };
    below.copysign(number)
}

/// As [`whole`], of a number of at most 8 bits below 2^15, as products of two codes in units are. What it has behind the point is at
/// most 255/256, so without nearly a half it is next to what it is cut off to.
pub(super) fn whole_of_few_bits(number: f32) -> f32 {
    // All of it is exact but for the sum, which has whole numbers on both sides of `BETWEEN`.
    const NEARLY_HALF: f32 = 0.5 - 1.0 / 512.0;
    const BETWEEN: f32 = WHOLE * 1.5;
    let near = (number.abs() - NEARLY_HALF + BETWEEN) - BETWEEN;
    near.copysign(number)
}

/// A sum with a step more. Lanes are for the compiler: whole numbers of 24 bits add up alike in every order.
pub(super) fn step(
    sum: f32,
    a: (&[f32; STEP], &[f32; STEP]),
    b: (&[f32; STEP], &[f32; STEP]),
) -> f32 {
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
            *units += whole_of_few_bits(a * b * unit);
        }
    }
    rounded(lanes.into_iter().sum::<f32>() + whole(sum * unit), unit)
}

/// As many bits as are kept, of a sum of units that may have more.
fn rounded(units: f32, unit: f32) -> f32 {
    let last = (power(units) / KEPT).max(1.0);
    whole(units / last) * last / unit
}

/// The size of the largest number, if all are whole.
fn largest_of_whole<'a>(numbers: impl IntoIterator<Item = &'a f32>) -> Option<f32> {
    let size = |most: f32, number: &f32| (number.fract() == 0.0).then(|| most.max(number.abs()));
    numbers.into_iter().try_fold(0.0, size)
}

/// True if all sums on the way are whole numbers of as many bits as are kept, so that nothing is cut off.
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
    if columns == 0 {
        return;
    }
    let (a, b) = (Factors::of(a.0, a.1), Factors::of(b.0, b.1));
    let beside = Beside::of(&b, columns);
    for (row, sums) in sums.chunks_exact_mut(columns).enumerate() {
        for (block, sums) in sums.chunks_mut(LANES).enumerate() {
            let mut lanes = [0.0; LANES];
            lanes[..sums.len()].copy_from_slice(sums);
            for next in 0..a.steps {
                let (left, right) = (row * a.steps + next, block * b.steps + next);
                let left = (&a.numbers[left], &a.powers[left]);
                let right = (&beside.numbers[right], &beside.powers[right]);
                if steps_beside(&mut lanes, sums.len(), left, right) {
                    continue;
                }
                for (lane, sum) in lanes[..sums.len()].iter_mut().enumerate() {
                    let own = (block * LANES + lane) * b.steps + next;
                    *sum = step(*sum, left, (&b.numbers[own], &b.powers[own]));
                }
            }
            sums.copy_from_slice(&lanes[..sums.len()]);
        }
    }
}
