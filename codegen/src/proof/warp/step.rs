//! Steps of a role of a CTA: nodes with their numbers worked out.

use crate::dtype::Dtype;
use crate::program::{Loc, Side, TensorId};
use crate::tiling::Piece;
use crate::value::AccId;
use crate::warp::{Elements, Node, View};

/// One concrete step, with the node it is an instance of.
#[derive(Clone, Debug)]
pub(super) struct Step<'a> {
    pub node: &'a Node,
    pub kind: Kind,
    /// The schedule's statement that it is part of, if it is of one.
    pub at: Option<Loc>,
    /// The item it is for, as row and column of its grid.
    pub item: Option<(u32, u32)>,
    /// The kernel's role that it is of, by its index.
    pub role: usize,
    /// The tiling of the loop over items that it is in: the first outside of all.
    pub tiling: usize,
}

/// CTAs of a cluster, by rank: those of a range, but for one of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ctas {
    first: u32,
    end: u32,
    without: Option<u32>,
}

impl Ctas {
    pub const fn one(rank: u32) -> Ctas {
        Ctas {
            first: rank,
            end: rank + 1,
            without: None,
        }
    }

    /// So many, but for one of them.
    pub const fn of(count: u32, without: Option<u32>) -> Ctas {
        Ctas {
            first: 0,
            end: count,
            without,
        }
    }

    pub fn ranks(self) -> impl Iterator<Item = u32> {
        (self.first..self.end).filter(move |rank| Some(*rank) != self.without)
    }
}

/// Action of a step.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// Until so many phases are over: what it looks at is the parity of that number.
    Await {
        barrier: usize,
        phases: u32,
    },
    /// Tests that so many phases are over.
    TestWait {
        barrier: usize,
        phases: u32,
    },
    Expect {
        barrier: usize,
        bytes: u32,
    },
    Arrive {
        barrier: usize,
        count: u32,
        /// The CTAs whose barrier it is at, by rank in the cluster.
        ctas: Ctas,
    },
    Load {
        /// The CTAs it loads into, by rank in the cluster.
        ctas: Ctas,
        area: Area,
        barrier: usize,
        bytes: u32,
        from: Box4,
    },
    Store {
        area: Area,
        to: Box4,
    },
    /// By all lanes of a warp: the rows of a box that a shard has, by ordinary stores.
    StorePart {
        area: Area,
        to: Box4,
    },
    /// By all lanes of a warp: a store to the same place on every rank.
    StoreEverywhere {
        area: Area,
        to: Vec<Box4>,
    },
    /// By all lanes of a warp: the sum of the same place on every rank, by the switch.
    SumEverywhere {
        area: Area,
        from: Vec<Box4>,
    },
    Commit,
    AwaitRead {
        pending: usize,
    },
    AwaitStores {
        pending: usize,
    },
    Mma {
        /// Product whose accumulators they are.
        product: usize,
        /// Piece of the sums, where they are promoted.
        piece: Option<Piece>,
        areas: [Area; 2],
        /// Number of rows of each operand's tile that lie before.
        before: [u32; 2],
        /// Barrier on which their loads complete.
        barrier: usize,
        fresh: bool,
    },
    MmaCommit,
    MmaWait {
        pending: usize,
    },
    Fragment(FragmentStep),
    FenceShared,
    FenceGlobal,
    FenceAlias,
    /// All lanes of a warp that makes accesses by all of them are here.
    SyncWarp,
    CounterWait {
        cell: u32,
        lag: u32,
        /// A wait for part of what arrives.
        at_least: Option<u64>,
    },
    /// Numbers of a scale, by ordinary loads and stores.
    CopyScales {
        from: Box4,
        to: Box4,
    },
    /// A copy that the host enqueued.
    HostCopy {
        from: Box4,
        to: Box4,
    },
    CounterAdvance {
        cell: u32,
    },
    CounterAdd {
        rank: u32,
        cell: u32,
        amount: u64,
    },
    Defer {
        rank: u32,
        cell: u32,
        amount: u64,
    },
    Flush,
    AwaitLaunches,
    /// Barrier of one CTA, or of its cluster.
    Sync {
        everywhere: bool,
    },
    /// Skips so many steps unless this is the last CTA to come.
    Last {
        skip: usize,
    },
}

impl Kind {
    /// True if it touches global memory: a tensor or a counter.
    pub fn is_global(&self) -> bool {
        match self {
            Kind::Fragment(step) => step.is_global(),
            Kind::Load { .. }
            | Kind::Store { .. }
            | Kind::StorePart { .. }
            | Kind::StoreEverywhere { .. }
            | Kind::SumEverywhere { .. }
            | Kind::HostCopy { .. }
            | Kind::CopyScales { .. }
            | Kind::CounterWait { .. }
            | Kind::CounterAdvance { .. }
            | Kind::CounterAdd { .. }
            | Kind::Flush
            | Kind::Last { .. } => true,
            Kind::Await { .. }
            | Kind::TestWait { .. }
            | Kind::Expect { .. }
            | Kind::Arrive { .. }
            | Kind::Commit
            | Kind::AwaitRead { .. }
            | Kind::AwaitStores { .. }
            | Kind::Mma { .. }
            | Kind::MmaCommit
            | Kind::MmaWait { .. }
            | Kind::FenceShared
            | Kind::FenceGlobal
            | Kind::FenceAlias
            | Kind::SyncWarp
            | Kind::Defer { .. }
            | Kind::AwaitLaunches
            | Kind::Sync { .. } => false,
        }
    }
}

/// Where a loaded subtile is read to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Into {
    /// Registers of its own.
    Own(AccId),
    /// Added to a sum's registers.
    Sum(AccId),
    /// Added to the accumulators of a subtile of the tile, its codes times their scales if they have some.
    Product { part: u32, scaled: bool },
}

/// Where computed scales go.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scales {
    /// Registers: they are made.
    Registers,
    /// The plane of an output.
    Plane {
        tensor: TensorId,
        /// Rows of the output, those that exist.
        rows: (u32, u32),
        /// All rows, and how long a line is.
        all: (u32, u32),
    },
    /// Beside a slot of partial sums: this group's rows.
    Slot(Box4),
}

/// One concrete operation on a fragment of a tile.
#[derive(Clone, Copy, Debug)]
pub(super) enum FragmentStep {
    /// Ordinary stores to shared memory.
    WriteSubtile {
        area: Area,
        /// Index of the subtile in the tile.
        part: u32,
        /// Elements that are written.
        elements: Elements,
        /// True if it is multiplied by its scales.
        scaled: bool,
    },
    /// A subtile's accumulators, into the shared memory of a CTA of the cluster.
    SendPartial {
        cta: u32,
        area: Area,
        barrier: usize,
        part: u32,
    },
    AddPartial {
        area: Area,
        part: u32,
    },
    /// Ordinary loads of a stored subtile.
    ReadSubtile {
        area: Area,
        /// All of the subtile: the other group reads the rest.
        subtile: Area,
        into: Into,
    },
    /// A sum's registers are zero.
    StartSum {
        acc: AccId,
    },
    /// This rank's own term is added to a sum's registers.
    AddOwn {
        acc: AccId,
        elements: Elements,
        part: u32,
        /// Type that it is rounded to.
        dtype: Dtype,
    },
    /// Ordinary loads of a vector or a scale: from that row or column on, or of the only number.
    Broadcast {
        acc: AccId,
        tensor: TensorId,
        along: Option<(Side, u32)>,
        /// Box of its numbers, if others write them in a launch.
        shared: Option<Box4>,
    },
    /// A tile's numbers of a vector are read ahead.
    ReadAhead {
        tensor: TensorId,
        first: u32,
        /// Box of its numbers, if others write them in a launch.
        shared: Option<Box4>,
    },
    Apply {
        epilogue: usize,
        part: u32,
    },
    /// An amax becomes as large as the elements of a subtile that exist.
    Amax {
        tensor: TensorId,
        elements: Elements,
        /// Index of the subtile in the tile.
        part: u32,
        /// Rows that are measured, among all.
        rows: (u32, u32),
        columns: (u32, u32),
    },
    /// Scales of a subtile's elements that exist, in those columns, are made or written.
    Quantize {
        elements: Elements,
        part: u32,
        columns: (u32, u32),
        to: Scales,
    },
    /// Ordinary loads of the scales of a tile of partial sums: this group's rows.
    ReadTileScales {
        from: Box4,
    },
    /// Promoted sums begin.
    StartProducts,
    /// Ordinary loads of a step's scales.
    ReadBlocks {
        area: Area,
        scale: usize,
        /// Index of the number in each line.
        number: u32,
        /// Offset of the tile in a block, if blocks cross its edges.
        begin: u32,
        /// Share of the block.
        share: u32,
    },
    /// Adds the sums of tensor cores to promoted sums.
    Promote {
        product: usize,
        piece: Piece,
        share: u32,
    },
}

impl FragmentStep {
    /// True if it touches global memory.
    pub fn is_global(&self) -> bool {
        match self {
            FragmentStep::Broadcast { .. }
            | FragmentStep::ReadAhead { .. }
            | FragmentStep::Quantize {
                to: Scales::Plane { .. } | Scales::Slot(_),
                ..
            }
            | FragmentStep::ReadTileScales { .. }
            | FragmentStep::Amax { .. } => true,
            FragmentStep::Quantize {
                to: Scales::Registers,
                ..
            }
            | FragmentStep::ReadSubtile { .. }
            | FragmentStep::StartSum { .. }
            | FragmentStep::AddOwn { .. }
            | FragmentStep::Apply { .. }
            | FragmentStep::StartProducts
            | FragmentStep::ReadBlocks { .. }
            | FragmentStep::Promote { .. }
            | FragmentStep::WriteSubtile { .. }
            | FragmentStep::SendPartial { .. }
            | FragmentStep::AddPartial { .. } => false,
        }
    }
}

/// Bytes of shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Area {
    pub start: u32,
    pub end: u32,
}

impl Area {
    pub fn overlaps(self, other: Area) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// A clipped box of global memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Box4 {
    /// The plan whose sizes say where it is.
    pub plan: usize,
    pub tensor: TensorId,
    pub rank: u32,
    pub shard: u32,
    pub rows: (u32, u32),
    pub columns: (u32, u32),
    /// First row and column before it was clipped.
    pub origin: (u32, u32),
    /// End of a short shard that it goes beyond.
    pub spills: Option<u32>,
    /// Arrangement of the tensor's rows in the map.
    pub view: View,
    /// Rows in the tensor's memory, counted from its start.
    pub lines: (u32, u32),
    /// Rows that exist, among all of the tensor's.
    pub all: (u32, u32),
}

impl Box4 {
    pub fn overlaps(&self, other: &Box4) -> bool {
        let meet = |a: (u32, u32), b: (u32, u32)| a.0 < b.1 && b.0 < a.1;
        (self.tensor, self.rank) == (other.tensor, other.rank)
            && meet(self.lines, other.lines)
            && meet(self.columns, other.columns)
    }
}
