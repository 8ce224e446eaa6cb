//! Where checked plans run: GPUs with their compiler and launches, and emulated ranks.
//!
//! Files, variables and clocks are met here and in the workbench, the command-line tool on top of this crate; terminals only there.
//! `unsafe` is allowed in the modules that speak to NVIDIA's libraries ([`cuda`] and `jit::nvrtc`), each use with its reason.
#![deny(unsafe_code, clippy::undocumented_unsafe_blocks)]

pub mod communicator;
pub mod cpu;
pub mod cuda;
pub mod device;
pub mod error;
pub mod gpus;
mod group;
pub mod jit;
pub mod launch;
mod streams;
pub mod tuned;
pub mod user_buffer;

pub use communicator::Communicator;
pub use device::Device;
pub use error::Error;
pub use user_buffer::UserBuffer;
