//! Data that ranks and roles hand to each other.

use super::{Access, Kernel, Region, visit};

impl Kernel {
    /// True if ranks or roles pass data through a region during a launch: somebody writes it, or it is another rank's.
    ///
    /// ```
    /// # use counterflow_codegen::{kernel::{OpKind, visit}, lower::lower, variant::Variant};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
    /// let kernel = lower(&example::ag_gemm(), &Variant::new(2))?;
    /// visit(&kernel.roles[0].body, &mut |op| {
    ///     if let OpKind::Copy { dst, .. } = &op.kind {
    ///         assert!(kernel.is_handed_over(dst), "peers read it");
    ///     }
    /// });
    /// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
    /// ```
    pub fn is_handed_over(&self, region: &Region) -> bool {
        let mut found = region.home.is_remote();
        for role in &self.roles {
            visit(&role.body, &mut |op| {
                let mut regions = op.kind.regions();
                found |= regions
                    .any(|(to, access)| access != Access::Read && to.buffer == region.buffer);
            });
        }
        found
    }
}
