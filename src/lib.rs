//! **counterflow** turns a Rust function that says *when each chunk moves and when each tile is computed* into one
//! fused communication + GEMM kernel, proves that schedule safe, and runs it.
//!
//! A schedule goes one way: [`codegen::program::Program`] is what you wrote, [`codegen::kernel::Kernel`] what it means,
//! and only [`codegen::verify`] can make the [`codegen::verify::Checked`] values that the emulator and the timeline take.
#![forbid(unsafe_code)]

extern crate self as counterflow;

pub use counterflow_codegen as codegen;
pub use counterflow_runtime::{Device, Error, workbench};

pub use counterflow_codegen::diag::{Diagnostic, Diagnostics, Rule};
pub use counterflow_codegen::dtype::Dtype;
pub use counterflow_codegen::kernel::Kernel;
pub use counterflow_codegen::model::Machine;
pub use counterflow_codegen::plan::Plan;
pub use counterflow_codegen::program::Program;
pub use counterflow_codegen::shape::Shape;
pub use counterflow_codegen::variant::{Arch, Layout, Variant};
pub use counterflow_codegen::verify::Checked;
