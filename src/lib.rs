//! **counterflow** turns a Rust function that says *when each chunk moves and when each tile is computed* into one
//! fused communication + GEMM kernel, proves that schedule safe, and runs it.
//!
//! Your [`Program`] and a [`Variant`] become a kernel, and each launch's [`Shape`] a checked plan of it. The stages between
//! are behind the feature `unstable`: `counterflow::codegen`. `docs/stable.md` lists what is stable.
//!
//! Start with `use counterflow::prelude::*;` and [`schedule`](macro@schedule), look at [`schedules`], and pass your own
//! to `counterflow_workbench::main`, the command-line tool, which is a separate crate.
//!
//! # Embedding
//!
//! Ranks are threads of one process, or a process each ([`Communicator::from_env`]). Building and allocating are collective. [`op::Launch::launch`]
//! waits for no peer, within limits. The README and [`guide::embedding`] have examples.
//!
//! [`Communicator::op`] takes any [`Program`], and its launches take tensors by name. What a launch is given, it keeps.
#![forbid(unsafe_code)]

// `#[schedule]` writes paths that start with `::counterflow`, and this package holds schedules too.
extern crate self as counterflow;

pub use counterflow_codegen::rule::ScaleRule;
pub use counterflow_codegen::{builder, given, rule};
pub use counterflow_macros::{epilogue, schedule};
pub use counterflow_runtime::{
    Communicator, Device, Error, Graph, HeapUse, Held, Multicast, MulticastState, Op, OpBuilder,
    Owner, Pending, QuantTensor, Recording, Tensor, UserBuffer, cuda, dlpack, driver, error,
    family, jit, machines, metrics, op, probes, rendezvous, tuned, tuning,
};

#[cfg(feature = "quantise")]
pub use counterflow_quantise as quantise;

pub use counterflow_codegen::diag::{Diagnostic, Diagnostics, Rule};
pub use counterflow_codegen::dtype::Dtype;
pub use counterflow_codegen::machine::Machine;
pub use counterflow_codegen::program::{Program, Setting};
pub use counterflow_codegen::shape::Shape;
pub use counterflow_codegen::variant::{Arch, Layout, Scales, Variant};

// The compiler's stages, and what runs them one by one.
#[cfg(feature = "unstable")]
pub use counterflow_codegen::kernel::Kernel;
#[cfg(feature = "unstable")]
pub use counterflow_codegen::plan::Plan;
#[cfg(feature = "unstable")]
pub use counterflow_codegen::verify::{Checked, Series};
#[cfg(feature = "unstable")]
pub use counterflow_runtime::cpu;
#[cfg(feature = "unstable")]
#[doc(hidden)]
pub use counterflow_runtime::{gpus, launch, multicast};

#[cfg(feature = "unstable")]
pub mod codegen;
pub mod families;
#[cfg(any(doc, doctest))]
pub mod guide;
pub mod prelude;
pub mod schedules;

/// Items that the macros' output names. Not for users: they change with the macros.
#[doc(hidden)]
pub mod __private {
    pub use counterflow_codegen::builder::{
        Axis, Comparison, Cond, GemmOptions, RankExpr, ScheduleBuilder, Tune, Value, everyone, me,
        others, ranks, ring, tune, world,
    };
    pub use counterflow_codegen::dtype::{Dtype, Element};
    pub use counterflow_codegen::value::{Binary, Compare, ScalarFn, Unary};

    /// The type of every parameter. It names the element type and never has a value.
    pub struct Tensor<T>(std::marker::PhantomData<T>);

    impl<T> Tensor<T> {
        /// Element type in memory.
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

/// The program of the page about multicast compiles. It is not run.
#[cfg(doctest)]
#[doc = include_str!("../docs/multicast.md")]
struct MulticastPage;
