//! A row on the host: what kernels must equal bit for bit, and what emulated ranks run.

use half::bf16;

/// Threads of a CTA at most, where each has 8 elements of a row.
const MOST_THREADS: usize = 768;
/// Threads of a CTA at most, where each has more: they need more registers.
const THREADS_OF_MORE: usize = 512;
/// Times that a thread may have 8 elements of a row.
const MOST_HELD: usize = 6;
/// Elements of a row at most.
pub(crate) const MOST_COLUMNS: usize = THREADS_OF_MORE * MOST_HELD * 8;

/// Threads of a CTA for rows of so many elements, and how many times a thread has 8 of them. They depend on nothing else, so a row
/// has the same bits however many rows there are.
pub(crate) fn threads(columns: usize) -> (usize, usize) {
    let eights = (columns / 8).max(1);
    let held = match eights > MOST_THREADS {
        true => eights.div_ceil(THREADS_OF_MORE),
        false => 1,
    };
    (eights.div_ceil(held).next_multiple_of(32), held)
}

/// Rounded to nearest, ties to even; every NaN becomes the same.
fn narrow(value: f32) -> bf16 {
    match value.is_nan() {
        true => bf16::from_bits(0x7fff),
        false => bf16::from_f32(value),
    }
}

/// The sum of squares of a row: each thread's, then lanes of a warp in pairs, then warp after warp.
fn squares(row: &[bf16]) -> f32 {
    let (threads, held) = threads(row.len());
    let eights: Vec<&[bf16]> = row.chunks(8).collect();
    let of_thread = |thread: usize| {
        let own = (0..held).filter_map(|i| eights.get(i * threads + thread));
        own.flat_map(|eight| eight.iter()).fold(0f32, |sum, value| {
            let value = value.to_f32();
            sum + value * value
        })
    };
    let each: Vec<f32> = (0..threads).map(of_thread).collect();
    let of_warp = |lanes: &[f32]| {
        let mut lanes = lanes.to_vec();
        for apart in [16, 8, 4, 2, 1] {
            lanes = (0..32)
                .map(|lane| lanes[lane] + lanes[lane ^ apart])
                .collect();
        }
        lanes[0]
    };
    let mut warps = each.chunks(32).map(of_warp);
    let first = warps.next().unwrap_or(0.0);
    warps.fold(first, |sum, warp| sum + warp)
}

/// The new residual of a row, and the row normalised: `partials` are the ranks' rows, by rank.
pub(crate) fn row(
    partials: &[&[bf16]],
    residual: &[bf16],
    gamma: &[bf16],
    eps: f32,
) -> [Vec<bf16>; 2] {
    let columns = residual.len();
    let sum = |at: usize| {
        let mut ranks = partials.iter().map(|row| row[at].to_f32());
        let first = ranks.next().unwrap_or(0.0);
        narrow(ranks.fold(first, |sum, value| sum + value) + residual[at].to_f32())
    };
    let sums: Vec<bf16> = (0..columns).map(sum).collect();
    let factor = 1.0 / (squares(&sums) / columns as f32 + eps).sqrt();
    let scaled = sums.iter().zip(gamma);
    let scaled = scaled.map(|(value, gamma)| narrow(value.to_f32() * factor * gamma.to_f32()));
    let scaled = scaled.collect();
    [sums, scaled]
}
