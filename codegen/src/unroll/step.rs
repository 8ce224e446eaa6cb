//! The steps of an agent.

use crate::kernel::{Amax, OpId, ValueId};
use crate::program::{CounterId, StoreMode, TensorId};
use crate::shape::Extent;
use crate::value::AccId;

/// `home` of a span or signal that addresses every rank at once.
pub const EVERYWHERE: u16 = u16::MAX;

/// All steps of one agent in one launch.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Agent {
    /// The rank.
    pub rank: u16,
    /// The index of its role in [`Kernel::roles`](crate::kernel::Kernel::roles).
    pub role: u16,
    /// The steps, item after item.
    pub steps: Vec<Step>,
    /// The items, in the order they are claimed.
    pub items: Vec<Item>,
}

/// One unit of work: a range of an agent's steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item {
    /// Its first step.
    pub start: u32,
    /// One past its last step.
    pub end: u32,
    /// How many joins came before it: items of an earlier phase happen before items of a later one.
    pub phase: u32,
}

/// One concrete operation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Step {
    /// The op of the kernel that it is an instance of.
    pub op: OpId,
    /// What it does.
    pub kind: StepKind,
}

/// What a step does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum StepKind {
    /// Block until my cell grew by its target.
    Wait {
        /// The set.
        counter: CounterId,
        /// The cell.
        cell: u32,
        /// By how much in this launch; `None`: by all that arrives in one launch.
        at_least: Option<u32>,
    },
    /// Add to a cell of `home`.
    Signal {
        /// The set.
        counter: CounterId,
        /// Whose cell.
        home: u16,
        /// The cell.
        cell: u32,
        /// How much.
        amount: u32,
    },
    /// Move data unchanged.
    Copy {
        /// To where; may be [`EVERYWHERE`].
        dst: Span,
        /// From where.
        src: Span,
    },
    /// `acc += a · bᵀ`.
    Dot {
        /// The accumulator.
        acc: AccId,
        /// Rows of the result.
        a: Span,
        /// Columns of the result (its rows) over the same K.
        b: Span,
    },
    /// `acc += from`; [`EVERYWHERE`] sums over all ranks.
    Reduce {
        /// The accumulator.
        acc: AccId,
        /// What is added.
        from: Span,
    },
    /// `acc += ` this rank's term of a sum over the others, rounded as theirs are.
    OwnTerm {
        /// The accumulator.
        acc: AccId,
        /// The term.
        value: ValueId,
        /// This rank's place in the scratch that has the others' terms. Nobody writes or reads it; its type is theirs.
        of: Span,
    },
    /// `acc = from`.
    Load {
        /// The accumulator.
        acc: AccId,
        /// From where; one row of a vector.
        from: Span,
    },
    /// Write or add to an item.
    Store {
        /// To where.
        dst: Span,
        /// Replace or add.
        mode: StoreMode,
        /// What.
        value: ValueId,
        /// What is measured of it.
        amax: Option<Amax>,
        /// The scales that are made of it: their plane's part.
        scales: Option<Span>,
    },
}

/// A rectangle of one rank's buffer, in global rows and columns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// The buffer.
    pub buffer: TensorId,
    /// Whose memory, or [`EVERYWHERE`].
    pub home: u16,
    /// Which slot.
    pub slot: u16,
    /// Which rows.
    pub rows: Extent,
    /// Which columns.
    pub columns: Extent,
}

impl Span {
    /// How many elements.
    pub fn elements(&self) -> u64 {
        u64::from(self.rows.len()) * u64::from(self.columns.len())
    }
    /// Whether both share an element of the same memory.
    pub fn overlaps(&self, other: &Span) -> bool {
        self.buffer == other.buffer
            && (self.home == other.home || self.home == EVERYWHERE || other.home == EVERYWHERE)
            && self.slot == other.slot
            && self.rows.overlaps(other.rows)
            && self.columns.overlaps(other.columns)
    }
}
