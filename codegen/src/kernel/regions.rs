//! The regions of ops.

use super::{Access, OpKind, Region};

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
