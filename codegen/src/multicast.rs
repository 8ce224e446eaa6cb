//! Accesses of a kernel that reach every rank's memory at once.

use crate::kernel::{Kernel, OpKind, visit};
use crate::program::Home;

impl Kernel {
    /// True if its GPUs must have a multicast address for the heap: some CTA of it stores to every rank's memory, adds it up, or
    /// signals there. Copies by a copy engine go to one rank after another, and need none.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
    /// let (series, _) = example::proven();
    /// assert!(!series.kernel().needs_multicast()); // it pushes to one peer after another
    /// ```
    pub fn needs_multicast(&self) -> bool {
        let mut found = false;
        let roles = self.roles.iter().filter(|role| !role.kind.sequential());
        for role in roles {
            visit(&role.body, &mut |op| {
                found |= match &op.kind {
                    OpKind::Copy { dst, .. } | OpKind::Store { dst, .. } => {
                        dst.home == Home::Everywhere
                    }
                    OpKind::Reduce { from, .. } => from.home == Home::Everywhere,
                    OpKind::Signal { cells, .. } => cells.home == Home::Everywhere,
                    OpKind::Wait { .. }
                    | OpKind::Dot { .. }
                    | OpKind::Load { .. }
                    | OpKind::ForRanks { .. }
                    | OpKind::If { .. } => false,
                };
            });
        }
        found
    }
}
