//! What ops touch of tensors, before items and ranks are numbers.

use super::OpKind;
use crate::program::{Home, Pick, StoreMode, TensorId, Var};

/// A rectangle of a buffer.
#[derive(Clone, PartialEq, Debug)]
pub struct Region {
    /// The buffer.
    pub buffer: TensorId,
    /// Whose memory.
    pub home: Home,
    /// Which slot; `None`: the only one.
    pub slot: Option<Pick>,
    /// Which rows.
    pub rows: Axis,
    /// Which columns.
    pub columns: Axis,
}

/// Which part of a dimension a region covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Axis {
    /// All of it.
    All,
    /// The rows of an item.
    RowsOf(Var),
    /// The columns of an item.
    ColumnsOf(Var),
}

/// What an access does to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It reads.
    Read,
    /// It replaces what is there.
    Write,
    /// It adds to what is there. Adds are atomic: they have no order among each other.
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

    /// Whether the order of two accesses decides what is read, or what remains.
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

impl OpKind {
    /// The regions that it names, each with what it does there, in order.
    ///
    /// ```
    /// use counterflow_codegen::kernel::{Access, visit};
    /// use counterflow_codegen::{lower::lower, variant::Variant};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
    ///
    /// let kernel = lower(&example::ag_gemm(), &Variant::new(2))?;
    /// let mut written = Vec::new();
    /// for role in &kernel.roles {
    ///     visit(&role.body, &mut |op| {
    ///         let to = op.kind.regions().filter(|(_, access)| *access != Access::Read);
    ///         written.extend(to.map(|(to, _)| &kernel.buffers[to.buffer.index()].name));
    ///     });
    /// }
    /// assert_eq!(written, ["x", "y"]);
    /// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
    /// ```
    pub fn regions(&self) -> impl Iterator<Item = (&Region, Access)> {
        let regions = match self {
            OpKind::Copy { dst, src } => [Some((src, Access::Read)), Some((dst, Access::Write))],
            OpKind::Dot { a, b, .. } => [a, b].map(|it| Some((it, Access::Read))),
            OpKind::Reduce { from, .. } | OpKind::Load { from, .. } => {
                [Some((from, Access::Read)), None]
            }
            OpKind::Store { dst, mode, .. } => [Some((dst, mode.access())), None],
            OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::ForRanks { .. }
            | OpKind::If { .. } => [None, None],
        };
        regions.into_iter().flatten()
    }
}

impl StoreMode {
    /// What a store does to memory.
    pub const fn access(self) -> Access {
        match self {
            StoreMode::Write => Access::Write,
            StoreMode::Add => Access::Add,
        }
    }
}
