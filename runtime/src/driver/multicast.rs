//! The driver's calls about multicast objects. Nobody makes them unless the program was built for it and nobody forbids it.

use super::gpu::Gpu;
use crate::error::Error;
#[cfg(not(feature = "multicast"))]
use crate::multicast::not_built;
use crate::multicast::{Calls, must_be_allowed};
use std::sync::Arc;

/// The driver of these GPUs, for multicast objects.
///
/// # Errors
/// Why there is none.
pub(crate) fn multicast_calls(gpus: &[Gpu]) -> Result<Arc<dyn Calls>, Error> {
    must_be_allowed()?;
    calls(gpus)
}

#[cfg(feature = "multicast")]
fn calls(gpus: &[Gpu]) -> Result<Arc<dyn Calls>, Error> {
    let gpus = gpus.iter().map(|gpu| gpu.cuda().cloned());
    let gpus = gpus.collect::<Result<Vec<_>, _>>()?;
    Ok(Arc::new(crate::cuda::MulticastCalls::of(gpus)?))
}

#[cfg(not(feature = "multicast"))]
fn calls(_: &[Gpu]) -> Result<Arc<dyn Calls>, Error> {
    Err(not_built())
}
