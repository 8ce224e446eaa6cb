//! Numbers beside results of FP8, on the host: amaxes, and planes of scales, within what the sums may be off.

use crate::cuda::Difference;
use counterflow_codegen::bounds::{ComputedScale, Magnitude};
use counterflow_codegen::rule::ScaleRule;

/// Bytes as f32 numbers.
pub(super) fn numbers(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// Numbers by their share of what is allowed: NaN, and what is not there, is wrong.
fn difference(shares: impl Iterator<Item = f64>) -> Difference {
    shares.fold(Difference::default(), |all, share| {
        let right = share <= 1.0;
        all.and(Difference {
            wrong: u32::from(!right),
            worst: share.max(0.0) as f32,
        })
    })
}

/// The first number beside the largest of all blocks.
pub(super) fn amax(got: &[f32], blocks: &[Magnitude]) -> Difference {
    let most = (blocks.iter().copied()).fold(Magnitude::default(), Magnitude::and);
    let got = got.first().copied().unwrap_or(f32::NAN);
    difference([most.share(got)].into_iter())
}

/// A plane, each line of which has a number for each row and zeros up to `pitch`, beside the scales of the blocks of rows
/// of so many
/// lines.
pub(super) fn scales(
    rule: &ScaleRule,
    (plane, pitch): (&[f32], usize),
    (blocks, lines): (&[Magnitude], usize),
) -> Difference {
    let rows = blocks.len() / lines.max(1);
    let scales = blocks.iter().enumerate().map(|(at, block)| {
        let (row, line) = (at / lines, at % lines);
        let got = plane.get(line * pitch + row).copied();
        ComputedScale::of(rule, block).share(got.unwrap_or(f32::NAN))
    });
    let padding = (0..lines).flat_map(|line| line * pitch + rows..(line + 1) * pitch);
    let padding = padding.map(|at| match plane.get(at) {
        Some(0.0) => 0.0,
        Some(_) | None => f64::INFINITY,
    });
    difference(scales.chain(padding))
}

/// Loss of the least code of each block, rounded up.
pub(super) fn least(rule: &ScaleRule, blocks: &[Magnitude]) -> Vec<f32> {
    let least = |block| ComputedScale::of(rule, block).least_code(rule) as f32;
    blocks.iter().map(|block| least(block).next_up()).collect()
}

#[cfg(test)]
mod tests;
