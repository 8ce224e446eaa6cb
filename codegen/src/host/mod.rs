//! What the host does for a launch: the numbers and maps it passes, the copies it enqueues, and the hardware's queues that
//! these go through. Addresses are the host's own.

mod enqueue;
mod queues;
mod values;

pub use enqueue::{HostOp, HostOpKind, Lines};
pub use queues::{Queues, Submission};
pub use values::MapShape;
