//! Choice of a launch's plan from a kernel's series.

use counterflow_codegen::plan::Plan;
use counterflow_codegen::shape::Shape;

/// Sizes that distinguish a plan from all others of its series. The ranks' ledgers compare a hash; but what is kept
/// from launch to launch is a kernel's parameters, and a collision would give it another's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Which<'a> {
    pub hash: u64,
    pub shape: &'a Shape,
    /// CTAs that compute, and that move data: they depend on the machine, too.
    pub ctas: [u32; 2],
}

impl<'a> Which<'a> {
    /// The sizes by which a plan is found.
    pub fn of(plan: &'a Plan) -> Which<'a> {
        Which {
            hash: plan.hash,
            shape: &plan.shape,
            ctas: [plan.grid.gemm, plan.grid.comm],
        }
    }

    /// Copies what is borrowed, to keep it.
    pub fn kept(self) -> Known {
        Known {
            hash: self.hash,
            shape: self.shape.clone(),
            ctas: self.ctas,
        }
    }
}

/// A plan that was launched before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Known {
    hash: u64,
    shape: Shape,
    ctas: [u32; 2],
}

impl Known {
    /// True if it is that one. Most others differ in the hash already.
    pub fn is(&self, which: Which<'_>) -> bool {
        self.hash == which.hash && self.ctas == which.ctas && self.shape == *which.shape
    }
}
