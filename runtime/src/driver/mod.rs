//! Requests of the run time to a GPU, real or emulated: streams, events, memory, copies.
//!
//! Everything above this module names only what is here. [`crate::cuda`] does the work for real GPUs, and
//! `crate::emulated` for emulated ones.
//!
//! Each of these types is an enum of the two, and no trait. There are two kinds of GPUs, known here, and nobody outside
//! makes a third. An enum keeps type parameters out of every type above, the caller's among them, costs a branch, and
//! lets rustc list what a third kind would touch. A call that mixes the two, such as an event of one in a stream of the
//! other, is an arm with an error, where a trait's associated types would have to reach the caller's code to forbid it.
//!
//! The time of emulated GPUs is the host's. A time that goes on by itself when nothing can run would end waits whose peer
//! is a thread of the caller's that has yet to launch.

mod current;
mod enter;
mod event;
mod gpu;
mod graph;
mod lane;
mod memory;
mod multicast;
mod pinned;
mod points;
mod refusal;
mod slots;
mod stream;

pub(crate) use current::Current;
pub use event::Event;
pub use gpu::Gpu;
pub(crate) use gpu::{About, Reached};
pub(crate) use graph::Graph;
pub(crate) use lane::{Lane, Turn};
pub use memory::Local;
pub use stream::Stream;

pub(crate) use crate::cuda::Contents;
pub use crate::cuda::{Address, Element, Managed, ManagedTensor};

pub(crate) use crate::cuda::{Foreign, Home, Lent, Lines2d, MemoryOp, Opened, Watch, range};
pub(crate) use memory::{copy, enqueue_copy, enqueue_fill, fill, read, read_words, write};
pub(crate) use multicast::multicast_calls;
pub(crate) use pinned::{Pinned, Record};
pub(crate) use slots::Slots;
pub(crate) use stream::{is_done, is_past};
