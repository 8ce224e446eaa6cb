//! The judges: what must hold of a kernel, of its launches, and of its warps. [`crate::verify`] says what, and why that is enough.
//!
//! Nothing here decides how tiles are computed, or builds warps: who does hands over what is to be judged. Only this folder makes
//! [`Checked`] values.

mod range;
mod series;
mod tile;
mod warp;

use crate::checked::Checked;
use crate::diag::Diagnostics;
use crate::kernel::Kernel;
use crate::sm90::cta::Decision;
use crate::warp::Pipeline;

pub use range::{Class, Decided, range};
pub use series::Series;
pub use tile::{kernel_findings, plan_findings, pulled};
pub(crate) use warp::Refused;
#[cfg(all(feature = "undo", debug_assertions))]
pub(crate) use warp::{in_world, outdated};

/// Judges a kernel by what does not depend on the shape, and keeps with it what `decide` says of it then.
pub(crate) fn kernel(
    kernel: Kernel,
    decide: impl FnOnce(&Kernel) -> Decision,
) -> Result<Checked<Kernel>, Diagnostics> {
    Diagnostics::check(kernel_findings(&kernel), ())?;
    let decided = decide(&kernel);
    Ok(Checked::new(kernel, decided))
}

/// Judges the warps of a CTA by running a few of them.
pub(crate) fn pipeline(pipeline: Pipeline) -> Result<Checked<Pipeline>, Refused> {
    warp::run(&pipeline).map(|()| Checked::new(pipeline, ()))
}
