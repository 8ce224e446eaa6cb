//! Where checked plans run: devices, emulated ranks, and the workbench that any binary with schedules gets.
//!
//! Files, variables, clocks and terminals are met in this crate and nowhere else.
#![forbid(unsafe_code)]

pub mod cpu;
pub mod device;
pub mod error;
pub mod workbench;

pub use device::Device;
pub use error::Error;
