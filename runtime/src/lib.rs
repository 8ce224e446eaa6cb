//! The run time of checked plans: GPUs with their compiler and launches, and emulated ranks.
//!
//! Only this crate and the workbench, the command-line tool on top of it, use files, environment variables and clocks;
//! only the workbench uses a terminal. Only the modules that call NVIDIA's libraries ([`cuda`] and `jit::nvrtc`) use
//! `unsafe`, each time with a reason.
//!
//! `tracing` says each op that is built at the level of info, with its variant and why it was chosen; what else is made and
//! recorded, and each launch, at that of debug; the end of a communicator as an error; once, at the level of warn, why a heap
//! that was to have multicast has none. Set up a subscriber to see it: without one
//! it costs a launch nothing. [`metrics`] counts the same for exporters. Nsight Systems, and whatever else listens to NVTX, gets a
//! range for each launch, replay, build and `reserve`, with the schedule, the rank and M.
#![deny(unsafe_code, clippy::undocumented_unsafe_blocks)]

mod attempt;
mod begins;
pub mod caller;
pub mod communicator;
mod compares;
pub mod cpu;
pub mod cuda;
pub mod device;
pub mod dlpack;
mod done;
mod draft;
pub mod driver;
mod emulated;
pub mod error;
#[doc(hidden)]
pub mod exchange;
pub mod family;
#[cfg(test)]
mod fuzz;
mod gpu_order;
pub mod gpus;
pub mod graph;
mod group;
mod held;
pub mod jit;
mod latest;
pub mod launch;
mod low_latency;
pub mod machines;
pub mod metrics;
pub mod multicast;
mod noise;
pub mod op;
mod own;
pub mod pending;
pub mod probes;
mod proof;
pub mod recording;
pub mod rendezvous;
mod retire;
#[doc(hidden)]
pub mod rotation;
#[cfg(test)]
#[path = "../tests/emulated/schedules.rs"]
mod schedules;
mod shared;
#[doc(hidden)]
pub mod slots;
mod streams;
mod sync;
pub mod tensor;
mod this_thread;
mod trust;
pub mod tuned;
pub mod tuning;
mod undo;
mod unfinished;
pub mod user_buffer;
mod warps;
#[cfg(test)]
#[path = "../../codegen/tests/fixtures/wide.rs"]
mod wide;

pub use communicator::Communicator;
pub use device::Device;
pub use error::Error;
pub use graph::Graph;
pub use held::{HeapUse, Held, Owner};
pub use multicast::{Multicast, MulticastState};
pub use op::{Op, OpBuilder, QuantTensor};
pub use pending::Pending;
pub use recording::Recording;
pub use tensor::Tensor;
pub use user_buffer::UserBuffer;
