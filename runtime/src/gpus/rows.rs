//! Rows of numbers as the bytes that a GPU's memory has.

use counterflow_codegen::dtype::Dtype;
use std::num::NonZero;
use std::thread;

/// A byte that makes every 16-bit float a NaN, so that an unwritten element never looks like a result.
pub const POISON: u8 = 0xff;

/// Rows of numbers, column by column.
pub(super) fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let column = |at| values.iter().skip(at).step_by(columns.max(1)).copied();
    (0..columns).flat_map(column).collect()
}

/// Rows of numbers as bytes, `pitch` apart, with poison between them. Cores share the rows.
pub(super) fn pack(
    values: &[f32],
    dtype: Dtype,
    (columns, pitch): (usize, usize),
    bytes: &mut Vec<u8>,
) {
    /// Numbers that are worth a thread: about half a millisecond.
    const WORTH: usize = 1 << 16;
    let (columns, pitch) = (columns.max(1), pitch.max(1));
    let rows = values.len() / columns;
    bytes.clear();
    bytes.resize(rows * pitch, POISON);
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = (values.len() / WORTH).clamp(1, cores);
    let part = rows.div_ceil(threads).max(1);
    thread::scope(|scope| {
        let parts = values.chunks(part * columns);
        let mut parts = parts.zip(bytes.chunks_mut(part * pitch));
        let first = parts.next();
        for (values, bytes) in parts {
            scope.spawn(move || write_rows(values, dtype, columns, (bytes, pitch)));
        }
        if let Some((values, bytes)) = first {
            write_rows(values, dtype, columns, (bytes, pitch));
        }
    });
}

fn write_rows(values: &[f32], dtype: Dtype, columns: usize, (to, pitch): (&mut [u8], usize)) {
    let lines = to.chunks_exact_mut(pitch);
    for (row, line) in values.chunks_exact(columns).zip(lines) {
        for (value, place) in row
            .iter()
            .zip(line.chunks_exact_mut(dtype.bytes() as usize))
        {
            dtype.write(*value, place);
        }
    }
}

pub(super) fn unpack(bytes: &[u8], dtype: Dtype, columns: usize, pitch: usize) -> Vec<f32> {
    let width = dtype.bytes() as usize;
    let lines = bytes.chunks_exact(pitch.max(1));
    let number = |place: &[u8]| dtype.read(place);
    lines
        .flat_map(|line| line[..columns * width].chunks_exact(width).map(number))
        .collect()
}

/// Rows of numbers of which each shard is a matrix of its own, with a line for each column.
pub(super) fn unpack_shards(
    bytes: &[u8],
    dtype: Dtype,
    (rows, shard): (usize, usize),
    columns: usize,
    pitch: usize,
) -> Vec<f32> {
    let lines = pitch / dtype.bytes() as usize;
    let all = unpack(bytes, dtype, lines, pitch);
    let line =
        |row: usize| (0..columns).map(move |column| (row / shard * columns + column, row % shard));
    let each = (0..rows).flat_map(line);
    each.map(|(line, at)| all[line * lines + at]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_lie_a_pitch_apart_and_what_is_between_is_poison() {
        let values = [1.0, -2.0, 0.5, 3.0];
        let mut bytes = Vec::new();
        pack(&values, Dtype::Bf16, (2, 8), &mut bytes);
        assert_eq!(bytes.len(), 16);
        assert_eq!(&bytes[4..8], &[POISON; 4]);
        assert_eq!(unpack(&bytes, Dtype::Bf16, 2, 8), values);
        assert!(unpack(&[POISON; 2], Dtype::F16, 1, 2)[0].is_nan());
        assert_eq!(transposed(&values, 2), [1.0, 0.5, -2.0, 3.0]);
    }

    #[test]
    fn shards_lie_behind_each_other_column_by_column() {
        // Three rows of two columns, in shards of two rows; the second has one.
        let lines = [[1.0, 3.0], [2.0, 4.0], [5.0, f32::NAN], [6.0, f32::NAN]].concat();
        let mut bytes = vec![7; 3];
        pack(&lines, Dtype::F32, (2, 16), &mut bytes);
        let rows = unpack_shards(&bytes, Dtype::F32, (3, 2), 2, 16);
        assert_eq!(rows, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }
}
