//! Kernel → `Checked<Kernel>`, Plan → `Checked<Plan>`.

use crate::diag::Diagnostics;
use crate::kernel::Kernel;
use crate::model::Machine;
use crate::plan::Plan;
use crate::shape::Shape;
use std::ops::Deref;

/// A value that this module accepted. Nothing else makes one.
#[derive(Clone, Debug)]
pub struct Checked<T>(T);

impl<T> Deref for Checked<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Checked<T> {
    /// The value itself.
    pub fn into_inner(self) -> T {
        self.0
    }
}

/// Checks what does not depend on the shape.
///
/// # Errors
/// Everything that is wrong.
pub fn kernel(kernel: Kernel) -> Result<Checked<Kernel>, Diagnostics> {
    Ok(Checked(kernel))
}

/// Plans `shape` and checks what depends on it.
///
/// # Errors
/// Everything that is wrong.
pub fn plan(
    kernel: &Checked<Kernel>,
    shape: &Shape,
    machine: &Machine,
) -> Result<Checked<Plan>, Diagnostics> {
    Ok(Checked(Plan::new(kernel, shape, machine)?))
}
