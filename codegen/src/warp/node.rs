//! Nodes: the actions of a CTA's warps, in order. Each has a CUDA form, and a meaning to the verifier.
//!
//! Control is in the first family; it depends on the shape, on ranks and on the CTA, never on data or on timing. All
//! that orders memory or may block is in the others: the emitter invents none of it.

use super::expr::{Expr, Test};
use super::fragment::FragmentOp;
use super::ring::{BarrierId, RingId};
use super::scheduler::{LoopId, SchedulerId};
use crate::kernel::{DimId, Kernel};
use crate::program::{CounterId, Loc, StoreMode, TensorId, Usage};
use crate::tiling::Piece;

/// An index into [`super::Pipeline::maps`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MapId(pub u16);

/// One step, or a block of steps.
#[derive(Clone, PartialEq, Debug)]
pub enum Node {
    // --- Control.
    /// Words for the reader: what the nodes after it in its list are.
    Note(Note),
    /// `const u32 name = value;`
    Let {
        /// The variable.
        name: String,
        /// Value of the variable.
        value: Expr,
    },
    /// A role's nest of loops over items, and all that goes with it: the scheduler says which items this CTA has. It
    /// begins at the role's first, and the role at the first slot of each ring.
    Schedule {
        /// The scheduler.
        scheduler: SchedulerId,
        /// Nodes in order.
        body: Vec<Node>,
    },
    /// A loop over ranks in an order: `step` counts, `var` is the rank at that step.
    Ranks {
        /// Counts the steps.
        step: String,
        /// Number of steps.
        count: Expr,
        /// Bound to the rank.
        var: String,
        /// The rank at a step.
        rank: Expr,
        /// Nodes of one step.
        body: Vec<Node>,
    },
    /// A loop over all ranks but me, ascending.
    Others {
        /// Bound to the rank.
        var: String,
        /// Work in this rank's own turn.
        own: Option<FragmentOp>,
        /// Nodes for each of the other ranks.
        body: Vec<Node>,
    },
    /// A loop over this CTA's share of `count` items, which its scheduler says. [`Expr::Within`] is the item.
    Items {
        /// Loop of the scheduler.
        of: LoopId,
        /// Number of items of the loop, over all CTAs.
        count: Expr,
        /// The item's place in the grid, if the body asks for it.
        grid: Option<Grid>,
        /// Nodes of one item.
        body: Vec<Node>,
    },
    /// A counted loop from `from` to below `to`.
    For {
        /// Counts.
        var: String,
        /// The first value.
        from: Expr,
        /// One past the last.
        to: Expr,
        /// Distance of a step.
        by: Expr,
        /// Number of times that its body stands in the machine code.
        unroll: Unroll,
        /// Nodes in order.
        body: Vec<Node>,
    },
    /// A branch.
    If {
        /// Condition.
        test: Test,
        /// Nodes if the condition holds.
        body: Vec<Node>,
    },

    // --- Rings: slots handed between warps by mbarriers.
    /// Blocks until a phase of the current slot's barrier is over. Acquires what the barrier orders.
    ///
    /// CUDA: `stage_full[stage.index].wait(stage.phase, ..)`. Meaning: the phase of that parity is over,
    /// and all that its arrivals saw is seen.
    Await {
        /// The barrier.
        barrier: BarrierId,
        /// Phase that is waited for.
        phase: Phase,
    },
    /// Asks whether the current slot is full, and does not wait. A [`Node::AwaitTested`] of that slot waits only where it was not.
    ///
    /// CUDA: `stage.token = stage_full[stage.index].test(stage.phase)`. Meaning: nothing; what orders memory is the wait. But the
    /// phase before must be known to be over, or its parity would be taken for that phase's.
    TestWait {
        /// The ring.
        ring: RingId,
    },
    /// Blocks until the current slot is full, unless a [`Node::TestWait`] since the last [`Node::Advance`] found it to be.
    ///
    /// CUDA: `if (!stage.token) stage_full[stage.index].wait(stage.phase, ..)`. Meaning: that of [`Node::Await`].
    AwaitTested {
        /// The ring.
        ring: RingId,
    },
    /// Arrives at the current slot's barrier and announces so many bytes of loads.
    Expect {
        /// The barrier: one on which bytes complete.
        barrier: BarrierId,
        /// Number of bytes.
        bytes: Expr,
    },
    /// Arrives at a barrier. Releases what the barrier orders. For a warp: its first lane does.
    Arrive {
        /// The barrier.
        barrier: BarrierId,
        /// Slot of the barrier.
        slot: Slot,
    },
    /// Goes on to the next slot; the parity flips after the last.
    Advance {
        /// The ring.
        ring: RingId,
        /// True if the slot left behind is still needed, as [`Slot::Previous`].
        keep: bool,
    },
    /// Runs nodes ahead of the role's place in a ring, which is afterwards where it was. Loads that start so are announced later,
    /// by an [`Node::Expect`] of their slot.
    ///
    /// CUDA: the place is saved and restored. Meaning: only that. A barrier counts bytes that land before they are announced below
    /// zero, and its phase cannot end without that arrival.
    Ahead {
        /// The ring.
        ring: RingId,
        /// Nodes in order.
        body: Vec<Node>,
    },
    /// Goes on by so many slots, which the other consumer has.
    Skip {
        /// The ring.
        ring: RingId,
        /// Number of slots.
        by: Expr,
    },
    /// Releases the slots of all but the latest `held` stores of this thread; they must have been read.
    Release {
        /// The ring.
        ring: RingId,
        /// Number of slots that stay held.
        held: Expr,
    },

    // --- Order barriers: two consumers, one before the other.
    /// Blocks at this consumer's order barrier until it may multiply; the first consumer goes first. Acquire at CTA
    /// scope.
    ///
    /// CUDA: `OrderBarrier::wait`. Meaning: all steps of the tile before are under way. A parity
    /// names a phase of a stage within one pass over the ring only; from here on, this consumer is within that pass.
    AwaitOrder,
    /// Arrives at the other consumer's order barrier: it multiplies next. Release at CTA scope.
    ArriveOrder,

    // --- TMA.
    /// Starts a load into a part of the current slot; it completes on the slot's full barrier, with all its bytes.
    ///
    /// From every rank, it is a sum: all lanes of the warp have the switch add what lies there on each rank, in an order of its
    /// own, and write the sums to the slot by ordinary stores. [`Node::SyncWarp`], then an arrival, say that it is there.
    Load {
        /// The ring.
        ring: RingId,
        /// Part of the slot.
        part: usize,
        /// Box or subtile within the part.
        index: Expr,
        /// Slice of the subtile.
        slice: Expr,
        /// The map.
        map: MapId,
        /// Place of the box.
        at: At,
        /// True if each CTA of the cluster loads a piece of the part into all of them, instead of a box of its own. The
        /// pieces lie by the CTAs' order, in the part or, where it is MN-major, in each of its blocks, and complete on each
        /// one's barrier.
        multicast: bool,
        /// Load of a box that may have rows that do not exist.
        partial_boxes: Option<PartialBoxes>,
    },
    /// Starts a store from the current slot's first part.
    ///
    /// To every rank, all lanes of the warp read the slot and store it to a multicast address, or add it there, before they go
    /// on: no group completes it. [`Node::FenceAlias`], then [`Node::SyncWarp`], come before its signal.
    ///
    /// A part of a tile (`shard_end`) is stored by all lanes, too, row by row, at its rank's own address: a TMA store may not
    /// begin before its tensor, and its box ends where the tensor does, not where the tile does. [`Node::SyncWarp`] comes before
    /// its signal.
    Store {
        /// The ring.
        ring: RingId,
        /// Slice of the subtile there.
        slice: Expr,
        /// To where.
        map: MapId,
        /// Place of the box.
        at: At,
        /// Replace or add.
        mode: StoreMode,
        /// Of a part of a tile: one past the last row of its shard. The part begins at row 0 if the box begins before that, which
        /// is below zero, modulo 2^32. `None`: TMA stores the box, or it goes to every rank.
        shard_end: Option<Expr>,
    },
    /// Closes a group of stores.
    Commit,
    /// All but the latest `pending` groups have read their shared memory. Says nothing about the destination.
    AwaitRead {
        /// Number that may still be in flight.
        pending: Expr,
    },
    /// All but the latest `pending` groups are complete at their destination.
    AwaitStores {
        /// Number that may still be in flight.
        pending: Expr,
    },

    // --- Tensor cores.
    /// Registers are settled before the next multiplies.
    MmaFence,
    /// Starts `acc (+)= x · wᵀ` of the current slot: adds unless `fresh` is zero.
    ///
    /// Meaning: its accumulators may not be named until the group that it is in was waited for.
    Mma {
        /// The ring.
        ring: RingId,
        /// Index among the tiling's multiplies, which says whose accumulators they are.
        multiply: usize,
        /// Piece of the sums, where they are promoted: into registers that all pieces share.
        piece: Option<Piece>,
        /// Condition under which the accumulators start from zero at the slot's first step.
        fresh: Expr,
    },
    /// Closes a group of multiplies.
    MmaCommit,
    /// All but the latest `pending` groups are done with their slots and in their registers.
    MmaWait {
        /// Number that may still be in flight.
        pending: u32,
    },

    // --- Accumulators and subtiles.
    /// Accumulators for one item. Promoted sums begin as zero.
    Accumulators,
    /// Work of a multiplying thread on its fragment of a tile.
    Fragment(FragmentOp),
    /// Ordinary accesses of shared memory that are mine, or that I know of by a barrier, come before later accesses of the async
    /// proxy. Each lane's own.
    FenceShared,
    /// All lanes of the warp are here: what each did, its first lane may announce, and what that lane has waited for, each knows.
    SyncWarp,

    // --- Between CTAs and ranks.
    /// Copies numbers of a scale of rows from one rank's memory to the same place of another's: ordinary loads and stores of
    /// this thread, which come before what it signals.
    ///
    /// CUDA: `scales_copy`. Meaning: TMA knows nothing of these stores; whoever waits for the signal reads them by ordinary
    /// loads.
    CopyScales {
        /// The scale.
        tensor: TensorId,
        /// Rank whose memory is read.
        from: Expr,
        /// Rank whose memory is written.
        to: Expr,
        /// The first row, among all rows.
        row: Expr,
        /// Number of rows.
        rows: Expr,
    },
    /// Blocks until a cell of mine has all of this launch (`lag` 0), or so much of it, or all of the launches before (`lag`
    /// 1). Acquire
    /// at system scope, by ordinary loads.
    CounterWait {
        /// The set.
        counter: CounterId,
        /// The cell.
        cell: Expr,
        /// Number of launches back: 0 waits for this launch, 1 for all before.
        lag: u32,
        /// Sum of this launch's signals that is enough; `None`: all of them.
        at_least: Option<u32>,
    },
    /// An acquired counter comes before TMA's accesses of global memory.
    FenceGlobal,
    /// Accesses of global memory at its ranks' own addresses, and at the multicast address of the same memory: what comes before
    /// the fence by one comes before what follows it by the other. Each lane's own.
    ///
    /// CUDA: `fence_alias`. Meaning: two addresses of one memory are two proxies (PTX ISA 8.6 and Causality Order: aliases
    /// need an alias
    /// proxy fence along the path from one access to the other).
    FenceAlias,
    /// Moves the base of a cell of mine on by what arrives in this launch: nobody waits for it in this launch again.
    CounterAdvance {
        /// The set.
        counter: CounterId,
        /// The cell.
        cell: Expr,
    },
    /// Adds to a cell. Release at system scope.
    ///
    /// CUDA: `counter_add`; on every rank `counter_add_everywhere`, one instruction. Meaning: the add on that rank, or on each.
    CounterAdd {
        /// The set.
        counter: CounterId,
        /// Rank whose memory holds the cell.
        whose: Whose,
        /// The cell.
        cell: Expr,
        /// Added to the counter's cell; at least 1.
        amount: u32,
    },
    /// Remembers a signal for when its stores are complete: [`Node::Flush`] sends it.
    Defer {
        /// The set.
        counter: CounterId,
        /// Rank whose memory holds the cell.
        rank: Expr,
        /// The cell.
        cell: Expr,
        /// Added to the counter's cell; at least 1.
        amount: u32,
    },
    /// Sends the remembered signal, if there is one. Release at system scope.
    Flush {
        /// Added to the counter's cell; at least 1.
        amount: u32,
    },
    /// Blocks until the launches before on the stream are complete, and all they wrote is seen. Each thread's own.
    ///
    /// CUDA: `wait_prerequisites`; passes at once where it is no dependent launch. Meaning: no access of global
    /// memory stands before it but loads of what the variant declares constant, and no warp ends without it, since the launch after takes this one's end for that of
    /// all before.
    AwaitLaunches,
    /// All threads of the CTA are here.
    SyncCta,
    /// All threads of the cluster are here, and what they had waited for is over. It orders no accesses, and completes
    /// none: what a CTA sends into another one, or arrives on there, must have been waited for there.
    SyncCluster,
    /// Runs in the CTA that comes here last, after it has seen what all others did: one warp.
    LastCta {
        /// Number of CTAs that come here.
        of: Expr,
        /// Nodes of one thread.
        body: Vec<Node>,
        /// Then, all lanes together: sets whose cells (so many) have their bases moved on, since no CTA waits for
        /// them in this launch any more.
        advance: Vec<(CounterId, Expr)>,
    },
}

/// Contents of a list of nodes, from a note on.
#[derive(Clone, PartialEq, Debug)]
pub struct Note {
    /// The schedule's statement, or why the nodes are there.
    pub words: String,
    /// Place of the statement, if it is one: a compiler's message about these nodes names it.
    pub loc: Option<Loc>,
}

/// The grid of a loop's items. Its scheduler says in which order they are visited: an item binds `var.row` and
/// `var.column`.
#[derive(Clone, PartialEq, Debug)]
pub struct Grid {
    /// The item.
    pub var: String,
    /// Index among all of the grid, in that order: [`Expr::Within`] where the loop visits all.
    pub index: Expr,
    /// Rows of the grid.
    pub rows: Expr,
    /// Columns of the grid.
    pub columns: Expr,
}

/// Number of copies of a loop's body in the machine code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unroll {
    /// Once: the compiler does not choose, so that it is known how many instructions of a kind a kernel has.
    Once,
    /// So many times.
    Times(u32),
    /// As often as it runs: it indexes registers.
    Fully,
}

/// Phase of a barrier: the parity of the role's pass over the ring, or the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The one of this pass.
    ThisPhase,
    /// The one before: passes at once in the first pass over the slots.
    PreviousPhase,
    /// The phase in which sets hand slots on: that in which the set before hands it to this one. For the first
    /// consumer it is that of the previous pass, for the second that of this pass.
    Staggered,
}

/// Slot that an arrival is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// The current one.
    Current,
    /// The one [`Node::Advance`] kept.
    Previous,
    /// The current place in the next set: the CTA that has it after this one.
    NextSet,
}

/// A box's place in a map: {columns, rows in a shard, shard or slot, rank}.
#[derive(Clone, PartialEq, Debug)]
pub struct At {
    /// First column.
    pub column: Expr,
    /// First row.
    pub row: Expr,
    /// Shard or slot.
    pub shard: Expr,
    /// Rank whose memory it is.
    pub whose: Whose,
}

/// Rank whose memory a place is in.
///
/// CUDA: of one rank, the last coordinate of a map or a slot of the heap. Of all ranks, a multicast address, which `multimem`
/// instructions alone may touch (PTX ISA 9.7.10.15: anything else is undefined).
/// Meaning: an access of that place on every rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Whose {
    /// One rank's.
    Rank(Expr),
    /// Every rank's, at once.
    Everywhere,
}

impl From<Expr> for Whose {
    fn from(rank: Expr) -> Whose {
        Whose::Rank(rank)
    }
}

impl Whose {
    /// The rank; `None`: every one.
    pub const fn rank(&self) -> Option<&Expr> {
        match self {
            Whose::Rank(rank) => Some(rank),
            Whose::Everywhere => None,
        }
    }
}

/// A box as partial boxes of [`PARTIAL_BOX_ROWS`](super::PARTIAL_BOX_ROWS) rows, loaded one by one unless all of them have
/// rows that exist:
/// what lies outside a tensor costs TMA more time than what lies inside. What is not loaded keeps what the slot held:
/// rows of garbage are multiplied into rows, or columns, that nobody stores.
#[derive(Clone, PartialEq, Debug)]
pub struct PartialBoxes {
    /// The map of one.
    pub map: MapId,
    /// Number of rows of the first boxes, each of which has a row that exists.
    pub rows: Expr,
    /// Number of rows of the box.
    pub all: Expr,
}

/// A tensor map: 4-D {columns, rows in a shard, shard or slot, rank}, swizzled by a box's width: 128, 64 or 32 bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Map {
    /// Name in the text.
    pub name: String,
    /// Tensor of the map.
    pub tensor: TensorId,
    /// Layout of the tensor's rows over the middle dimensions.
    pub view: View,
    /// Columns of a box.
    pub box_columns: u32,
    /// Rows of a box.
    pub box_rows: u32,
    /// True if it has a sibling for the partial shard, which ends where that shard does. Stores go by it, and so do loads
    /// of what has no padding there.
    pub partial_shard: bool,
}

impl Map {
    /// The dimension whose shards it may have, of its tensor's two.
    pub fn divided(&self, kernel: &Kernel) -> DimId {
        let buffer = &kernel.buffers[self.tensor.index()];
        match self.view {
            View::ColumnShards => buffer.columns,
            View::Flat
            | View::Shards
            | View::SharedShards
            | View::SharedSlots
            | View::SharedSlotShards
            | View::SharedShard
            | View::SharedRows => buffer.rows,
        }
    }

    /// True if its stores or loads must end where a shard does: behind a shard that is short lies what is
    /// not the kernel's to write. Only scratch has padding there, and what only this rank has may end there.
    pub(crate) const fn ends_with_shards(&self, usage: Usage, stored: bool) -> bool {
        match self.view {
            // Their last row is the tensor's.
            View::Flat | View::SharedRows => false,
            // Each shard of a MN-major operand is a matrix with lines of full shards.
            View::Shards | View::ColumnShards => !usage.is_fixed(),
            View::SharedShards | View::SharedSlots | View::SharedSlotShards | View::SharedShard => {
                stored && !usage.is_scratch()
            }
        }
    }

    /// True if a store or a load by it goes by the sibling where the shard is the partial one.
    pub const fn clips(&self, usage: Usage, stored: bool) -> bool {
        self.partial_shard && self.ends_with_shards(usage, stored)
    }

    /// Shard of that dimension that a box lies in: where each rank has a shard, the shard of the rank whose memory it
    /// is; `None` of every rank's.
    pub const fn shard_at<'a>(&self, at: &'a At) -> Option<&'a Expr> {
        match self.view {
            View::Flat
            | View::Shards
            | View::ColumnShards
            | View::SharedShards
            | View::SharedSlotShards => Some(&at.shard),
            View::SharedSlots | View::SharedShard => at.whose.rank(),
            // None of one alone.
            View::SharedRows => None,
        }
    }
}

impl View {
    /// View of the same memory with the rows of all shards in one matrix, for items in several. Shards lie one behind the other,
    /// and only the last that has rows is short.
    pub(crate) const fn across(self) -> View {
        match self {
            View::Shards => View::Flat,
            View::SharedShards | View::SharedSlotShards => View::SharedRows,
            View::Flat
            | View::ColumnShards
            | View::SharedSlots
            | View::SharedShard
            | View::SharedRows => self,
        }
    }
}

/// Layout of a tensor's rows over a map's dimensions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum View {
    /// All rows this rank holds in one shard, of this rank alone.
    Flat,
    /// A shard a rank, of this rank alone: a box is clipped at its shard's end.
    Shards,
    /// Shards of this rank side by side: its columns are what the ranks divide.
    ColumnShards,
    /// A shard a rank, on every rank.
    SharedShards,
    /// Slots of one shard each, on every rank.
    SharedSlots,
    /// Slots of a shard a rank each, on every rank: slot by slot.
    SharedSlotShards,
    /// One shard (the owner's), on every rank.
    SharedShard,
    /// Slots of all rows each, or one of them, on every rank: a box may be in several shards.
    SharedRows,
}
