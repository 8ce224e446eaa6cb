//! One order of all launches on a GPU, over all communicators of this process.
//!
//! Kernels that wait for other ranks keep their SMs meanwhile. If kernels of two communicators do not fit on a GPU
//! together, one may keep the other's peer out, and each waits for ever. So what does not fit waits, by an event in its
//! stream, for the other communicator's last launch on that GPU. Then two communicators must come in the same order on
//! every GPU that they share: a launch that would wait for what waits for it is refused.
//!
//! Other libraries' kernels are not seen here. Leave SMs to those that wait for their own peers (NCCL's do), by
//! [`sm_margin`](crate::OpBuilder::sm_margin), or order
//! them before and after ours by events.

mod lanes;
mod member;
mod order;

pub(crate) use lanes::lane;
pub(crate) use member::{Enqueueing, Member};
