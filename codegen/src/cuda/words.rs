//! What the text calls things, and says of maps and constants in words.

use crate::order::TileOrder;
use crate::warp::View;

/// Before a loop whose body is to stand once in the machine code: a copy would only cost compile time and
/// instruction cache, and tests count instructions.
pub(super) const ONCE: &str = "#pragma unroll 1";

/// Whose tensor a map is of, and in how many pieces.
pub(super) fn view(view: View) -> &'static str {
    match view {
        View::Flat => "mine, in one piece",
        View::Chunks => "mine, a chunk a rank",
        View::SharedChunks => "everyone's, a chunk a rank: peers write it meanwhile",
        View::SharedSlots => "everyone's, slot by slot: others write it meanwhile",
        View::SharedSlotChunks => {
            "everyone's, slot by slot, of a chunk a rank each: others write it meanwhile"
        }
        View::SharedChunk => "everyone's own chunk",
    }
}

/// What a constant is.
pub(super) fn meaning(name: &str) -> &'static str {
    match name {
        "BLOCK_ROWS" => "  // rows of a block of an MN-major operand: one 128-byte line for each k",
        "PARTIAL_BOX_ROWS" => "  // of an operand's box, loaded if one of them exists",
        "PIECE" => "  // rows that have one counter cell",
        "BATCH" => "  // staging buffers of a piece that one CTA sends, with one signal",
        "SENDING" => "  // stores of staging buffers under way that may still read them",
        "STAGING_N" => "  // columns of such a staging buffer",
        "SUBTILE_N" => "  // columns of an output subtile",
        "SUBTILE_M" => "  // rows of an output subtile",
        "SLICE_N" => {
            "  // columns of a slice of a subtile: a 128-byte line; slices lie one after another"
        }
        "SLICE_N_F32" => {
            "  // columns of a slice of a subtile of f32: a 128-byte line; slices lie one after another"
        }
        "BEHIND" => {
            "  // steps of a tile that the second consumer begins when the first one has begun all"
        }
        "SPLIT_PARTIAL_SUBTILES" => {
            "  // subtiles of a tile that a CTA has the partials of, at most"
        }
        "STAGE_SUBTILES" => "  // stored subtiles that one reused stage holds",
        _ if name.ends_with("_CTAS") => {
            "  // blocks that move data: such blocks come first in the grid"
        }
        _ => "",
    }
}

/// How far an operand's descriptor goes on for the next 64 rows.
pub(super) fn next_block(mn_major: bool) -> &'static str {
    if mn_major {
        "(BLOCK_BYTES >> 4)"
    } else {
        "WGMMA_64_ROWS"
    }
}

/// The function of an order.
pub(super) fn order_name(order: TileOrder) -> String {
    match order {
        TileOrder::RowMajor => "row_major".into(),
        TileOrder::ColumnMajor => "column_major".into(),
        TileOrder::Grouped(group) => format!("grouped_{group}"),
    }
}
