//! What ops touch of tensors, before items and ranks are numbers.

use crate::program::{Home, Pick, StoreMode, TensorId, Var};

/// A rectangle of a buffer.
#[derive(Clone, PartialEq, Debug)]
pub struct Region {
    /// The buffer.
    pub buffer: TensorId,
    /// Owner of the memory.
    pub home: Home,
    /// Slot; `None`: the only one.
    pub slot: Option<Pick>,
    /// Rows of the region.
    pub rows: Axis,
    /// Columns of the region.
    pub columns: Axis,
}

/// Part of a dimension that a region covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Axis {
    /// All of it.
    All,
    /// The rows of an item.
    RowsOf(Var),
    /// The columns of an item.
    ColumnsOf(Var),
}

/// Effect of an access on memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reads.
    Read,
    /// Replaces what is there.
    Write,
    /// Adds to what is there. Adds are atomic: they have no order among each other.
    Add,
}

impl Access {
    /// The verb of a sentence about it.
    pub const fn verb(self) -> &'static str {
        match self {
            Access::Read => "reads",
            Access::Write => "writes",
            Access::Add => "adds to",
        }
    }

    /// True if the order of two accesses decides what is read, or what remains.
    pub const fn conflicts(self, other: Access) -> bool {
        match (self, other) {
            (Access::Read, Access::Read) | (Access::Add, Access::Add) => false,
            (
                Access::Read | Access::Write | Access::Add,
                Access::Read | Access::Write | Access::Add,
            ) => true,
        }
    }
}

impl StoreMode {
    /// Effect of a store on memory.
    pub const fn access(self) -> Access {
        match self {
            StoreMode::Write => Access::Write,
            StoreMode::Add => Access::Add,
        }
    }
}
