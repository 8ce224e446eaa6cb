//! What of a rank's memory peers address.

use super::{Access, Kernel, visit};
use crate::program::{Home, TensorId};

impl Kernel {
    /// True if a statement names a tensor in another rank's memory.
    ///
    /// ```
    /// use counterflow_codegen::program::TensorId;
    /// use counterflow_codegen::{lower::lower, variant::Variant};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
    ///
    /// let kernel = lower(&example::ag_gemm(), &Variant::new(2))?;
    /// let reached = |at: u16| kernel.is_reached_by_peers(TensorId(at));
    /// assert_eq!([0, 1, 2].map(reached), [true, false, false], "x is sent");
    /// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
    /// ```
    pub fn is_reached_by_peers(&self, tensor: TensorId) -> bool {
        let mut found = false;
        for role in &self.roles {
            visit(&role.body, &mut |op| {
                let mut regions = op.kind.regions();
                found |= regions.any(|(of, _)| of.buffer == tensor && of.home != Home::Me);
            });
        }
        found
    }

    /// True if a launch needs a tensor in the symmetric heap: all that peers may address, but for an output of which each rank keeps its
    /// own shard and which no statement names in another rank's memory. Numbers that belong to such an output keep it there.
    ///
    /// ```
    /// use counterflow_codegen::program::TensorId;
    /// use counterflow_codegen::{lower::lower, variant::Variant};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
    ///
    /// let kernel = lower(&example::ag_gemm(), &Variant::new(2))?;
    /// assert!(kernel.is_in_heap(TensorId(0)) && !kernel.is_in_heap(TensorId(1)), "x is gathered");
    /// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
    /// ```
    pub fn is_in_heap(&self, tensor: TensorId) -> bool {
        let buffer = &self.buffers[tensor.index()];
        let usage = buffer.usage;
        let own = usage.is_output() && usage.is_own_shard() && !usage.has_slots();
        let plain = || {
            let mut planes = self.buffers.iter().filter_map(|other| other.usage.plane);
            !buffer.mn_major && planes.all(|plane| plane.of != tensor)
        };
        usage.placement.symmetric && !(own && plain() && !self.is_reached_by_peers(tensor))
    }

    /// True if no statement reads a tensor, and none adds to it.
    ///
    /// ```
    /// use counterflow_codegen::program::TensorId;
    /// use counterflow_codegen::{lower::lower, variant::Variant};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
    ///
    /// let kernel = lower(&example::ag_gemm(), &Variant::new(2))?;
    /// assert!(kernel.is_only_stored(TensorId(2)) && !kernel.is_only_stored(TensorId(0)), "y is a result");
    /// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
    /// ```
    pub fn is_only_stored(&self, tensor: TensorId) -> bool {
        let mut read = false;
        for role in &self.roles {
            visit(&role.body, &mut |op| {
                let mut regions = op.kind.regions();
                read |= regions.any(|(of, access)| of.buffer == tensor && access != Access::Write);
            });
        }
        !read
    }
}
