//! Plans for one variant, remembering which classes of shapes were found good.

use super::{Checked, columns, plan_findings};
use crate::diag::Diagnostics;
use crate::kernel::{DimId, Kernel};
use crate::model::Machine;
use crate::plan::{Arrivals, Plan, identity};
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
    /// Columns of which one decides for all.
    repeated: Option<(DimId, u32)>,
    /// What tells this kernel from others in a plan's hash.
    identity: u64,
}

impl Planner {
    /// A planner that knows no shape yet.
    pub fn new(kernel: Checked<Kernel>, machine: Machine) -> Self {
        let repeated = columns::repeated(&kernel);
        let identity = identity(&kernel);
        Planner {
            kernel,
            machine,
            good: HashMap::new(),
            repeated,
            identity,
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
        let known = match self.good.get(&class) {
            Some(arrivals) => arrivals.clone(),
            None => {
                let arrivals = self.check(&geometry, shape)?;
                self.good.insert(class, arrivals.clone());
                arrivals
            }
        };
        let plan = Plan::of(
            &self.kernel.0,
            geometry,
            shape,
            &self.machine,
            self.identity,
            Some(known),
        )?;
        Ok(Checked(Arc::new(plan)))
    }

    /// What arrives in a launch of that geometry, if the rules hold for it.
    fn check(&self, geometry: &Geometry, shape: &Shape) -> Result<Arc<Arrivals>, Diagnostics> {
        let judge = |geometry: Geometry| {
            let plan = Plan::of(
                &self.kernel.0,
                geometry,
                shape,
                &self.machine,
                self.identity,
                None,
            )?;
            Diagnostics::check(
                plan_findings(&self.kernel, &plan, None),
                plan.arrivals.clone(),
            )
        };
        if let Some((columns, block)) = self.repeated
            && let Ok(arrivals) = judge(geometry.resized(&self.kernel, columns, block))
        {
            let columned = |counter| columns::is_columned_counter(&self.kernel, counter);
            return Ok(Arc::new(arrivals.widened(geometry, columned)));
        }
        // Also where one column was refused: the story is to speak of the columns there are.
        judge(geometry.clone())
    }
}
