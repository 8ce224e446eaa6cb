//! FP8 codes on their side, and the largest amax of ranks.

/// Codes with columns as rows, each of `pitch` codes: 0 behind those that there are.
///
/// ```
/// assert_eq!(counterflow_layers::side::twin::transposed(&[1, 2, 3, 4, 5, 6], [2, 3], 4), [1, 4, 0, 0, 2, 5, 0, 0, 3, 6, 0, 0]);
/// ```
///
/// # Panics
/// If there are not so many codes, or `pitch` is less than the rows.
pub fn transposed(codes: &[u8], [rows, columns]: [usize; 2], pitch: usize) -> Vec<u8> {
    assert_eq!(codes.len(), rows * columns);
    let mut turned = vec![0; columns * pitch];
    for (row, codes) in codes.chunks_exact(columns).enumerate() {
        for (column, code) in codes.iter().enumerate() {
            turned[column * pitch + row] = *code;
        }
    }
    turned
}

/// The largest of the ranks' amaxes, each rank's `pitch` numbers behind the last one's. NaN is not seen.
///
/// ```
/// let of_ranks = [1.0, 5.0, f32::NAN, 2.0];
/// assert_eq!(counterflow_layers::side::twin::largest_of_ranks(&of_ranks, 2, 2), [1.0, 5.0]);
/// ```
///
/// # Panics
/// If a rank has fewer numbers than `amaxes`.
pub fn largest_of_ranks(of_ranks: &[f32], amaxes: usize, pitch: usize) -> Vec<f32> {
    let of = |at| {
        let each = of_ranks.chunks_exact(pitch).map(move |rank| rank[at]);
        each.fold(0.0, |found, amax| if amax > found { amax } else { found })
    };
    (0..amaxes).map(of).collect()
}
