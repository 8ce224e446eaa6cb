//! Names in a kernel's text, and its comments on maps and constants.

use counterflow_codegen::kernel::{Buffer, DimId};
use counterflow_codegen::order::TileOrder;
use counterflow_codegen::warp::{Field, Pipeline, Ring, SlotKind, Symbol, TileNumber, View};
use std::collections::BTreeSet;

/// Before a loop whose body is to stand once in the machine code: a copy would only cost compile time and
/// instruction cache, and tests count instructions.
pub(super) const ONCE: &str = "#pragma unroll 1";

/// Owner of a map's tensor, and the number of its chunks.
pub(super) fn view(view: View) -> &'static str {
    match view {
        View::Flat => "own memory, one matrix",
        View::Shards => "own memory, a matrix for each rank's shard",
        View::ColumnShards => "own memory, a matrix for each rank's shard of columns",
        View::SharedShards => "everyone's, a shard a rank: peers write it meanwhile",
        View::SharedSlots => "everyone's, slot by slot: others write it meanwhile",
        View::SharedSlotShards => {
            "everyone's, slot by slot, of a shard a rank each: others write it meanwhile"
        }
        View::SharedShard => "everyone's own shard",
        View::SharedRows => "everyone's, all ranks' rows in one piece: peers write it meanwhile",
    }
}

/// Meaning of a constant, if it stands among those that numbers use: sizes of tiles, rings and buffers have lines of their own.
pub(super) const fn meaning(symbol: &Symbol) -> Option<&'static str> {
    Some(match symbol {
        Symbol::Ctas { .. } => "blocks that move data: such blocks come first in the grid",
        Symbol::Tile { of, .. } => match of {
            TileNumber::Rows | TileNumber::Columns => return None,
            TileNumber::StageSubtiles => "stored subtiles that one reused stage holds",
        },
        Symbol::BlockRows => "rows of a block of an MN-major operand: one 128-byte line for each k",
        Symbol::PartialBoxRows => "of an operand's box, loaded if one of them exists",
        Symbol::ScaleBlock => "elements of K, and rows of a square, that have one scale",
        Symbol::Chunk => "rows that have one counter cell",
        Symbol::Batch => "staging buffers of a chunk that one CTA sends, with one signal",
        Symbol::Sending => "stores of staging buffers under way that may still read them",
        Symbol::StagingColumns(4) => "the same, of elements of 4 bytes",
        Symbol::StagingColumns(1) => "the same, of elements of one byte",
        Symbol::StagingColumns(_) => "columns of such a staging buffer",
        Symbol::SubtileColumns => "columns of an output subtile",
        Symbol::SubtileRows => "rows of an output subtile",
        Symbol::SliceColumns(1) => "columns of the same of FP8",
        Symbol::SliceColumns(4) => {
            "columns of a slice of a subtile of f32: a 128-byte line; slices lie one after another"
        }
        Symbol::SliceColumns(_) => {
            "columns of a slice of a subtile: a 128-byte line; slices lie one after another"
        }
        Symbol::Behind => {
            "steps of a tile that the second consumer begins when the first one has begun all"
        }
        Symbol::PartialSubtiles => "subtiles of a tile that a CTA has the partials of, at most",
        Symbol::TileK
        | Symbol::OperandBytes(_)
        | Symbol::Consumers
        | Symbol::Cluster
        | Symbol::Split
        | Symbol::Slots(_)
        | Symbol::StagingBytes
        | Symbol::SpareStagingBytes
        | Symbol::SubtileBytes
        | Symbol::BlockBytes
        | Symbol::PartialSubtileBytes => return None,
    })
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
    let name = ring.of.name();
    let parts = ring.parts().iter();
    let parts = parts.map(|part| part.name.as_str()).collect::<Vec<_>>();
    match (parts.as_slice(), ring.of) {
        (_, SlotKind::SplitPartial) => {
            "partials of other CTAs that a CTA holds, for each consumer".into()
        }
        (_, SlotKind::Staging) if !computes => "staging buffers of a CTA".into(),
        (_, SlotKind::Staging) => {
            "staging buffers of a CTA that moves data, where stages and subtiles will be".into()
        }
        (_, SlotKind::SpareStaging) => "boxes in flight that a spare warp copies".into(),
        ([_], SlotKind::Stage) => "stages of stored tiles in flight".into(),
        ([_], SlotKind::Subtile | SlotKind::Tile) if ring.is_staggered() => {
            format!("output {name}s in flight, in places that go from one consumer to the other")
        }
        ([_], SlotKind::Subtile | SlotKind::Tile) if ring.sets > 1 => {
            format!("output {name}s in flight, for each consumer")
        }
        ([_], SlotKind::Subtile | SlotKind::Tile) => format!("output {name}s in flight"),
        (_, SlotKind::Stage | SlotKind::Subtile | SlotKind::Tile) => {
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
            "m" if of_several_sizes(pipeline) => "rows of the products, over all shards".into(),
            "m" => "rows of the product, over all shards".into(),
            "n" if !of_several_sizes(pipeline) => "its columns".into(),
            "k" if !of_several_sizes(pipeline) => "its depth".into(),
            other => size(pipeline, id).unwrap_or_else(|| format!("size of {other}")),
        },
        Field::ShardRows(id) => format!("of {}, in a full shard", dim(id)),
        Field::PartialShard(_) => {
            "the partial shard: it has some rows, but not all, and a map of its own".into()
        }
        Field::Me => "this rank".into(),
        Field::World => "how many ranks there are".into(),
        Field::First(_) => "a counter: its first cell".into(),
        Field::CellRows(id) => format!(
            "rows of {} in a shard, each with its cells",
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
