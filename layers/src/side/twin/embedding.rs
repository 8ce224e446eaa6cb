//! Rows of an embedding of which a rank has some.

use super::numbers::{narrow, wide};
use counterflow::prelude::bf16;
use std::ops::Range;

/// A row for each id: that of the weights, which has the ids `own` of so many; zeros where another rank has it; NaN where nobody has.
/// Without ids nothing is written.
///
/// ```
/// use counterflow::prelude::bf16;
/// use counterflow_layers::side::twin::embedding;
///
/// let mut y = [bf16::ONE; 6];
/// embedding(&[3, 0, 4], &[bf16::ONE; 4], 2..4, 4, &mut y);
/// assert!(y[..2] == [bf16::ONE; 2] && y[2..4] == [bf16::ZERO; 2] && y[4].is_nan());
/// ```
pub fn embedding(
    ids: &[u32],
    weights: &[bf16],
    own: Range<usize>,
    vocabulary: usize,
    y: &mut [bf16],
) {
    let columns = y.len() / ids.len().max(1);
    if columns == 0 {
        return;
    }
    for (id, y) in ids.iter().zip(y.chunks_exact_mut(columns)) {
        let id = *id as usize;
        match id.checked_sub(own.start).filter(|_| id < own.end) {
            Some(row) => y.copy_from_slice(&weights[row * columns..(row + 1) * columns]),
            None if id < vocabulary => y.fill(bf16::ZERO),
            None => y.fill(narrow(f32::NAN)),
        }
    }
}

/// Adds each row of the output's gradient to that of its id, if the rank has it, in the order of rows.
pub fn embedding_backward(ids: &[u32], dy: &[bf16], own: Range<usize>, gradient: &mut [f32]) {
    let columns = dy.len() / ids.len().max(1);
    if columns == 0 {
        return;
    }
    for (id, dy) in ids.iter().zip(dy.chunks_exact(columns)) {
        let id = *id as usize;
        if !own.contains(&id) {
            continue;
        }
        let row = (id - own.start) * columns;
        let to = gradient[row..row + columns].iter_mut();
        to.zip(dy).for_each(|(to, dy)| *to += wide(*dy));
    }
}
