//! Limits on tiles of items that compute scales of blocks of their results.

use super::asked::TileRequest;
use super::finding::refuse;
use super::subtiles::{Sums, VALUES};
use crate::diag::Diagnostic;
use crate::encoding::ScaleBlock;
use crate::program::TensorId;
use crate::tiling::Tiling;

/// Advice on tiles whose rows are divided among lanes.
const NOT_SWAPPED: &str = "a multiple of 64 rows: other tiles are multiplied with their sides swapped, and the scales of a row are in no warp";

/// The blocks whose scales an item makes.
fn block(asked: &TileRequest<'_>) -> Option<ScaleBlock> {
    asked.kernel.rule().map(|rule| rule.block())
}

/// The lanes of a quad have a row of a block: where a tile is swapped, its columns are on the side that warps divide.
pub(super) fn scales_of_rows(asked: &TileRequest<'_>, tiling: &Tiling) -> Option<Diagnostic> {
    let at = asked.item.computed_scales.filter(|_| tiling.swap_ab())?;
    let message = format!("scales that are made in {}", asked.tiles());
    let hint = NOT_SWAPPED;
    Some(refuse(at, message, hint))
}

/// Partial sums with scales: blocks of accumulators, in tiles that are not swapped, which are added to those of one product.
pub(super) fn partial_sums(asked: &TileRequest<'_>, tiling: &Tiling) -> Option<Diagnostic> {
    let (at, computed) = asked.item.partial?;
    let block = block(asked)?;
    let (what, hint) = if tiling.swap_ab() {
        ("in swapped tiles", NOT_SWAPPED)
    } else if !tiling.tile().columns.is_multiple_of(block.columns) {
        (
            "in tiles of no whole blocks",
            &*format!(
                "a multiple of {} columns: a tile makes the scales of whole blocks",
                block.columns
            ),
        )
    } else if computed {
        (
            "of values that are computed",
            "products as they are: of bf16 or f16, or of FP8 with scales of blocks, which go into the sum; or partial sums of the schedule's type",
        )
    } else if asked.results.sums == Sums::Apart || tiling.operands().is_empty() {
        (
            "that are not added to one product",
            "`y[t] = dot(x[t], w[t]) + partial[others()][t].sum()`, or a function of it; or partial sums of the schedule's type",
        )
    } else if asked.kind.split > 1 {
        (
            "of CTAs that share K",
            "no split: the whole product makes the scales",
        )
    } else {
        return None;
    };
    let message = format!(
        "partial sums with scales of {block} {what}, in {}",
        asked.tiles()
    );
    Some(refuse(at, message, hint))
}

/// A subtile is a line of the widest swizzle: whole blocks of bytes, and no whole ones of wider elements.
pub(super) fn bytes_beside_scales(asked: &TileRequest<'_>, tiling: &Tiling) -> Option<Diagnostic> {
    let block = asked
        .results
        .computed_scales
        .filter(|_| !tiling.swap_ab())?;
    let buffer = |tensor: TensorId| &asked.kernel.buffers[tensor.index()];
    let mut tensors = asked.item.tensors.iter();
    let (tensor, at) = tensors.find(|(tensor, _)| {
        let buffer = buffer(*tensor);
        buffer.dtype.bytes() > 1 && !buffer.usage.is_repeated()
    })?;
    let buffer = buffer(*tensor);
    let message = format!(
        "tiles of `{}` of {}, in a kernel that makes scales of {block}",
        buffer.name, buffer.dtype
    );
    let hint = "a kernel whose items store and read FP8 alone: subtiles have 128 bytes a row; or quantise what it writes";
    Some(refuse(*at, message, hint))
}

/// Refuses subtiles whose result in registers beside the accumulators is more than a product.
pub(super) fn registers_beside_scales(asked: &TileRequest<'_>, _: &Tiling) -> Option<Diagnostic> {
    let at = asked
        .item
        .computed_scales
        .filter(|_| asked.results.computed)?;
    let wgmma = asked.wgmma;
    let columns = block(asked)?.columns;
    let values = wgmma.accumulators() + wgmma.blocks() * columns / 2;
    if values <= VALUES {
        return None;
    }
    let message = format!("scales made of what is computed in {}", asked.tiles());
    let hint = format!(
        "tiles of 128 rows: scales are made of {columns} columns at a time, and a thread has no room for those of more rows"
    );
    Some(refuse(at, message, hint))
}
