//! What the run time asks of a GPU, whatever stands behind it: streams, events, memory, copies.
//!
//! Everything above this module names only what is here. [`crate::cuda`] does the work for real GPUs, and
//! `crate::emulated` for emulated ones.

mod event;
mod gpu;
mod graph;
mod memory;
mod pinned;
mod refusal;
mod slots;
mod stream;

pub use event::Event;
pub use gpu::Gpu;
pub(crate) use graph::Graph;
pub use memory::Local;
pub use stream::Stream;

pub use crate::cuda::{Address, Element};

pub(crate) use crate::cuda::{Foreign, Lines2d, MemoryOp, Opened, Watch};
pub(crate) use memory::{copy, fill, read, read_words, write};
pub(crate) use pinned::{Pinned, Record};
pub(crate) use slots::Slots;
pub(crate) use stream::{copy_lines, is_done, memory_ops};
