//! What follows from a tensor's kind.

use super::{Along, Side, TensorKind};

impl TensorKind {
    /// Whether its rows are chunked over ranks.
    pub const fn chunked(self) -> bool {
        matches!(
            self,
            TensorKind::Gathered
                | TensorKind::GatheredOutput
                | TensorKind::Scattered
                | TensorKind::Reduced
                | TensorKind::Exchanged
        )
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
            TensorKind::Local | TensorKind::Vector | TensorKind::Scale { .. }
        )
    }

    /// Whether all elements of an item along that side have one number of it, so that it has one row, or one column.
    pub const fn is_same_in(self, side: Side) -> bool {
        let TensorKind::Scale { along, .. } = self else {
            return matches!((self, side), (TensorKind::Vector, Side::Rows));
        };
        match side {
            Side::Rows => matches!(along, Along::All | Along::Columns),
            Side::Columns => matches!(along, Along::All | Along::Rows),
        }
    }

    /// Whether it is one number.
    pub const fn is_number(self) -> bool {
        self.is_same_in(Side::Rows) && self.is_same_in(Side::Columns)
    }

    /// Whether it is what another tensor is multiplied by.
    pub const fn is_scale(self) -> bool {
        matches!(self, TensorKind::Scale { .. })
    }

    /// Whether it is read by ordinary loads, as a whole or by columns, and has no rows of an item.
    pub const fn is_repeated(self) -> bool {
        matches!(self, TensorKind::Vector | TensorKind::Scale { .. })
    }

    /// Whether its contents before a launch count: inputs, and outputs that a launch adds to.
    pub const fn counts_before(self) -> bool {
        self.is_input() || matches!(self, TensorKind::Accumulated)
    }

    /// Whether it lives in symmetric memory, so that a peer can address it.
    pub const fn symmetric(self) -> bool {
        !matches!(
            self,
            TensorKind::Local
                | TensorKind::Vector
                | TensorKind::Scale { .. }
                | TensorKind::Out
                | TensorKind::Accumulated
        )
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
            TensorKind::Scattered => "Scattered",
            TensorKind::Reduced => "Reduced",
            TensorKind::Exchanged => "Exchanged",
            TensorKind::Scratch { .. } => "symmetric",
        }
    }
}
