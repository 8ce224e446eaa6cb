//! The warp level: how the warps of a CTA do what a checked kernel says, with every barrier, group, fence, release and
//! acquire spelled out.
//!
//! [`build`] makes a [`Pipeline`] from a checked kernel or refuses with the numbers, [`verify`] runs all warps of all
//! CTAs of a few ranks on a small case and accepts it, and [`crate::cuda::emit`] prints what was accepted. Both read
//! the same nodes; a number is written once, as an [`Expr`].
//!
//! On Hopper a CTA has three warpgroups. In the first, warp 0's elected thread loads (*load*) and warp 1's stores
//! (*store*); on CTAs that move data the same two threads first fetch and send. The other two warpgroups multiply
//! (*multiply*), 64 rows each. Operands pass through a ring of stages, results through a ring of panels.

mod build;
mod expr;
mod host;
mod node;
mod run;
mod visit;

pub use crate::verify::pipeline as verify;
pub use build::build;
pub use expr::{Expr, Field, Op, Test, Values};
pub use host::MapShape;
pub use node::{
    At, Deal, Epilogue, Map, MapId, Node, Param, Part, Phase, Ring, RingId, Side, Slot, Source,
    View,
};
pub(crate) use run::findings;

use crate::dtype::Dtype;
use crate::kernel::Kernel;
use crate::program::CounterId;
use crate::verify::Checked;

/// A kernel as the warps of a CTA run it.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// What it does, tile by tile.
    pub kernel: Checked<Kernel>,
    /// The element type of operands and results.
    pub dtype: Dtype,
    /// Rows, columns and depth of a tile.
    pub tile: Tile,
    /// Columns of a panel: 128 bytes of the widest type that is stored or read in panels.
    pub panel_columns: u32,
    /// CTAs that move data before they multiply: the first ones.
    pub comm: Option<Comm>,
    /// Registers a thread of the first warpgroup keeps, and one of the others takes.
    pub registers: (u32, u32),
    /// The tensor maps.
    pub maps: Vec<Map>,
    /// The rings, by [`RingId`].
    pub rings: Vec<Ring>,
    /// Numbers that all warps use.
    pub lets: Vec<(String, Expr)>,
    /// The math after the dot, by [`Node::Apply`].
    pub epilogues: Vec<Epilogue>,
    /// Counters whose cells get several arrivals for each the kernel counts: by how many.
    pub scale: Vec<(CounterId, Expr)>,
    /// What each warp does.
    pub warps: Vec<Warp>,
    /// What all warps do at the end: empty, or a barrier and what the last CTA does.
    pub end: Vec<Node>,
}

/// The tile one CTA computes at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tile {
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// Depth of a step.
    pub k: u32,
}

/// CTAs that move data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Comm {
    /// How many.
    pub ctas: u32,
    /// Whether they take items of the GEMM when they are done.
    pub joins: bool,
}

/// One role of a CTA.
#[derive(Clone, PartialEq, Debug)]
pub struct Warp {
    /// Its name, also in stall records.
    pub name: &'static str,
    /// Who runs it.
    pub place: Place,
    /// What it runs.
    pub body: Vec<Node>,
}

/// Who runs a role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// One elected thread of a warp of the first warpgroup.
    Thread {
        /// Which warp.
        warp: u32,
    },
    /// The warpgroups after the first, each for 64 rows of the tile.
    Groups,
}

/// Warpgroups that multiply.
pub const CONSUMERS: u32 = 2;
/// Columns of a panel and of a moved box of 16-bit elements: one 128-byte swizzle atom.
pub const PANEL_COLUMNS: u32 = 64;
/// Rows of an operand's block where its rows are contiguous: one 128-byte swizzle atom of 16-bit elements.
pub const BLOCK: u32 = 64;
/// Boxes of a piece that are sent and signalled together.
pub const UNIT: u32 = 16;
/// Stores of a sending thread that may still be reading their slots.
pub const SENDING: u32 = 5;

impl Pipeline {
    /// The ring of that id.
    pub fn ring(&self, ring: RingId) -> &Ring {
        &self.rings[usize::from(ring.0)]
    }

    /// The map of that id.
    pub fn map(&self, map: MapId) -> &Map {
        &self.maps[usize::from(map.0)]
    }

    /// Whether the contiguous dimension of a map is its tensor's rows.
    pub fn rows_contiguous(&self, map: MapId) -> bool {
        self.kernel.buffers[self.map(map).tensor.index()].rows_contiguous
    }

    /// Where the barriers start in shared memory: after the rings' slots.
    pub fn barriers_at(&self) -> u32 {
        let end = |ring: &Ring| ring.at + ring.slots * ring.slot_bytes();
        self.rings
            .iter()
            .map(end)
            .max()
            .unwrap_or(0)
            .next_multiple_of(8)
    }

    /// Bytes of shared memory a CTA needs.
    pub fn shared_bytes(&self) -> u32 {
        let barriers: u32 = self.rings.iter().map(|ring| ring.slots * 2).sum();
        self.barriers_at() + barriers * 8
    }

    /// Threads of a CTA.
    pub const fn threads(&self) -> u32 {
        128 * (1 + CONSUMERS)
    }

    /// Panels of a tile.
    pub const fn panels(&self) -> u32 {
        self.tile.columns / self.panel_columns
    }
}

impl Ring {
    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> u32 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Where in shared memory a part of a slot is.
    pub fn part_at(&self, part: usize, slot: u32) -> u32 {
        let before: u32 = self.parts[..part].iter().map(|part| part.bytes).sum();
        self.at + self.slots * before + slot * self.parts[part].bytes
    }
}
