//! Work that stands right before a launch's kernel.

use crate::error::Error;
use std::fmt;

/// Work right before a launch's kernel: enqueued once nothing can refuse the launch any more, so that nothing of what
/// is refused is in a stream or a graph.
pub(crate) trait Begins: fmt::Debug {
    /// Enqueues it.
    fn begin(&self) -> Result<(), Error>;
}
