//! Constants of a variant that a kernel's text has by name.

use crate::sm90::cta::SlotKind;
use std::borrow::Cow;

/// A constant of the variant. Numbers name it; its text is [`Symbol::name`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Symbol {
    /// CTAs of a role that moves data.
    Ctas {
        /// Index among the kernel's roles.
        role: usize,
        /// Name in the text.
        name: String,
    },
    /// A number of a loop's tiles.
    Tile {
        /// The number.
        of: TileNumber,
        /// Name in the text: with that of an operand where loops differ in it.
        name: String,
    },
    /// K of a step.
    TileK,
    /// Bytes of an operand in a stage, by the name of its part.
    OperandBytes(String),
    /// Warpgroups that multiply.
    Consumers,
    /// CTAs of a cluster that load together.
    Cluster,
    /// CTAs of a cluster that share the steps of a tile.
    Split,
    /// Slots of a ring.
    Slots(SlotKind),
    /// Bytes of a staging buffer.
    StagingBytes,
    /// Bytes of a box that a spare warp copies.
    SpareStagingBytes,
    /// Columns of a staging buffer, of elements of so many bytes.
    StagingColumns(u32),
    /// Boxes of a chunk that one CTA sends, with one signal.
    Batch,
    /// Stores of staging buffers under way that may still read them.
    Sending,
    /// Rows that have one counter cell.
    Chunk,
    /// Rows of an output subtile.
    SubtileRows,
    /// Columns of an output subtile.
    SubtileColumns,
    /// Bytes from a stored tile's subtile to the next one in a stage.
    SubtileBytes,
    /// Columns of a slice of a subtile: a line of 128 bytes of elements of that type.
    SliceColumns(u32),
    /// Steps of a tile that the second consumer begins when the first one has begun all.
    Behind,
    /// Rows of a block of an MN-major operand.
    BlockRows,
    /// Bytes of such a block.
    BlockBytes,
    /// Rows of a partial box: an operand's tile has several, and each is loaded if one of its rows exists.
    PartialBoxRows,
    /// Elements of K, and rows of a square, that have one scale.
    ScaleBlock,
    /// Subtiles of a tile that a CTA has the partials of, at most.
    PartialSubtiles,
    /// Bytes of the partials of a subtile.
    PartialSubtileBytes,
}

/// A number of a loop's tiles.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TileNumber {
    /// Rows of a tile.
    Rows,
    /// Columns of a tile.
    Columns,
    /// Stored subtiles that one reused stage holds.
    StageSubtiles,
}

impl TileNumber {
    /// Its name where all loops have the same one.
    pub const fn name(self) -> &'static str {
        match self {
            TileNumber::Rows => "TILE_M",
            TileNumber::Columns => "TILE_N",
            TileNumber::StageSubtiles => "STAGE_SUBTILES",
        }
    }
}

impl Symbol {
    /// Its name in the text.
    pub fn name(&self) -> Cow<'_, str> {
        let name = match self {
            Symbol::Ctas { name, .. } | Symbol::Tile { name, .. } => return name.into(),
            Symbol::OperandBytes(part) => return format!("{}_BYTES", part.to_uppercase()).into(),
            Symbol::TileK => "TILE_K",
            Symbol::Consumers => "CONSUMERS",
            Symbol::Cluster => "CLUSTER",
            Symbol::Split => "SPLIT",
            Symbol::Slots(of) => of.count(),
            Symbol::StagingBytes => "STAGING_BYTES",
            Symbol::SpareStagingBytes => "SPARE_STAGING_BYTES",
            Symbol::StagingColumns(1) => "STAGING_N_NARROW",
            Symbol::StagingColumns(4) => "STAGING_N_WIDE",
            Symbol::StagingColumns(_) => "STAGING_N",
            Symbol::Batch => "BATCH",
            Symbol::Sending => "SENDING",
            Symbol::Chunk => "CHUNK",
            Symbol::SubtileRows => "SUBTILE_M",
            Symbol::SubtileColumns => "SUBTILE_N",
            Symbol::SubtileBytes => "SUBTILE_BYTES",
            Symbol::SliceColumns(4) => "SLICE_N_F32",
            Symbol::SliceColumns(1) => "SLICE_N_FP8",
            Symbol::SliceColumns(_) => "SLICE_N",
            Symbol::Behind => "BEHIND",
            Symbol::BlockRows => "BLOCK_ROWS",
            Symbol::BlockBytes => "BLOCK_BYTES",
            Symbol::PartialBoxRows => "PARTIAL_BOX_ROWS",
            Symbol::ScaleBlock => "SCALE_BLOCK",
            Symbol::PartialSubtiles => "SPLIT_PARTIAL_SUBTILES",
            Symbol::PartialSubtileBytes => "SPLIT_PARTIAL_SUBTILE_BYTES",
        };
        name.into()
    }
}
