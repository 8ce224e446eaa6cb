//! What follows from a tensor's kind.

use super::{
    Along, AtEnd, AtStart, Placement, ScaleBlock, ScratchRows, Side, Slots, TensorId, TensorKind,
};

impl TensorKind {
    /// By what the slots of such a tensor are counted.
    pub(crate) const fn slots_by(self) -> Slots {
        match self.placement() {
            Placement::Scratch { slots, .. } => slots,
            Placement::Slots => Slots::World,
            Placement::Own | Placement::AllShards | Placement::Shard => Slots::Count(1),
        }
    }

    /// Whether its rows are chunked over ranks.
    pub const fn chunked(self) -> bool {
        match self.placement() {
            Placement::AllShards | Placement::Shard | Placement::Slots => true,
            Placement::Own | Placement::Scratch { .. } => false,
        }
    }

    /// Whether a rank's memory has its own chunk of rows alone, if the rows are chunked.
    pub const fn is_own_chunk(self) -> bool {
        match self.placement() {
            Placement::Shard | Placement::Slots => true,
            Placement::Scratch { extent, .. } => matches!(extent, ScratchRows::Chunk),
            Placement::Own | Placement::AllShards => false,
        }
    }

    /// Whether a launch must leave something in it: an output, or what is gathered.
    pub const fn is_left_behind(self) -> bool {
        !matches!(self.at_end(), AtEnd::Nothing)
    }

    /// Whether it is an output that a schedule declares.
    pub const fn is_output(self) -> bool {
        match self.at_end() {
            AtEnd::Computed
            | AtEnd::Anything
            | AtEnd::Accumulated
            | AtEnd::Sum { .. }
            | AtEnd::Sent => true,
            AtEnd::Nothing | AtEnd::Gathered | AtEnd::Amax(_) | AtEnd::Scales(_) => false,
        }
    }

    /// Whether it is an input, present at the start in whole or in part.
    pub const fn is_input(self) -> bool {
        matches!(
            self,
            TensorKind::Gathered
                | TensorKind::Local
                | TensorKind::Vector
                | TensorKind::Scale { .. }
        )
    }

    /// Whether each rank has it whole and nobody writes it, as long as a launch runs.
    pub const fn is_fixed(self) -> bool {
        matches!(
            self,
            TensorKind::Local
                | TensorKind::Vector
                | TensorKind::Scale {
                    gathered: false,
                    ..
                }
        )
    }

    /// Whether each rank has its own chunk of it at the start and is sent the others.
    pub const fn is_gathered(self) -> bool {
        matches!(self.at_end(), AtEnd::Gathered)
    }

    /// Which side of an item that reads it a side of it is; `None`: it has one row, or one column, for all.
    pub const fn read_along(self, own: Side) -> Option<Side> {
        match (self, own) {
            (TensorKind::Vector, Side::Rows) | (TensorKind::Amax { .. }, _) => None,
            // No item reads it: it comes with a step of K.
            (
                TensorKind::Scale {
                    along: Along::Blocks(_),
                    ..
                }
                | TensorKind::MadeScale { .. },
                own,
            ) => Some(own),
            (TensorKind::Scale { along, .. }, Side::Rows) => match along {
                Along::All => None,
                Along::Rows => Some(Side::Rows),
                Along::Columns => Some(Side::Columns),
                Along::Blocks(_) => Some(Side::Rows),
            },
            (TensorKind::Scale { .. }, Side::Columns) => None,
            (_, own) => Some(own),
        }
    }

    /// Which side of an item that copies it a side of it is. A scale has the rows of its tensor, whatever reads it, and of blocks
    /// all that there are along K.
    pub const fn copied_along(self, own: Side) -> Option<Side> {
        match (self, self.read_along(own), own) {
            (
                TensorKind::Scale {
                    along: Along::Blocks(_),
                    ..
                },
                _,
                Side::Columns,
            ) => None,
            (TensorKind::Scale { .. }, Some(_), _) => Some(Side::Rows),
            (_, along, _) => along,
        }
    }

    /// How many rows of an item that copies it each of its rows is for.
    pub const fn rows_each(self) -> u32 {
        match (self.operand_rows(), self.blocks()) {
            (Some(Side::Rows), Some(block)) => block.rows(),
            (Some(Side::Columns) | None, _) | (Some(Side::Rows), None) => 1,
        }
    }

    /// Which side of a scale of blocks has the rows of its operand, or the blocks of them: where it travels, its rows, which the
    /// ranks divide.
    pub const fn operand_rows(self) -> Option<Side> {
        match (self, self.blocks()) {
            (
                TensorKind::Scale {
                    gathered: false, ..
                }
                | TensorKind::MadeScale { .. },
                Some(ScaleBlock::Line),
            ) => Some(Side::Columns),
            (_, Some(ScaleBlock::Line | ScaleBlock::Square)) => Some(Side::Rows),
            (_, None) => None,
        }
    }

    /// Whether it has one row, or one column.
    pub const fn is_one(self, own: Side) -> bool {
        self.read_along(own).is_none()
    }

    /// Whether all elements of an item along that side have one number of it.
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
        match self {
            TensorKind::Scale {
                along: Along::Blocks(block),
                ..
            } => Some(block),
            TensorKind::MadeScale { .. }
            | TensorKind::Scratch {
                scales_of: Some(_), ..
            } => Some(ScaleBlock::Line),
            TensorKind::Scale {
                along: Along::All | Along::Rows | Along::Columns,
                ..
            }
            | TensorKind::Gathered
            | TensorKind::GatheredOutput
            | TensorKind::Local
            | TensorKind::Vector
            | TensorKind::Out
            | TensorKind::Accumulated
            | TensorKind::Amax { .. }
            | TensorKind::Scattered
            | TensorKind::Reduced
            | TensorKind::Exchanged
            | TensorKind::Scratch {
                scales_of: None, ..
            } => None,
        }
    }

    /// The tensor that it has the scales of, if it is such a plane: an operand's, an output's, or that of partial sums.
    pub const fn plane_of(self) -> Option<TensorId> {
        match self {
            TensorKind::Scale { of, .. }
            | TensorKind::MadeScale { of }
            | TensorKind::Scratch {
                scales_of: Some(of),
                ..
            } => Some(of),
            TensorKind::Gathered
            | TensorKind::GatheredOutput
            | TensorKind::Local
            | TensorKind::Vector
            | TensorKind::Out
            | TensorKind::Accumulated
            | TensorKind::Amax { .. }
            | TensorKind::Scattered
            | TensorKind::Reduced
            | TensorKind::Exchanged
            | TensorKind::Scratch {
                scales_of: None, ..
            } => None,
        }
    }

    /// Whether each chunk of it is a plane of its own, with the numbers of adjacent rows side by side: scales of 1×128 that travel.
    pub(crate) const fn is_line_of_chunks(self) -> bool {
        let line = matches!(self.blocks(), Some(ScaleBlock::Line));
        line && matches!(self.operand_rows(), Some(Side::Rows))
    }

    /// Whether it is one number.
    pub const fn is_number(self) -> bool {
        self.is_same_in(Side::Rows) && self.is_same_in(Side::Columns)
    }

    /// Whether it is what another tensor is multiplied by.
    pub const fn is_scale(self) -> bool {
        matches!(self, TensorKind::Scale { .. })
    }

    /// Whether ordinary accesses reach it, as a whole or by columns, and it has no rows of an item.
    pub const fn is_repeated(self) -> bool {
        matches!(
            self,
            TensorKind::Vector
                | TensorKind::Scale { .. }
                | TensorKind::Amax { .. }
                | TensorKind::MadeScale { .. }
        )
    }

    /// Whether its contents before a launch count: inputs, and outputs that a launch adds to or makes larger.
    pub const fn counts_before(self) -> bool {
        !matches!(self.at_start(), AtStart::Nothing)
    }

    /// Whether it lives in symmetric memory, so that a peer can address it.
    pub const fn symmetric(self) -> bool {
        !matches!(self.placement(), Placement::Own)
    }

    /// Its name in the language.
    pub const fn name(self) -> &'static str {
        match self {
            TensorKind::Gathered | TensorKind::GatheredOutput => "Gathered",
            TensorKind::Local => "Local",
            TensorKind::Vector => "Vector",
            TensorKind::Scale { .. } => "Scale",
            TensorKind::Out => "Out",
            TensorKind::Accumulated => "Accumulated",
            TensorKind::Amax { .. } => "Amax",
            TensorKind::MadeScale { .. } => "MadeScale",
            TensorKind::Scattered => "Scattered",
            TensorKind::Reduced => "Reduced",
            TensorKind::Exchanged => "Exchanged",
            TensorKind::Scratch { .. } => "symmetric",
        }
    }
}
