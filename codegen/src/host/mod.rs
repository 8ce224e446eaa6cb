//! The host's part of a launch: the numbers and maps it passes, the copies it enqueues, and the hardware queues that
//! carry them. The runtime adds the addresses.

mod enqueue;
mod queues;
mod values;

pub use enqueue::{HostOp, HostOpKind, Lines};
pub use queues::{Queues, Submission};
pub use values::MapShape;
