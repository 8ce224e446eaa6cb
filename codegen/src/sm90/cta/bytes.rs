//! What tiles must be whose items store FP8.

use super::asked::Asked;
use super::rules::refuse;
use super::smem::{LINE, fits_codes};
use crate::diag::Diagnostic;
use crate::tiling::Tiling;

/// A row of a subtile is a line of the narrowest swizzle, at least: of FP8, it has twice as many columns.
pub(super) fn whole_lines_of_bytes(asked: &Asked<'_>, tiling: &Tiling) -> Option<Diagnostic> {
    let at = asked.item.bytes?;
    let (columns, narrowest) = match tiling.swapped() {
        true => (tiling.tile().columns, 128),
        false => (tiling.subtile().columns, LINE),
    };
    let message = format!("{} that are stored in FP8", asked.tiles());
    let wanted = match tiling.swapped() {
        true => narrowest,
        false => narrowest * asked.kind.split,
    };
    let hint = format!("a multiple of {wanted} columns: lines of the swizzle are whole");
    (!columns.is_multiple_of(narrowest)).then(|| refuse(at, message, hint))
}

/// Lanes exchange codes while the stored tiles that they are made of are in registers. Where a tile is swapped, each code has
/// an address of its own, too: 120x256 of two stored tiles spills by subtiles of 24 rows, and 80x256 by 16.
pub(super) fn registers_beside_codes(asked: &Asked<'_>, tiling: &Tiling) -> Option<Diagnostic> {
    let read = asked.item.inputs.len() + asked.item.sums.len();
    let at = asked.item.bytes.filter(|_| read > 1)?;
    let fits = fits_codes(asked.wgmma, LINE, read as u32, asked.results.measured);
    if !tiling.swapped() && fits {
        return None;
    }
    let message = format!("FP8 made of {read} stored tiles, in {}", asked.tiles());
    let hint = "128 rows, or 256 by up to 96 columns (64 with an amax): codes are exchanged beside the stored tiles, all in registers; or one stored tile \
        an item";
    Some(refuse(at, message, hint))
}
