//! Rectangles that cover another one together.

use super::Extent;

/// Rows and columns.
type Rectangle = [Extent; 2];

/// True if the pieces together have all rows and columns of a rectangle, however they overlap.
///
/// ```
/// use counterflow_codegen::shape::{Extent, covers};
///
/// let part = |[top, bottom, first, last]: [u32; 4]| {
///     [(top, bottom), (first, last)].map(|(start, end)| Extent { start, end })
/// };
/// let all = part([2, 10, 0, 8]);
/// let covered = |pieces: &[[u32; 4]]| covers(pieces.iter().copied().map(part), all);
/// assert!(covered(&[[0, 6, 0, 8], [6, 12, 0, 4], [6, 10, 4, 9]]));
/// // As many elements as the rectangle has, or more.
/// let half = [2, 6, 0, 8];
/// assert!(!covered(&[half, half]));
/// assert!(!covered(&[half, [4, 10, 0, 7], [2, 10, 0, 4]]));
/// assert!(covered(&[half, [4, 10, 0, 7], [5, 10, 7, 8]]));
/// assert!(!covered(&[]));
/// assert!(covers([], part([3, 3, 0, 8])), "there is nothing to cover");
/// ```
pub fn covers(pieces: impl IntoIterator<Item = Rectangle>, all: Rectangle) -> bool {
    let has_some = |of: &Rectangle| of.iter().all(|side| !side.is_empty());
    let mut left: Vec<Rectangle> = Some(all).into_iter().filter(has_some).collect();
    for piece in pieces {
        if left.is_empty() {
            break;
        }
        let mut rest = Vec::with_capacity(left.len());
        for of in left {
            match without(of, piece) {
                Some(around) => rest.extend(around.into_iter().filter(has_some)),
                None => rest.push(of),
            }
        }
        left = rest;
    }
    left.is_empty()
}

/// Rectangles above, below, left and right of a piece. None if the two share nothing.
fn without([rows, columns]: Rectangle, [of_rows, of_columns]: Rectangle) -> Option<[Rectangle; 4]> {
    if !rows.overlaps(of_rows) || !columns.overlaps(of_columns) {
        return None;
    }
    let extent = |start: u32, end: u32| Extent { start, end };
    let middle = extent(rows.start.max(of_rows.start), rows.end.min(of_rows.end));
    Some([
        [extent(rows.start, middle.start), columns],
        [extent(middle.end, rows.end), columns],
        [middle, extent(columns.start, of_columns.start)],
        [middle, extent(of_columns.end, columns.end)],
    ])
}
