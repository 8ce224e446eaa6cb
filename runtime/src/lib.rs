//! Where checked plans run: devices, emulated ranks, and the workbench that any binary with schedules gets.
//!
//! Files, variables, clocks and terminals are met in this crate and nowhere else.
//! `unsafe` is allowed in the modules that speak to NVIDIA's libraries ([`cuda`] and `jit::nvrtc`), each use with its reason.
#![deny(unsafe_code, clippy::undocumented_unsafe_blocks)]

pub mod cpu;
pub mod device;
pub mod error;
pub mod jit;
pub mod workbench;

pub use device::Device;
pub use error::Error;
