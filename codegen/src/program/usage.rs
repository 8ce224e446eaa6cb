//! Uses of a tensor: attributes that are independent of each other, and what follows from them. A reader asks for the one
//! that it needs.

use super::{Side, Slots, TensorId};
use crate::dtype::Dtype;
use crate::encoding::{Along, ScaleBlock, Scaling, rule::ScaleRule};

/// Use of a tensor.
///
/// ```
/// use counterflow_codegen::program::{AtEnd, AtStart, TensorRole, Usage};
///
/// let x = Usage::GATHERED;
/// assert_eq!((x.role, x.at_start(), x.at_end), (TensorRole::Input, AtStart::Shard, AtEnd::Gathered));
/// assert!(x.placement.symmetric && !Usage::LOCAL.placement.symmetric);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Owner: the caller, or the kernel.
    pub role: TensorRole,
    /// Placement of its elements on ranks.
    pub placement: Placement,
    /// Contents that a launch must leave in it.
    pub at_end: AtEnd,
    /// True if the tensor has one row, which every row of an item reads: a bias.
    pub vector: bool,
    /// Tensor that the numbers belong to. No schedule declares such a plane; a [`Variant`](crate::variant::Variant)
    /// does.
    pub plane: Option<Plane>,
}

/// Owner of a tensor: the caller, or the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TensorRole {
    /// A parameter that a launch reads. Copies may fill a gathered one; nothing else writes it.
    Input,
    /// A parameter that a launch writes.
    Output,
    /// Memory of the schedule's own.
    Scratch,
}

/// Placement of a tensor's elements on ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// True if the tensor is in symmetric memory, so that a peer can address it.
    pub symmetric: bool,
    /// Rows in a rank's memory.
    pub rows: HeldRows,
    /// Number of copies of these rows.
    pub slots: Slots,
}

/// Rows of a tensor in a rank's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeldRows {
    /// The shard that the rank owns.
    Shard,
    /// All.
    Whole,
}

/// Part of a tensor that a rank has when a launch starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtStart {
    /// Nothing that anybody may read.
    Nothing,
    /// All of it, and its own.
    Whole,
    /// Shard of the tensor: the shard of rows with the shard's number.
    Shard,
}

/// Contents of a tensor when a launch has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtEnd {
    /// Nothing is promised: scratch, and what a rank has whole at the start, which nobody writes.
    Nothing,
    /// On every rank what each owner had of its shard at the start.
    Gathered,
    /// On every rank what the owner of the rows computed.
    Computed,
    /// Whatever the rank computed.
    Own,
    /// Contents from before, and every product once.
    Accumulated,
    /// The sum over ranks.
    Sum {
        /// All of it on every rank, or each rank its shard.
        everywhere: bool,
    },
    /// In each slot what its rank computed.
    Sent,
}

/// Numbers that belong to another tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plane {
    /// The tensor that they belong to.
    pub of: TensorId,
    /// Meaning of the numbers.
    pub numbers: Numbers,
}

/// Meaning of the numbers of a plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Numbers {
    /// Scales of the tensor.
    Scale(Scaling),
    /// The largest absolute value of what a rank computes of an output, before its scale: one number. What it holds before a
    /// launch counts.
    Amax,
}

const PRIVATE: Placement = Placement {
    symmetric: false,
    rows: HeldRows::Whole,
    slots: Slots::Count(1),
};

impl Usage {
    /// Input, whole on each rank and different on each. Never written.
    pub const LOCAL: Usage = Usage {
        role: TensorRole::Input,
        placement: PRIVATE,
        at_end: AtEnd::Nothing,
        vector: false,
        plane: None,
    };
    /// Input vector along the columns (a bias), whole on each rank. Never written.
    pub const VECTOR: Usage = Usage {
        vector: true,
        ..Usage::LOCAL
    };
    /// Input in row shards: rank `r` holds shard `r`. Every rank must hold all of it at the end.
    pub const GATHERED: Usage = Usage {
        placement: Placement {
            symmetric: true,
            ..PRIVATE
        },
        at_end: AtEnd::Gathered,
        ..Usage::LOCAL
    };
    /// Output, whole on each rank and different on each.
    pub const OUT: Usage = Usage {
        role: TensorRole::Output,
        at_end: AtEnd::Own,
        ..Usage::LOCAL
    };
    /// Output that a launch adds to, whole on each rank and different on each. Its old contents count.
    pub const ACCUMULATED: Usage = Usage {
        at_end: AtEnd::Accumulated,
        ..Usage::OUT
    };
    /// Output in row shards: rank `r` computes shard `r`. Every rank must hold all of it at the end.
    pub const GATHERED_OUTPUT: Usage = Usage {
        role: TensorRole::Output,
        at_end: AtEnd::Computed,
        ..Usage::GATHERED
    };
    /// Output: the sum over ranks, whole on every rank.
    pub const ALL_REDUCED: Usage = Usage {
        at_end: AtEnd::Sum { everywhere: true },
        ..Usage::GATHERED_OUTPUT
    };
    /// Output: the sum over ranks, of which rank `r` keeps row shard `r`.
    pub const REDUCE_SCATTERED: Usage = Usage {
        placement: Placement {
            symmetric: true,
            rows: HeldRows::Shard,
            slots: Slots::Count(1),
        },
        at_end: AtEnd::Sum { everywhere: false },
        ..Usage::OUT
    };
    /// Output in a slot for each rank: rank `r` keeps row shard `r` of what every rank computes, rank `s`'s in slot `s`.
    pub const ALL_TO_ALL: Usage = Usage {
        placement: Placement {
            slots: Slots::World,
            ..Usage::REDUCE_SCATTERED.placement
        },
        at_end: AtEnd::Sent,
        ..Usage::OUT
    };

    /// Scratch in symmetric memory.
    pub const fn scratch(rows: HeldRows, slots: Slots) -> Usage {
        Usage {
            role: TensorRole::Scratch,
            placement: Placement {
                symmetric: true,
                rows,
                slots,
            },
            ..Usage::LOCAL
        }
    }

    /// Usage of the same memory for numbers that belong to `of`.
    #[must_use]
    pub(crate) const fn beside(self, of: TensorId, numbers: Numbers) -> Usage {
        Usage {
            plane: Some(Plane { of, numbers }),
            ..self
        }
    }

    /// Part of it that a rank has when a launch starts.
    pub const fn at_start(self) -> AtStart {
        match self.role {
            TensorRole::Input if self.placement.symmetric => AtStart::Shard,
            TensorRole::Input => AtStart::Whole,
            TensorRole::Output if self.is_added_to() || self.amax_of().is_some() => AtStart::Whole,
            TensorRole::Output | TensorRole::Scratch => AtStart::Nothing,
        }
    }

    /// True if its contents before a launch count: inputs, and outputs that a launch adds to or makes larger.
    pub const fn counts_before(self) -> bool {
        !matches!(self.at_start(), AtStart::Nothing)
    }

    /// True if a launch adds to what it holds.
    pub const fn is_added_to(self) -> bool {
        matches!(self.at_end, AtEnd::Accumulated)
    }

    /// True if a place in it may name a slot.
    pub const fn has_slots(self) -> bool {
        self.is_scratch() || !matches!(self.placement.slots, Slots::Count(1))
    }

    /// True if its rows are sharded over ranks.
    pub const fn sharded(self) -> bool {
        self.placement.symmetric && !self.is_scratch()
    }

    /// True if a rank's memory has its own shard of rows alone, if the rows are sharded.
    pub const fn is_own_shard(self) -> bool {
        matches!(self.placement.rows, HeldRows::Shard)
    }

    /// True if a launch must leave something in it: an output, or what is gathered.
    pub const fn is_left_behind(self) -> bool {
        !matches!(self.at_end, AtEnd::Nothing)
    }

    /// True if it is an output that a schedule declares.
    pub const fn is_output(self) -> bool {
        matches!(self.role, TensorRole::Output) && self.plane.is_none()
    }

    /// True if it is an input, present at the start in whole or in part.
    pub const fn is_input(self) -> bool {
        matches!(self.role, TensorRole::Input)
    }

    /// True if it is scratch, whose last readers matter across launches.
    pub const fn is_scratch(self) -> bool {
        matches!(self.role, TensorRole::Scratch)
    }

    /// True if each rank has it whole and nobody writes it, as long as a launch runs.
    pub const fn is_fixed(self) -> bool {
        self.is_input() && !self.placement.symmetric
    }

    /// True if each rank has its own shard of it at the start and is sent the others.
    pub const fn is_gathered(self) -> bool {
        matches!(self.at_end, AtEnd::Gathered)
    }

    /// True if it is the sum over ranks.
    pub const fn is_sum(self) -> bool {
        matches!(self.at_end, AtEnd::Sum { .. })
    }

    /// Side of a reading item that corresponds to its side `own`; `None`: it has one row, or one column, for all.
    pub const fn read_along(self, own: Side) -> Option<Side> {
        match (self.plane, own) {
            (None, Side::Rows) if self.vector => None,
            (None, own) => Some(own),
            (Some(plane), own) => plane.numbers.read_along(own),
        }
    }

    /// Side of a copying item that corresponds to its side `own`. A scale has the rows of its tensor, whatever reads it, and of blocks
    /// all that there are along K.
    pub const fn copied_along(self, own: Side) -> Option<Side> {
        match (self.is_scale(), self.blocks(), own) {
            (true, Some(_), Side::Columns) => None,
            (true, ..) if self.read_along(own).is_some() => Some(Side::Rows),
            _ => self.read_along(own),
        }
    }

    /// Number of rows of a copying item that each of its rows is for.
    pub const fn rows_each(self) -> u32 {
        match (self.operand_rows(), self.blocks()) {
            (Some(Side::Rows), Some(block)) => block.rows,
            (Some(Side::Columns) | None, _) | (Some(Side::Rows), None) => 1,
        }
    }

    /// Side of a scale of blocks that has the rows of its operand, or the blocks of them: where peers address it, its rows, which
    /// the ranks divide.
    pub const fn operand_rows(self) -> Option<Side> {
        match self.blocks() {
            Some(block) if block.is_1d() && !self.placement.symmetric => Some(Side::Columns),
            Some(_) => Some(Side::Rows),
            None => None,
        }
    }

    /// A side of the tensor with these scales, and what its shards are multiples of: the rows of given scales of blocks, and the
    /// columns of computed ones. No box of TMA begins in a plane of scratch.
    pub fn shard_unit(self) -> Option<(TensorId, Side, u32)> {
        let plane = self.plane.filter(|_| !self.is_scratch())?;
        let (side, unit) = match plane.numbers {
            Numbers::Scale(Scaling::Computed(rule)) => (Side::Columns, rule.block().columns),
            Numbers::Scale(scaling @ Scaling::Given(_)) => {
                (Side::Rows, scaling.blocks()?.shard_unit())
            }
            Numbers::Amax => return None,
        };
        Some((plane.of, side, unit))
    }

    /// True if all elements of an item along that side have one number of it.
    pub const fn is_same_in(self, side: Side) -> bool {
        let mut same = true;
        let mut at = 0;
        while at < Side::ALL.len() {
            if let Some(along) = self.read_along(Side::ALL[at]) {
                same &= along as usize != side as usize;
            }
            at += 1;
        }
        same
    }

    /// The blocks of which it has a number each, if it is such a scale.
    pub const fn blocks(self) -> Option<ScaleBlock> {
        match self.plane {
            Some(plane) => plane.numbers.blocks(),
            None => None,
        }
    }

    /// The tensor that it has the scales of: an operand, an output, or partial sums.
    pub const fn scales_of(self) -> Option<TensorId> {
        match (self.plane, self.scaling()) {
            (Some(plane), Some(_)) => Some(plane.of),
            (_, None) | (None, _) => None,
        }
    }

    /// The tensor by whose given scale products or results are multiplied.
    pub const fn given_scale_of(self) -> Option<TensorId> {
        match self.rule() {
            None => self.scales_of(),
            Some(_) => None,
        }
    }

    /// The tensor whose scales stores compute.
    pub const fn computed_scale_of(self) -> Option<TensorId> {
        match self.rule() {
            None => None,
            Some(_) => self.scales_of(),
        }
    }

    /// The scale whose numbers it has, if it is one.
    pub const fn scaling(self) -> Option<Scaling> {
        match self.plane {
            Some(Plane {
                numbers: Numbers::Scale(scaling),
                ..
            }) => Some(scaling),
            Some(_) | None => None,
        }
    }

    /// The rule by which stores compute it, if they do.
    pub const fn rule(self) -> Option<ScaleRule> {
        match self.scaling() {
            Some(scaling) => scaling.rule(),
            None => None,
        }
    }

    /// The output that it is the largest absolute value of.
    pub const fn amax_of(self) -> Option<TensorId> {
        match self.plane {
            Some(plane) if matches!(plane.numbers, Numbers::Amax) => Some(plane.of),
            Some(_) | None => None,
        }
    }

    /// True if each shard of it is a plane of its own, with the numbers of adjacent rows side by side: scales of blocks of one row
    /// that travel.
    pub(crate) const fn is_line_of_shards(self) -> bool {
        matches!(self.blocks(), Some(block) if block.is_1d()) && self.placement.symmetric
    }

    /// True if it is one number.
    pub const fn is_number(self) -> bool {
        self.is_same_in(Side::Rows) && self.is_same_in(Side::Columns)
    }

    /// True if it is what another tensor is multiplied by.
    pub const fn is_scale(self) -> bool {
        self.given_scale_of().is_some()
    }

    /// True if ordinary accesses reach it, as a whole or by columns, and it has no rows of an item.
    pub const fn is_repeated(self) -> bool {
        self.vector || self.plane.is_some() && !self.is_scratch()
    }

    /// Name in the language.
    pub const fn name(self) -> &'static str {
        match (self.plane, self.at_end) {
            _ if self.is_scratch() => "symmetric",
            (Some(plane), _) => plane.numbers.name(),
            (None, AtEnd::Nothing) if self.vector => "Vector",
            (None, AtEnd::Nothing) => "Local",
            (None, AtEnd::Gathered | AtEnd::Computed) => "Gathered",
            (None, AtEnd::Own) => "Out",
            (None, AtEnd::Accumulated) => "Accumulated",
            (None, AtEnd::Sum { everywhere: false }) => "ReduceScattered",
            (None, AtEnd::Sum { everywhere: true }) => "AllReduced",
            (None, AtEnd::Sent) => "AllToAll",
        }
    }
}

impl Numbers {
    const fn read_along(self, own: Side) -> Option<Side> {
        match (self, own) {
            // No item reads it: it comes with a step of K.
            (Numbers::Scale(Scaling::Given(Along::Blocks(_)) | Scaling::Computed(_)), own) => {
                Some(own)
            }
            (Numbers::Scale(Scaling::Given(Along::Rows)), Side::Rows) => Some(Side::Rows),
            (Numbers::Scale(Scaling::Given(Along::Columns)), Side::Rows) => Some(Side::Columns),
            (Numbers::Scale(Scaling::Given(Along::Rows | Along::Columns)), Side::Columns)
            | (Numbers::Scale(Scaling::Given(Along::All)) | Numbers::Amax, _) => None,
        }
    }

    /// Element type in memory.
    pub(crate) fn element(self) -> Dtype {
        self.blocks().map_or(Dtype::F32, |block| block.element)
    }

    const fn blocks(self) -> Option<ScaleBlock> {
        match self {
            Numbers::Scale(scaling) => scaling.blocks(),
            Numbers::Amax => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Numbers::Scale(Scaling::Given(_)) => "Scale",
            Numbers::Scale(Scaling::Computed(_)) => "ComputedScale",
            Numbers::Amax => "Amax",
        }
    }
}
