//! Work of a multiplying thread on its fragment of a tile: its accumulators, and what it reads beside them. An
//! operation of an epilogue is one of these: here is what it is, in `cuda::fragment` its text, in `proof::warp::fragment` its
//! meaning, and `sm90::epilogue` makes it.

use super::expr::{Expr, Field};
use super::ring::RingId;
use crate::dtype::Dtype;
use crate::kernel::ValueId;
use crate::program::{Side, TensorId};
use crate::tiling::Piece;
use crate::value::{AccId, Value};

/// One operation on a fragment.
#[derive(Clone, PartialEq, Debug)]
pub enum FragmentOp {
    /// Reads a loaded subtile, in f32 (ordinary loads).
    ReadSubtile {
        /// The ring.
        ring: RingId,
        /// Part of the slot.
        slot_part: usize,
        /// Box within the part.
        index: Expr,
        /// The subtile's type.
        dtype: Dtype,
        /// Registers that it is read into, or added to.
        into: ReadInto,
    },
    /// Reads a vector or a scale, each lane what its accumulators need of it. Ordinary loads, of memory that nobody writes during
    /// the launch or after a wait for what does; what is beyond the last number reads as zero.
    Broadcast {
        /// Accumulator that the schedule's load fills.
        acc: AccId,
        /// The registers' name.
        name: String,
        /// The vector or scale.
        tensor: TensorId,
        /// Rows or columns of the subtile that have a number each; all elements have the same one if `None`.
        along: Option<Along>,
        /// True if the item has read it before, for another pass: no address from then is kept in registers.
        again: bool,
    },
    /// Brings a tile's numbers of a vector or a scale of rows near, before the tile is multiplied: they are read behind that, in
    /// each subtile. Of memory that nobody writes during the launch. It changes no result: what is verified is that nothing
    /// races with it, not that what it brings is read.
    ReadAhead {
        /// Tensor that is read later.
        tensor: TensorId,
        /// Rows or columns of the tile.
        along: Along,
    },
    /// Registers of its own for the sum of some stored subtiles, at zero.
    StartSum {
        /// Accumulator that the schedule's sum fills.
        acc: AccId,
        /// The registers' name.
        name: String,
    },
    /// Adds this rank's own term to a sum's registers, in f32: elements of a subtile, rounded as the others' terms were.
    AddOwn {
        /// Accumulator that the schedule's sum fills.
        acc: AccId,
        /// The registers' name.
        name: String,
        /// The term.
        elements: Elements,
        /// Subtile of the tile.
        part: Expr,
        /// Type that it is rounded to.
        dtype: Dtype,
    },
    /// Reads the scales of a step's blocks from the current slot, each lane those of its accumulators (ordinary loads), or
    /// a share of
    /// them, which takes the place of another one.
    ReadBlocks {
        /// The ring.
        ring: RingId,
        /// Index among the tiling's scales.
        scale: usize,
        /// Index of the step's number in each line of its box, if they are blocks along K.
        number: Expr,
        /// Offset of the tile in a block, if blocks cross its edges: [`crate::tiling::StagedScale::crosses`].
        begin: Expr,
        /// Share, of [`crate::tiling::Tiling::shares_of_scale`].
        share: u32,
    },
    /// Adds the tensor cores' sums of a share of a piece to the promoted sums, in f32, times the product of the operands' scales if
    /// they have scales of blocks. The product of the scales is rounded to f32, and the sum once.
    Promote {
        /// Index among the tiling's multiplies.
        multiply: usize,
        /// Piece of the step.
        piece: Piece,
        /// Share of the piece.
        share: u32,
    },
    /// Computes what a subtile's elements become.
    Apply {
        /// An index into [`super::Pipeline::epilogues`].
        epilogue: usize,
        /// Subtile of the tile.
        part: Expr,
    },
    /// Rounds a subtile's accumulators, or what became of them, into the current slot (ordinary stores).
    WriteSubtile {
        /// The ring.
        ring: RingId,
        /// Subtile of the tile.
        part: Expr,
        /// Elements of the subtile.
        elements: Elements,
        /// Type that they are rounded to.
        dtype: Dtype,
        /// True if its rows are multiplied by the scales that [`FragmentOp::Quantize`] made of those elements.
        scaled: bool,
    },
    /// Makes the scales of a subtile's rows, or writes them: one for each row and block of 128 columns, by the rule of the variant.
    /// A block is the subtile, or several subtiles of a product.
    Quantize {
        /// Elements of the subtile.
        elements: Elements,
        /// Subtile of the tile; of a block of several, its first where it is sent to a slot.
        part: Expr,
        /// First column among all, of the block or of the subtile of a plane, and one past the last that there is.
        columns: [Expr; 2],
        /// Where they go.
        to: ScalesTo,
    },
    /// Reads the scales of a tile of partial sums in this rank's memory, each lane those of its rows. Ordinary loads, after
    /// a wait for
    /// what the tile's codes completed on; what is not there reads as zero.
    ReadTileScales {
        /// The plane.
        tensor: TensorId,
        /// The slot.
        slot: Expr,
        /// The tile's first row in the shard, and one past the last that there is.
        rows: [Expr; 2],
        /// First column among all, and one past the last that there is.
        columns: [Expr; 2],
    },
    /// Makes an amax as large as the largest absolute value of a subtile's elements, of those that exist.
    ///
    /// CUDA: `amax_take`, an atomic maximum of bits for each warp, as signed integers: NaN is the largest of all, and a start with
    /// its sign bit set is the least. Meaning: in any order, and complete when the launch is.
    Amax {
        /// The amax.
        tensor: TensorId,
        /// Elements of the subtile.
        elements: Elements,
        /// Subtile of the tile.
        part: Expr,
        /// First row among all, and one past the last that there is.
        rows: [Expr; 2],
        /// First column among all, and one past the last that there is.
        columns: [Expr; 2],
    },
    /// Sends a subtile's accumulators to another CTA of the cluster, into the slot of the current number there.
    ///
    /// CUDA: `partial_send`, asynchronous stores. Meaning: as a load by TMA, it completes on that CTA's full barrier with
    /// all its bytes.
    SendPartial {
        /// The ring.
        ring: RingId,
        /// Rank of the receiving CTA in the cluster.
        to: Expr,
        /// Place in the slot.
        index: Expr,
        /// Subtile of the tile.
        part: Expr,
    },
    /// Adds what another CTA sent to a subtile's accumulators, in f32 (ordinary loads).
    AddPartial {
        /// The ring.
        ring: RingId,
        /// Place in the slot.
        index: Expr,
        /// Subtile of the tile.
        part: Expr,
    },
}

/// Numbers along one side of a tile or subtile.
#[derive(Clone, PartialEq, Debug)]
pub struct Along {
    /// The side that has a number for each row or column.
    pub side: Side,
    /// First row or column.
    pub first: Expr,
    /// One past the last one that there is.
    pub end: Expr,
}

/// Registers that a loaded subtile is read into.
#[derive(Clone, PartialEq, Debug)]
pub enum ReadInto {
    /// Registers of its own.
    Own {
        /// Accumulator that the schedule's load fills.
        acc: AccId,
        /// The registers' name.
        name: String,
    },
    /// Added to a sum that [`FragmentOp::StartSum`] began.
    Sum {
        /// Accumulator that the schedule's sum fills.
        acc: AccId,
        /// The registers' name.
        name: String,
    },
    /// Added to a subtile's accumulators.
    Product {
        /// Subtile of the tile.
        part: Expr,
        /// True if each code is multiplied by its scale first, a product in f32: [`FragmentOp::ReadTileScales`] read them.
        scaled: bool,
    },
}

/// Place that computed scales are brought to.
#[derive(Clone, PartialEq, Debug)]
pub enum ScalesTo {
    /// Registers beside the elements that they are made of: of those of the block's 128 columns that exist.
    ///
    /// CUDA: `scales_make`, an amax by the lanes that share a row.
    Registers,
    /// The plane of an output, from registers: of rows that exist; behind the last of all rows zeros, to the end of the line.
    /// Ordinary stores of memory that nobody reads during the launch.
    Plane {
        /// The plane.
        tensor: TensorId,
        /// The subtile's first row among all, and one past the last that there is.
        rows: [Expr; 2],
        /// All rows, and how long a line is.
        all: [Expr; 2],
    },
    /// Beside a slot of partial sums, from registers: of rows that exist. Ordinary stores, before the arrival that says that the
    /// subtile is written: what the storing thread announces comes after both.
    Slot {
        /// The plane.
        tensor: TensorId,
        /// The rank whose memory it is in, and the slot.
        to: [Expr; 2],
        /// The first row in the shard, and one past the last that there is.
        rows: [Expr; 2],
    },
}

impl FragmentOp {
    /// The numbers of it.
    pub fn exprs(&self) -> Vec<&Expr> {
        match self {
            FragmentOp::WriteSubtile { part, .. }
            | FragmentOp::AddOwn { part, .. }
            | FragmentOp::Apply { part, .. } => vec![part],
            FragmentOp::ReadSubtile { index, into, .. } => match into {
                ReadInto::Own { .. } | ReadInto::Sum { .. } => vec![index],
                ReadInto::Product { part, .. } => vec![index, part],
            },
            FragmentOp::Broadcast { along, .. } => {
                let along = along.iter();
                along.flat_map(|at| [&at.first, &at.end]).collect()
            }
            FragmentOp::ReadAhead { along, .. } => vec![&along.first, &along.end],
            FragmentOp::Promote { .. } | FragmentOp::StartSum { .. } => Vec::new(),
            FragmentOp::ReadBlocks { number, begin, .. } => vec![number, begin],
            FragmentOp::Quantize {
                part, columns, to, ..
            } => {
                let sides: Vec<&Expr> = match to {
                    ScalesTo::Registers => Vec::new(),
                    ScalesTo::Plane { rows, all, .. } => rows.iter().chain(all).collect(),
                    ScalesTo::Slot { to, rows, .. } => to.iter().chain(rows).collect(),
                };
                [part].into_iter().chain(sides).chain(columns).collect()
            }
            FragmentOp::ReadTileScales {
                slot,
                rows,
                columns,
                ..
            } => [slot].into_iter().chain(rows).chain(columns).collect(),
            FragmentOp::Amax {
                part,
                rows,
                columns,
                ..
            } => [part].into_iter().chain(rows).chain(columns).collect(),
            FragmentOp::AddPartial { index, part, .. } => vec![index, part],
            FragmentOp::SendPartial {
                to, index, part, ..
            } => vec![to, index, part],
        }
    }

    /// The ring in whose slot it reads or writes, if it does.
    pub const fn ring(&self) -> Option<RingId> {
        match self {
            FragmentOp::ReadSubtile { ring, .. }
            | FragmentOp::ReadBlocks { ring, .. }
            | FragmentOp::WriteSubtile { ring, .. }
            | FragmentOp::SendPartial { ring, .. }
            | FragmentOp::AddPartial { ring, .. } => Some(*ring),
            FragmentOp::Broadcast { .. }
            | FragmentOp::ReadAhead { .. }
            | FragmentOp::StartSum { .. }
            | FragmentOp::AddOwn { .. }
            | FragmentOp::Promote { .. }
            | FragmentOp::Amax { .. }
            | FragmentOp::Quantize { .. }
            | FragmentOp::ReadTileScales { .. }
            | FragmentOp::Apply { .. } => None,
        }
    }

    /// The plane beside a slot of partial sums that it reads or writes, if it does.
    pub const fn plane_of_slots(&self) -> Option<TensorId> {
        match self {
            FragmentOp::Quantize {
                to: ScalesTo::Slot { tensor, .. },
                ..
            }
            | FragmentOp::ReadTileScales { tensor, .. } => Some(*tensor),
            FragmentOp::Quantize { .. }
            | FragmentOp::ReadSubtile { .. }
            | FragmentOp::ReadBlocks { .. }
            | FragmentOp::WriteSubtile { .. }
            | FragmentOp::SendPartial { .. }
            | FragmentOp::AddPartial { .. }
            | FragmentOp::Broadcast { .. }
            | FragmentOp::ReadAhead { .. }
            | FragmentOp::StartSum { .. }
            | FragmentOp::AddOwn { .. }
            | FragmentOp::Promote { .. }
            | FragmentOp::Amax { .. }
            | FragmentOp::Apply { .. } => None,
        }
    }

    /// Fields of the launch that it needs besides its numbers.
    pub fn fields(&self) -> Vec<Field> {
        if let Some(plane) = self.plane_of_slots() {
            return vec![Field::Vector(plane), Field::Line(plane), Field::Me];
        }
        match self {
            FragmentOp::Broadcast { tensor, .. }
            | FragmentOp::ReadAhead { tensor, .. }
            | FragmentOp::Amax { tensor, .. }
            | FragmentOp::Quantize {
                to: ScalesTo::Plane { tensor, .. },
                ..
            } => vec![Field::Vector(*tensor)],
            FragmentOp::Quantize { .. }
            | FragmentOp::ReadTileScales { .. }
            | FragmentOp::ReadSubtile { .. }
            | FragmentOp::StartSum { .. }
            | FragmentOp::AddOwn { .. }
            | FragmentOp::ReadBlocks { .. }
            | FragmentOp::Promote { .. }
            | FragmentOp::Apply { .. }
            | FragmentOp::WriteSubtile { .. }
            | FragmentOp::SendPartial { .. }
            | FragmentOp::AddPartial { .. } => Vec::new(),
        }
    }
}

/// Elements of a subtile before they are rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Elements {
    /// A product's accumulators as they are.
    Product(usize),
    /// Values that [`FragmentOp::Apply`] made of them, by its epilogue.
    Applied(usize),
}

/// The math between the products and what is stored: a function of a lane's registers, element by element.
#[derive(Clone, PartialEq, Debug)]
pub struct Epilogue {
    /// Name in the text.
    pub name: String,
    /// Value in the schedule, of all that the item added up and loaded.
    pub of: ValueId,
    /// Value of the schedule with everything added to accumulators as one number.
    pub value: Value,
    /// Numbers that it reads.
    pub params: Vec<Param>,
}

impl Epilogue {
    /// The sum whose registers already hold what it computes, if it is a sum as it is.
    pub fn sum(&self) -> Option<&Param> {
        let mut sums = self.params.iter().filter(|param| param.from == Source::Sum);
        sums.find(|param| self.value == Value::Acc(param.acc))
    }
}

/// A number that an [`Epilogue`] reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Param {
    /// Name in [`Epilogue::value`].
    pub acc: AccId,
    /// Name in the text.
    pub name: String,
    /// Origin of the accumulator.
    pub from: Source,
}

/// Origin of a number in an [`Epilogue`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The accumulators of one of the item's products.
    Product(usize),
    /// [`ReadInto::Own`]
    Subtile,
    /// [`ReadInto::Sum`]
    Sum,
    /// [`FragmentOp::Broadcast`], along that side, or of one number.
    Broadcast(Option<Side>),
}
