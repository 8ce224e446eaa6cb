//! Where checked plans run: devices, emulated ranks, and the workbench that any binary with schedules gets.
//!
//! Files, variables, clocks and terminals are met in this crate and nowhere else.
//! `unsafe` is allowed in the modules that speak to NVIDIA's libraries ([`cuda`] and `jit::nvrtc`), each use with its reason.
#![deny(unsafe_code, clippy::undocumented_unsafe_blocks)]

pub mod communicator;
pub mod cpu;
pub mod cuda;
pub mod device;
pub mod error;
pub mod gpus;
pub mod jit;
pub mod launch;
pub mod tuned;
pub mod user_buffer;
pub mod workbench;

pub use communicator::Communicator;
pub use device::Device;
pub use error::Error;
pub use user_buffer::UserBuffer;
