//! Emulated GPUs: streams, events, memory and launches in this process, run by the open interpreter. They run whenever
//! a host asks how far they are, and as far as they get. Nothing runs behind the hosts' backs, so there is no thread
//! here, and a seed determines every choice but those of the hosts' own threads.

mod machine;
mod memory;
mod pinned;
mod recorded;
mod slots;
mod steps;
mod stream;

pub(crate) use machine::{Gpu, L2, Machine, Reached, SMS, is_dead};
pub(crate) use pinned::{Pinned, Plain};
pub(crate) use recorded::{Capture, Graph};
pub(crate) use slots::{PAGE, Slots};
pub(crate) use stream::{Event, Memory, Stream};
