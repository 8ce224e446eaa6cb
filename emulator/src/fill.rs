//! Inputs for tests and benches, the same on every machine.

use super::outcome::Input;
use super::policy::Numbers;
use super::threads::{on_each, threads};

fn numbers(seed: u64, input: &Input<'_>) -> Numbers {
    let name = input.name.bytes().fold(seed, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut numbers = Numbers::new(name);
    let at = (input.launch as u64) << 32 | u64::from(input.rank);
    let first = numbers.draw();
    Numbers::new(first ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Mostly zeros and a few `±1`, so sparse that sums of products stay small. Below 256 in magnitude (or what the type
/// can hold) every sum is exact in every order, so results can be compared bit for bit. Scales are powers of two, of one size
/// on all ranks. An amax is 0.
pub fn integers(seed: u64) -> impl FnMut(Input<'_>, &mut [f32]) {
    move |input, values| {
        let mut numbers = numbers(seed, &input);
        let (is_scale, is_amax) = (is_scale(&input), is_amax(&input));
        for value in values {
            if is_scale {
                let sign = if numbers.draw() >> 63 == 0 { 1.0 } else { -1.0 };
                *value = sign
                    * if input.name.len().is_multiple_of(2) {
                        0.5
                    } else {
                        4.0
                    };
                continue;
            }
            if is_amax {
                *value = 0.0;
                continue;
            }
            *value = match numbers.draw() >> 61 {
                0 => 1.0,
                1 => -1.0,
                _ => 0.0,
            };
        }
    }
}

/// True if it is what the elements of an operand are multiplied by. No tensor that a schedule names has a dot in its name.
fn is_scale(input: &Input<'_>) -> bool {
    input.name.ends_with(".scale")
}

/// True if it is the largest absolute value of an output.
fn is_amax(input: &Input<'_>) -> bool {
    input.name.ends_with(".amax")
}

/// Uniform in [-1, 1), amaxes too; scales in [0.25, 1.25).
pub fn uniform(seed: u64) -> impl FnMut(Input<'_>, &mut [f32]) {
    /// Values of a block.
    const BLOCK: usize = 1 << 16;
    /// Multiply-adds that take as long as to draw one.
    const EACH: u64 = 8;
    move |input, values| {
        let numbers = numbers(seed, &input);
        let is_scale = is_scale(&input);
        let threads = threads(EACH * values.len() as u64);
        let blocks = values.chunks_mut(BLOCK).enumerate();
        on_each(
            threads,
            blocks,
            || (),
            |(), (at, block)| {
                let mut numbers = numbers.behind(at * BLOCK);
                for value in block {
                    #[expect(clippy::cast_precision_loss, reason = "24 bits are exact in f32")]
                    let unit = (numbers.draw() >> 40) as f32 / (1u32 << 24) as f32;
                    *value = if is_scale {
                        0.25 + unit
                    } else {
                        2.0 * unit - 1.0
                    };
                }
            },
        );
    }
}
