//! **counterflow** turns a Rust function that says *when each chunk moves and when each tile is computed* into one
//! fused communication + GEMM kernel, proves that schedule safe, and runs it.
//!
//! A schedule goes one way: [`Program`] is what you wrote, with a [`Variant`] it is a [`Kernel`], with the largest
//! [`Shape`] a [`Series`], and with each launch's a [`Plan`] of it; and only [`codegen::verify`] can make the
//! [`Checked`] values that the emulator and the timeline take.
//!
//! Start with `use counterflow::prelude::*;` and [`schedule`](macro@schedule), look at [`schedules`], and give yours to
//! `counterflow_workbench::main`, the command-line tool, which is a crate of its own.
#![forbid(unsafe_code)]

// `#[schedule]` writes paths that start with `::counterflow`, and this package holds schedules too.
extern crate self as counterflow;

pub use counterflow_codegen as codegen;
pub use counterflow_codegen::given;
pub use counterflow_macros::{epilogue, schedule};
pub use counterflow_runtime::{
    Communicator, Device, Error, UserBuffer, cpu, cuda, gpus, jit, launch, tuned,
};

pub use counterflow_codegen::diag::{Diagnostic, Diagnostics, Rule};
pub use counterflow_codegen::dtype::Dtype;
pub use counterflow_codegen::kernel::Kernel;
pub use counterflow_codegen::model::Machine;
pub use counterflow_codegen::plan::Plan;
pub use counterflow_codegen::program::Program;
pub use counterflow_codegen::shape::Shape;
pub use counterflow_codegen::variant::{Arch, Layout, Variant};
pub use counterflow_codegen::verify::{Checked, Series};

pub mod prelude;
pub mod schedules;

/// What the macros' output names. Not for users: it changes with the macros.
#[doc(hidden)]
pub mod __private {
    pub use counterflow_codegen::builder::{
        Axis, Comparison, Cond, GemmOptions, RankExpr, ScheduleBuilder, Tune, Value, everyone, me,
        others, ranks, ring, tune, world,
    };
    pub use counterflow_codegen::dtype::{Dtype, Element};
    pub use counterflow_codegen::value::{Binary, Compare, ScalarFn, Unary};

    /// The type behind every parameter's kind: a name for the element type, never a value.
    pub struct Tensor<T>(std::marker::PhantomData<T>);

    impl<T> Tensor<T> {
        /// What its elements are in memory.
        pub fn dtype() -> Dtype
        where
            T: Element,
        {
            T::DTYPE
        }
    }
}

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
