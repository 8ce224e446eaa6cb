//! All launches of one kernel up to a largest one: what holds between launches is checked over all of them.

use super::tile;
use crate::checked::Checked;
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::kernel::{DimId, Kernel};
use crate::machine::Machine;
use crate::plan::{Arrivals, Plan, identity};
use crate::shape::{Geometry, Shape};
use crate::undo::{Fix, undone};
use crate::unroll::fits;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The most arrivals that a series keeps, of all classes that it knows: 16 MiB.
const MOST_ARRIVALS: usize = 1 << 22;

/// A checked kernel on a machine, with the largest size of each dimension. Its launches may follow each other in any
/// order, and none fails. Only [`crate::verify::series`] makes one. Every plan belongs to one, and what runs plans takes
/// plans of one series only.
///
/// A shape of a known class (the same items in every shard, the same columns and K) is cheap: only its numbers are computed.
///
/// ```
/// use counterflow_codegen::shape::Shape;
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
///
/// let (series, plan) = example::proven();
/// assert_eq!(series.most().m, 64);
/// let small = series.plan(&Shape::new(40, 32, 16))?; // any launch of up to as many rows
/// series.owns([&plan, &small])?;
/// series.is_of(series.kernel())?;
/// assert_eq!(series.largest().world, 2);
/// println!("at most {} CTAs", series.sms());
/// assert!(series.plan(&Shape::new(65, 32, 16)).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Series(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kernel: Checked<Kernel>,
    machine: Machine,
    most: Shape,
    largest: Geometry,
    good: Mutex<HashMap<Vec<u32>, Arc<Arrivals>>>,
    /// Columns of tiles, if one column is checked for all.
    repeated: Option<(DimId, u32)>,
    identity: u64,
}

impl Series {
    pub(crate) fn new(
        kernel: &Checked<Kernel>,
        most: &Shape,
        machine: &Machine,
    ) -> Result<Series, Diagnostics> {
        let most = most.most(kernel);
        let largest = Geometry::largest(kernel, &most)?;
        fits(kernel, &largest, &most)?;
        let series = Series(Arc::new(Inner {
            identity: identity(kernel, &most),
            repeated: tile::repeated(kernel),
            kernel: kernel.clone(),
            machine: machine.clone(),
            good: Mutex::default(),
            most,
            largest,
        }));
        if !undone(Fix::Dimensions) {
            let Inner { most, largest, .. } = &*series.0;
            series.arrivals(largest, most)?;
            let together = largest.together();
            if together.class() != largest.class() || tile::selects_by_size(kernel) {
                series.check_launches(together)?;
            }
        }
        Ok(series)
    }

    /// The kernel.
    pub fn kernel(&self) -> &Checked<Kernel> {
        &self.0.kernel
    }

    /// The SMs of its launches: all CTAs of one run at once.
    pub fn sms(&self) -> u32 {
        self.0.machine.sms
    }

    /// The largest launch: every dimension at its largest size.
    pub fn most(&self) -> &Shape {
        &self.0.most
    }

    /// The geometry of the largest launch. All launches place counter cells as it does.
    pub fn largest(&self) -> &Geometry {
        &self.0.largest
    }

    /// The plan of a launch. It is checked now, unless its class is known.
    ///
    /// # Errors
    /// What [`Plan::new`] rejects, a dimension above its largest size, or a finding of the first guarantee that is broken.
    pub fn plan(&self, shape: &Shape) -> Result<Checked<Plan>, Diagnostics> {
        let geometry = Geometry::within(&self.0.kernel, shape, &self.0.most)?;
        let known = self.arrivals(&geometry, shape)?;
        let plan = self.numbers(geometry, shape, Some(known))?;
        Ok(Checked::new(plan, ()))
    }

    /// Rejects plans of another series.
    ///
    /// # Errors
    /// The first such plan, and what to do.
    pub fn owns<'a>(
        &self,
        plans: impl IntoIterator<Item = &'a Checked<Plan>>,
    ) -> Result<(), Diagnostic> {
        let strange = plans
            .into_iter()
            .find(|plan| plan.series != self.0.identity);
        match strange {
            Some(plan) if !undone(Fix::Series) => Err(Diagnostic::new(
                Rule::Shape,
                None,
                format!(
                    "the plan of {} does not belong to this series: {} of up to {}",
                    plan.shape, self.0.kernel.name, self.0.most
                ),
            )
            .note(
                None,
                "launches share counters, and each series places their cells",
            )
            .hint(
                "make one series with the largest size of every dimension, and make all plans with its `plan`",
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Rejects a kernel of another series.
    ///
    /// # Errors
    /// What to do instead.
    pub fn is_of(&self, kernel: &Kernel) -> Result<(), Diagnostic> {
        if identity(kernel, &self.0.most) == self.0.identity {
            return Ok(());
        }
        let message = format!(
            "{} {} is not the kernel of this series",
            kernel.name, kernel.variant
        );
        Err(Diagnostic::new(Rule::Shape, None, message)
            .hint("make the series from the kernel that the pipeline was built from"))
    }

    /// The arrivals of a launch of that geometry, if the rules hold for it.
    fn arrivals(&self, geometry: &Geometry, shape: &Shape) -> Result<Arc<Arrivals>, Diagnostics> {
        let class = geometry.class();
        if let Some(known) = self.good().get(&class) {
            return Ok(known.clone());
        }
        let arrivals = self.check(geometry, shape)?;
        let mut good = self.good();
        // Classes that were used long ago are checked again.
        let held: usize = good.values().map(|known| known.len()).sum();
        if held + arrivals.len() > MOST_ARRIVALS {
            good.clear();
        }
        good.insert(class, arrivals.clone());
        Ok(arrivals)
    }

    fn good(&self) -> std::sync::MutexGuard<'_, HashMap<Vec<u32>, Arc<Arrivals>>> {
        self.0.good.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, geometry: &Geometry, shape: &Shape) -> Result<Arc<Arrivals>, Diagnostics> {
        let kernel = &self.0.kernel;
        let judge = |geometry: Geometry| {
            let plan = self.numbers(geometry, shape, None)?;
            Diagnostics::check(
                tile::plan_findings(kernel, &plan, None),
                plan.arrivals.clone(),
            )
        };
        if let Some((columns, block)) = self.0.repeated
            && let Ok(arrivals) = judge(geometry.resized(kernel, columns, block))
        {
            let columned = |counter| tile::is_columned_counter(kernel, counter);
            return Ok(Arc::new(arrivals.widened(geometry, columned)));
        }
        // Also if the check of one column failed: the trace must name the real columns.
        judge(geometry.clone())
    }

    /// Checks what must hold between launches of any two shapes, where all their items are present.
    fn check_launches(&self, together: Geometry) -> Result<(), Diagnostics> {
        let kernel = &self.0.kernel;
        let judge = |geometry: Geometry| {
            let plan = self.numbers(geometry, &self.0.most, None)?;
            Diagnostics::check(tile::attribution_findings(kernel, &plan), ())
        };
        if let Some((columns, block)) = self.0.repeated
            && judge(together.resized(kernel, columns, block)).is_ok()
        {
            return Ok(());
        }
        judge(together)
    }

    fn numbers(
        &self,
        geometry: Geometry,
        shape: &Shape,
        known: Option<Arc<Arrivals>>,
    ) -> Result<Plan, Diagnostics> {
        let Inner {
            kernel,
            machine,
            identity,
            ..
        } = &*self.0;
        let kernel = (kernel.shared(), kernel.decided());
        Plan::of(kernel, geometry, shape, machine, *identity, known)
    }
}
