//! Names in a kernel's text, and its comments on maps and constants.

use crate::kernel::{Buffer, DimId};
use crate::order::TileOrder;
use crate::warp::{Field, Pipeline, Ring, View};
use std::collections::BTreeSet;

/// Before a loop whose body is to stand once in the machine code: a copy would only cost compile time and
/// instruction cache, and tests count instructions.
pub(super) const ONCE: &str = "#pragma unroll 1";

/// Owner of a map's tensor, and the number of its pieces.
pub(super) fn view(view: View) -> &'static str {
    match view {
        View::Flat => "mine, in one piece",
        View::Chunks => "mine, a chunk a rank",
        View::ColumnChunks => "mine, a chunk of columns a rank",
        View::SharedChunks => "everyone's, a chunk a rank: peers write it meanwhile",
        View::SharedSlots => "everyone's, slot by slot: others write it meanwhile",
        View::SharedSlotChunks => {
            "everyone's, slot by slot, of a chunk a rank each: others write it meanwhile"
        }
        View::SharedChunk => "everyone's own chunk",
    }
}

/// Meaning of a constant.
pub(super) fn meaning(name: &str) -> &'static str {
    match name {
        "BLOCK_ROWS" => "  // rows of a block of an MN-major operand: one 128-byte line for each k",
        "PARTIAL_BOX_ROWS" => "  // of an operand's box, loaded if one of them exists",
        "SCALE_BLOCK" => "  // elements of K, and rows of a square, that have one scale",
        "PIECE" => "  // rows that have one counter cell",
        "BATCH" => "  // staging buffers of a piece that one CTA sends, with one signal",
        "SENDING" => "  // stores of staging buffers under way that may still read them",
        "STAGING_N" => "  // columns of such a staging buffer",
        "STAGING_N_WIDE" => "  // the same, of elements of 4 bytes",
        "STAGING_N_NARROW" => "  // the same, of elements of one byte",
        "SUBTILE_N" => "  // columns of an output subtile",
        "SUBTILE_M" => "  // rows of an output subtile",
        "SLICE_N" => {
            "  // columns of a slice of a subtile: a 128-byte line; slices lie one after another"
        }
        "SLICE_N_FP8" => "  // columns of the same of FP8",
        "SLICE_N_F32" => {
            "  // columns of a slice of a subtile of f32: a 128-byte line; slices lie one after another"
        }
        "BEHIND" => {
            "  // steps of a tile that the second consumer begins when the first one has begun all"
        }
        "SPLIT_PARTIAL_SUBTILES" => {
            "  // subtiles of a tile that a CTA has the partials of, at most"
        }
        _ if name.ends_with("STAGE_SUBTILES") => "  // stored subtiles that one reused stage holds",
        _ if name.ends_with("_CTAS") => {
            "  // blocks that move data: such blocks come first in the grid"
        }
        _ => "",
    }
}

/// Distance from an operand's descriptor to that of the next 64 rows.
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

/// Contents of a ring's slots, in words.
pub(super) fn in_flight(ring: &Ring, computes: bool) -> String {
    let parts = ring.parts().iter();
    let parts = parts.map(|part| part.name.as_str()).collect::<Vec<_>>();
    match (parts.as_slice(), ring.name) {
        (_, "split_partial") => "partials of other CTAs that a CTA holds, for each consumer".into(),
        (_, "staging") if !computes => "staging buffers of a CTA".into(),
        (_, "staging") => {
            "staging buffers of a CTA that moves data, where stages and subtiles will be".into()
        }
        (_, "spare_staging") => "boxes in flight that a spare warp copies".into(),
        ([_], "stage") => "stages of stored tiles in flight".into(),
        ([_], name) if ring.is_staggered() => {
            format!("output {name}s in flight, in places that go from one consumer to the other")
        }
        ([_], name) if ring.sets > 1 => format!("output {name}s in flight, for each consumer"),
        ([_], name) => format!("output {name}s in flight"),
        (_, name) => {
            let held = ring
                .buffer
                .as_ref()
                .map(|it| it.held(|part| part.name.clone()));
            format!("{name}s of {} in flight", held.unwrap_or_default())
        }
    }
}

/// True if the kernel multiplies tensors of several widths or depths.
fn of_several_sizes(pipeline: &Pipeline) -> bool {
    let buffers = &pipeline.kernel.buffers;
    let mut sizes = BTreeSet::new();
    for tiling in pipeline.cta.tilings() {
        for product in tiling.products() {
            let [x, w] = product.map(|part| tiling.operands()[part].tensor);
            sizes.insert((buffers[x.index()].columns, buffers[w.index()].rows));
        }
    }
    sizes.len() > 1
}

/// Tensor that a size is of.
fn size(pipeline: &Pipeline, id: DimId) -> Option<String> {
    let buffers = &pipeline.kernel.buffers;
    let of = |what: &str, is: fn(&Buffer) -> DimId| {
        let buffer = buffers.iter().find(|buffer| is(buffer) == id)?;
        Some(format!("{what} of {}", buffer.name))
    };
    of("columns", |buffer| buffer.columns).or_else(|| of("rows", |buffer| buffer.rows))
}

/// Meaning of a number of a launch.
pub(super) fn describe(pipeline: &Pipeline, field: Field) -> String {
    let dim = |id: DimId| pipeline.kernel.dims[usize::from(id.0)].name.clone();
    match field {
        Field::Size(id) => match dim(id).as_str() {
            "m" if of_several_sizes(pipeline) => "rows of the products, over all chunks".into(),
            "m" => "rows of the product, over all chunks".into(),
            "n" if !of_several_sizes(pipeline) => "its columns".into(),
            "k" if !of_several_sizes(pipeline) => "its depth".into(),
            other => size(pipeline, id).unwrap_or_else(|| format!("size of {other}")),
        },
        Field::ChunkRows(id) => format!("of {}, in a full chunk", dim(id)),
        Field::PartialChunk(_) => {
            "the partial chunk: it has some rows, but not all, and a map of its own".into()
        }
        Field::Me => "this rank".into(),
        Field::World => "how many ranks there are".into(),
        Field::First(_) => "a counter: its first cell".into(),
        Field::CellRows(id) => format!(
            "rows of {} in a chunk, each with its cells",
            pipeline.kernel.partitions[id.index()].name
        ),
        Field::Line(tensor) => format!(
            "from a line of {} to the next",
            pipeline.kernel.buffers[tensor.index()].name
        ),
        Field::LateJoin => "waves of items before the first blocks take part".into(),
        Field::Order(_) => "the ranks that this one visits, step by step".into(),
        Field::HeapEverywhere => "slot 0 of the heap on every rank at once: multimem alone".into(),
        Field::Heap
        | Field::Stride
        | Field::Counters
        | Field::Arrivals
        | Field::Finished
        | Field::Vector(_) => String::new(),
    }
}
