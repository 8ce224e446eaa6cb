//! What tiles must be whose items make scales of 1×128 of what they store.

use super::asked::Asked;
use super::rules::refuse;
use super::smem::VALUES;
use crate::block::BLOCK;
use crate::diag::Diagnostic;
use crate::program::TensorId;
use crate::tiling::Tiling;

/// The lanes of a quad have a row of a block: where a tile is swapped, its columns are on the side that warps divide.
pub(super) fn scales_of_rows(asked: &Asked<'_>, tiling: &Tiling) -> Option<Diagnostic> {
    let at = asked.item.made.filter(|_| tiling.swapped())?;
    let message = format!("scales that are made in {}", asked.tiles());
    let hint = "a multiple of 64 rows: other tiles are multiplied with their sides swapped, and the scales of a row are in no warp";
    Some(refuse(at, message, hint))
}

/// A subtile is a line of the widest swizzle: whole blocks of bytes, and no whole ones of wider elements.
pub(super) fn bytes_beside_scales(asked: &Asked<'_>, tiling: &Tiling) -> Option<Diagnostic> {
    let made = asked.results.made && !tiling.swapped();
    let buffer = |tensor: TensorId| &asked.kernel.buffers[tensor.index()];
    let mut tensors = asked.item.tensors.iter().filter(|_| made);
    let (tensor, at) = tensors.find(|(tensor, _)| {
        let buffer = buffer(*tensor);
        buffer.dtype.bytes() > 1 && !buffer.kind.is_repeated()
    })?;
    let buffer = buffer(*tensor);
    let message = format!(
        "tiles of `{}` of {}, in a kernel that makes scales of 1×{BLOCK}",
        buffer.name, buffer.dtype
    );
    let hint = "a kernel whose items store and read FP8 alone: subtiles have 128 bytes a row; or quantise what it writes";
    Some(refuse(*at, message, hint))
}

/// What a subtile becomes is in registers beside the accumulators, where it is more than a product.
pub(super) fn registers_beside_scales(asked: &Asked<'_>, _: &Tiling) -> Option<Diagnostic> {
    let at = asked.item.made.filter(|_| asked.results.computed)?;
    let wgmma = asked.wgmma;
    let values = wgmma.accumulators() + wgmma.blocks() * BLOCK / 2;
    if values <= VALUES {
        return None;
    }
    let message = format!("{values} registers for {} and their values", asked.tiles());
    let hint =
        "128 rows, of which a thread has half as many: scales are made of 128 columns at a time";
    Some(refuse(at, message, hint))
}
