//! What a tensor's kind means, one question at a time: what a rank has of it when a launch starts, which rows its memory has, and
//! what must be there when the launch has ended. Who needs one of the answers asks that question, not for the kind.

use super::{ScratchRows, Slots, TensorId, TensorKind};

/// What a rank has of a tensor when a launch starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtStart {
    /// Nothing that anybody may read.
    Nothing,
    /// All of it, and its own.
    Whole,
    /// Its shard: the chunk of rows with its number.
    Shard,
}

/// Which rows of a tensor a rank's memory has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// All. No peer addresses them.
    Own,
    /// All, in symmetric memory: every rank's shard.
    AllShards,
    /// Its own shard, in symmetric memory.
    Shard,
    /// Its own shard once for each rank, in symmetric memory: a slot a sender.
    Slots,
    /// Scratch in symmetric memory.
    Scratch {
        /// All rows, or its own shard.
        extent: ScratchRows,
        /// How often.
        slots: Slots,
    },
}

/// What must be in a tensor when a launch has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtEnd {
    /// Nothing is promised: scratch, and what a rank has whole at the start, which nobody writes.
    Nothing,
    /// On every rank what each owner had of its shard at the start.
    Gathered,
    /// On every rank what the owner of the rows computed.
    Computed,
    /// Whatever the rank computed.
    Anything,
    /// What was there before, and every product once.
    Accumulated,
    /// The sum over ranks.
    Sum {
        /// All of it on every rank, or each rank its shard.
        everywhere: bool,
    },
    /// In each slot what its rank computed.
    Sent,
    /// The amax of another output.
    Amax(TensorId),
    /// The scales of another output's blocks.
    Scales(TensorId),
}

impl TensorKind {
    /// What a rank has of it when a launch starts.
    pub const fn at_start(self) -> AtStart {
        match self {
            TensorKind::Local
            | TensorKind::Vector
            | TensorKind::Scale {
                gathered: false, ..
            }
            | TensorKind::Accumulated
            | TensorKind::Amax { .. } => AtStart::Whole,
            TensorKind::Gathered | TensorKind::Scale { gathered: true, .. } => AtStart::Shard,
            TensorKind::Out
            | TensorKind::MadeScale { .. }
            | TensorKind::Scattered
            | TensorKind::Exchanged
            | TensorKind::Reduced
            | TensorKind::GatheredOutput
            | TensorKind::Scratch { .. } => AtStart::Nothing,
        }
    }

    /// Which rows of it a rank's memory has.
    pub const fn placement(self) -> Placement {
        match self {
            TensorKind::Local
            | TensorKind::Vector
            | TensorKind::Scale {
                gathered: false, ..
            }
            | TensorKind::Out
            | TensorKind::Accumulated
            | TensorKind::Amax { .. }
            | TensorKind::MadeScale { .. } => Placement::Own,
            TensorKind::Gathered
            | TensorKind::Scale { gathered: true, .. }
            | TensorKind::GatheredOutput
            | TensorKind::Reduced => Placement::AllShards,
            TensorKind::Scattered => Placement::Shard,
            TensorKind::Exchanged => Placement::Slots,
            TensorKind::Scratch { extent, slots, .. } => Placement::Scratch { extent, slots },
        }
    }

    /// What must be in it when a launch has ended.
    pub const fn at_end(self) -> AtEnd {
        match self {
            TensorKind::Local
            | TensorKind::Vector
            | TensorKind::Scale {
                gathered: false, ..
            }
            | TensorKind::Scratch { .. } => AtEnd::Nothing,
            TensorKind::Gathered | TensorKind::Scale { gathered: true, .. } => AtEnd::Gathered,
            TensorKind::GatheredOutput => AtEnd::Computed,
            TensorKind::Out => AtEnd::Anything,
            TensorKind::Accumulated => AtEnd::Accumulated,
            TensorKind::Scattered => AtEnd::Sum { everywhere: false },
            TensorKind::Reduced => AtEnd::Sum { everywhere: true },
            TensorKind::Exchanged => AtEnd::Sent,
            TensorKind::Amax { of } => AtEnd::Amax(of),
            TensorKind::MadeScale { of } => AtEnd::Scales(of),
        }
    }
}
