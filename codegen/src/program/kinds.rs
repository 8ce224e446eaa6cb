//! What follows from a tensor's kind.

use super::TensorKind;

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

    /// Whether it is one number for all of another tensor.
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
