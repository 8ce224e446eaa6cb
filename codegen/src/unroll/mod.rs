//! The steps of every agent of a kernel, for one world and shape. Verifier, emulator and timeline all use them.
//!
//! An agent is one role of one rank. Its steps are in program order, divided into items. One CTA runs an item's steps
//! in order. Items are claimed in order and are otherwise concurrent, unless a join (or a sequential role) is between
//! them: [`Item::phase`] counts those.

mod picked;
mod size;
mod step;
mod walk;

pub(crate) use size::fits;
pub use size::{MOST_STEPS, most_steps};
pub use step::{Agent, Item, Step, StepKind};

use crate::diag::Diagnostic;
use crate::kernel::Kernel;
use crate::shape::Geometry;

/// The steps of every agent: rank by rank, role by role.
///
/// # Errors
/// The first rank, slot or cell that is out of bounds, with the values that made it so.
pub fn unroll(kernel: &Kernel, geometry: &Geometry) -> Result<Vec<Agent>, Diagnostic> {
    let mut agents = Vec::with_capacity(geometry.world as usize * kernel.roles.len());
    for rank in 0..geometry.world {
        for role in 0..kernel.roles.len() {
            agents.push(agent(kernel, geometry, rank, role)?);
        }
    }
    Ok(agents)
}

/// The steps of one agent.
///
/// # Errors
/// As [`unroll`].
pub fn agent(
    kernel: &Kernel,
    geometry: &Geometry,
    rank: u32,
    role: usize,
) -> Result<Agent, Diagnostic> {
    walk::walk(kernel, geometry, rank, role)
}
