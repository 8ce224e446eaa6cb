//! What building gives: a loaded kernel with its scratch, and the plans of its launches.

use super::argument::{self, Needs};
use crate::communicator::Communicator;
use crate::error::Error;
use crate::launch::Loaded;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{Checked, Series};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

/// How many plans an op keeps. A serving engine has a handful of batch sizes; a plan is made again in microseconds.
const PLANS: usize = 256;

/// A schedule that was chosen, proven, compiled and loaded on one rank, ready to launch. A clone is the same op. `S` says
/// how its launches take their tensors: by name, or by the methods of a schedule's [`Launcher`](super::Launcher).
#[derive(Debug)]
pub struct Op<S = ByName>(pub(super) Arc<Inner>, pub(super) PhantomData<fn() -> S>);

impl<S> Clone for Op<S> {
    fn clone(&self) -> Self {
        Op(self.0.clone(), PhantomData)
    }
}

#[derive(Debug)]
pub(super) struct Inner {
    pub rank: Arc<Communicator>,
    pub variant: Variant,
    /// The largest launch, as it was asked for.
    pub shape: Shape,
    pub series: Series,
    pub loaded: Arc<Loaded>,
    /// By the rows of the launch.
    pub plans: Mutex<HashMap<u32, Arc<Checked<Plan>>>>,
    /// Whether the caller vouches for what else is in the rank's stream.
    pub early: bool,
}

/// Tensors by name: [`Launch::tensor`](super::Launch::tensor).
#[derive(Clone, Copy, Debug)]
pub enum ByName {}

impl<S> Op<S> {
    /// The choices that it was built with.
    pub fn variant(&self) -> &Variant {
        &self.0.variant
    }

    /// The largest launch that it is for.
    pub fn most(&self) -> &Shape {
        self.0.series.most()
    }

    /// What its largest launch needs of the tensor of that name.
    ///
    /// # Errors
    /// [`Error::Usage`] if the schedule has no such tensor.
    pub fn needs(&self, tensor: &str) -> Result<Needs, Error> {
        let id = argument::find(self.0.kernel(), tensor)?;
        let plan = self.0.plan(self.most().m)?;
        Ok(Needs::of(self.0.kernel(), &plan, id))
    }
}

impl Inner {
    pub fn kernel(&self) -> &Checked<Kernel> {
        self.series.kernel()
    }

    /// The plan of a launch of `m` rows.
    pub fn plan(&self, m: u32) -> Result<Arc<Checked<Plan>>, Error> {
        let lock = || self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = lock().get(&m) {
            return Ok(plan.clone());
        }
        let shape = Shape {
            m,
            most_m: None,
            ..self.shape.clone()
        };
        let plan = Arc::new(self.series.plan(&shape)?);
        let mut plans = lock();
        if plans.len() >= PLANS {
            plans.clear();
        }
        plans.insert(m, plan.clone());
        Ok(plan)
    }
}
