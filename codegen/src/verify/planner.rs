//! Plans for one variant, remembering which classes of shapes were found good.

use super::{Checked, plan_findings};
use crate::diag::Diagnostics;
use crate::kernel::Kernel;
use crate::model::Machine;
use crate::plan::{Arrivals, Plan};
use crate::shape::{Geometry, Shape};
use std::collections::HashMap;
use std::sync::Arc;

/// Makes checked plans of one variant. A shape of a known class (the same items in every chunk, the same K) costs
/// only its numbers.
#[derive(Clone, Debug)]
pub struct Planner {
    kernel: Checked<Kernel>,
    machine: Machine,
    good: HashMap<Vec<u32>, Arc<Arrivals>>,
}

impl Planner {
    /// A planner that knows no shape yet.
    pub fn new(kernel: Checked<Kernel>, machine: Machine) -> Self {
        Planner {
            kernel,
            machine,
            good: HashMap::new(),
        }
    }

    /// The kernel it plans for.
    pub fn kernel(&self) -> &Checked<Kernel> {
        &self.kernel
    }

    /// The plan of `shape`, checked now or known to be good.
    ///
    /// # Errors
    /// As [`super::plan`].
    pub fn plan(&mut self, shape: &Shape) -> Result<Checked<Plan>, Diagnostics> {
        let geometry = Geometry::new(&self.kernel, shape)?;
        let class = geometry.class();
        let known = self.good.get(&class).cloned();
        let is_known = known.is_some();
        let plan = Plan::of(&self.kernel.0, geometry, shape, &self.machine, known)?;
        if !is_known {
            Diagnostics::check(plan_findings(&self.kernel, &plan, None), ())?;
            self.good.insert(class, plan.arrivals.clone());
        }
        Ok(Checked(Arc::new(plan)))
    }
}
