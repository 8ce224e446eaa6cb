//! **counterflow** turns a Rust function that says *when each chunk moves and when each tile is computed* into one
//! fused communication + GEMM kernel, proves that schedule safe, and runs it.
//!
//! A schedule goes one way: [`codegen::program::Program`] is what you wrote, [`codegen::kernel::Kernel`] what it means,
//! and only [`codegen::verify`] can make the [`codegen::verify::Checked`] values that the emulator and the timeline take.
#![forbid(unsafe_code)]

// `#[schedule]` writes paths that start with `::counterflow`, and this package holds schedules too.
extern crate self as counterflow;

pub use counterflow_codegen as codegen;
pub use counterflow_macros::{epilogue, schedule};
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

pub mod prelude;
pub mod schedules;

/// What the macros' output names. Not for users: it changes with the macros.
#[doc(hidden)]
pub mod __private {
    pub use counterflow_codegen::builder::{
        Axis, Comparison, Cond, GemmOptions, RankExpr, ScheduleBuilder, Tune, Value, everyone, me,
        others, ranks, ring, tune, world,
    };
    pub use counterflow_codegen::dtype::Element;
    pub use counterflow_codegen::value::{Binary, Compare, ScalarFn, Unary};
}
