//! A wave: the tiles that the CTAs of a GPU multiply at the same time.

use crate::order::TileOrder;

/// Rows of tiles that CTAs share where tiles are in groups of four rows or more. Groups of 4, 8 and 16 took as long as each other
/// on both cards: CTAs that are apart in K have no one group any more.
const GROUP: u32 = 8;
const SMALL_GROUP: u32 = 4;

/// Rows and columns of the tiles that so many CTAs multiply at the same time, of `grid` tiles.
pub fn wave(ctas: u32, grid: (u32, u32), order: TileOrder) -> (u32, u32) {
    let (rows, columns) = (grid.0.max(1), grid.1.max(1));
    let group = match order {
        TileOrder::RowMajor => 1,
        TileOrder::ColumnMajor => rows,
        TileOrder::Grouped(group) if group < SMALL_GROUP => group.max(1),
        TileOrder::Grouped(_) => GROUP,
    };
    let down = group.min(rows);
    let across = ctas.div_ceil(down).clamp(1, columns);
    (down.max(ctas.div_ceil(across)).min(rows), across)
}
