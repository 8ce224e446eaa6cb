//! Limits on tiles of items that store FP8.

use super::asked::TileRequest;
use super::finding::refuse;
use super::subtiles::{LINE, Needs, fits_codes};
use super::wgmma::{MOST, Wgmma};
use crate::diag::Diagnostic;
use crate::tiling::Tiling;

/// A row of a subtile is a line of the narrowest swizzle, at least: of FP8, it has twice as many columns.
pub(super) fn whole_lines_of_bytes(asked: &TileRequest<'_>, tiling: &Tiling) -> Option<Diagnostic> {
    let at = asked.item.bytes?;
    let (columns, narrowest) = match tiling.swap_ab() {
        true => (tiling.tile().columns, 128),
        false => (tiling.subtile().columns, LINE),
    };
    let message = format!("{} that are stored in FP8", asked.tiles());
    let wanted = match tiling.swap_ab() {
        true => narrowest,
        false => narrowest * asked.kind.split,
    };
    let hint = format!("a multiple of {wanted} columns: lines of the swizzle are whole");
    (!columns.is_multiple_of(narrowest)).then(|| refuse(at, message, hint))
}

/// Lanes exchange codes while the stored tiles that they are made of are in registers. Where a tile is swapped, each code has
/// an address of its own, too: 120x256 of two stored tiles spills by subtiles of 24 rows, and 80x256 by 16.
pub(super) fn registers_beside_codes(
    asked: &TileRequest<'_>,
    tiling: &Tiling,
) -> Option<Diagnostic> {
    let read = asked.item.inputs.len() + asked.item.sums.len();
    let at = asked.item.bytes.filter(|_| read > 1)?;
    let fits = |wgmma: Wgmma| fits_codes(wgmma, LINE, read as u32, asked.results.amax);
    if !tiling.swap_ab() && fits(asked.wgmma) {
        return None;
    }
    let message = format!("FP8 made of {read} stored tiles, in {}", asked.tiles());
    let needs = asked.needs();
    let fits_beside = |wgmma: Wgmma| {
        let places = Needs { wgmma, ..needs }.places(wgmma.tile.rows * LINE);
        fits(wgmma) && places >= read as u32
    };
    let widest = [128, 256].map(|rows| {
        let columns = widest(asked, rows, fits_beside)?;
        Some(format!("{rows} rows by up to {columns} columns"))
    });
    let others = widest.into_iter().flatten();
    let others: Vec<_> = others.chain(["one stored tile an item".into()]).collect();
    let others = others.join(", or ");
    let hint = format!("{others}: FP8 results and stored tiles share the room of a thread");
    Some(refuse(at, message, hint))
}

/// Columns of the widest tile of so many rows that fits.
fn widest(asked: &TileRequest<'_>, rows: u32, fits: impl Fn(Wgmma) -> bool) -> Option<u32> {
    let columns = LINE * asked.kind.split;
    let mut all = (1..=MOST / columns).rev().map(|lines| lines * columns);
    let products = asked.wgmma.products;
    all.find(|columns| fits(Wgmma::new(&asked.kind, (rows, *columns), products)))
}
