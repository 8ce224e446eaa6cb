//! **counterflow** turns a Rust function that says *when each chunk moves and when each tile is computed* into one
//! fused communication + GEMM kernel, proves that schedule safe, and runs it.
//!
//! Values flow one way: your [`Program`] and a [`Variant`] make a [`Kernel`], the largest [`Shape`] makes it a
//! [`Series`], and each launch's shape makes a [`Plan`] of that. Only [`codegen::verify`] makes the [`Checked`] values
//! that the emulator and the timeline take.
//!
//! Start with `use counterflow::prelude::*;` and [`schedule`](macro@schedule), look at [`schedules`], and pass your own
//! to `counterflow_workbench::main`, the command-line tool, which is a separate crate.
//!
//! # Embedding
//!
//! Ranks are threads of one process, or a process each ([`Communicator::from_env`]). Building and allocating are collective. [`op::Launch::launch`]
//! waits for no peer, within limits.
//!
//! ```rust,no_run
//! use counterflow::{Communicator, Dtype, Error, prelude::bf16, schedules::AgGemmOp};
//!
//! fn main() -> Result<(), Error> {
//!     let (m, n, k) = (8192, 2048, 8192); // rows over all ranks; columns and depth of one
//!     Communicator::each(&Communicator::local(4)?, |rank| {
//!         let builder = rank.op_of::<AgGemmOp>().dtype(Dtype::Bf16).up_to(m, n, k);
//!         rank.reserve(2 * (m * k) as u64 + builder.workspace()?.heap + (4 << 20))?;
//!         let op = builder.build()?; // chooses, proves, compiles, loads, agrees
//!         let x = rank.allocate::<bf16>("x", [m, k])?; // symmetric: fill this rank's rows, peers push theirs
//!         let (w, mut y) = (rank.zeros::<bf16>([n, k])?, rank.zeros::<bf16>([m, n])?);
//!         let stream = rank.gpu().stream()?; // or one of yours: cudarc's `Arc<CudaStream>`
//!         let done = op.on(&stream).x(&x).w(&w).y(&mut y).rows(4096).launch()?;
//!         done.wait() // the launch comes after what was in the stream, and before what comes later there
//!     })?;
//!     Ok(())
//! }
//! ```
//!
//! [`Communicator::op`] takes any [`Program`], and its launches take tensors by name. `launch`, `gpus` and what is below
//! them are for the bench and for tests: they keep nothing that they are given.
#![forbid(unsafe_code)]

// `#[schedule]` writes paths that start with `::counterflow`, and this package holds schedules too.
extern crate self as counterflow;

pub use counterflow_codegen as codegen;
pub use counterflow_codegen::given;
pub use counterflow_codegen::rule;
pub use counterflow_macros::{epilogue, schedule};
pub use counterflow_runtime::{
    Communicator, Device, Error, Graph, HeapUse, Held, Op, OpBuilder, Owner, Pending, Recording,
    Tensor, UserBuffer, cpu, cuda, dlpack, driver, error, family, jit, metrics, op, rendezvous,
    tuned,
};
#[doc(hidden)]
pub use counterflow_runtime::{gpus, launch};

#[cfg(feature = "quantise")]
pub use counterflow_quantise as quantise;

pub use counterflow_codegen::diag::{Diagnostic, Diagnostics, Rule};
pub use counterflow_codegen::dtype::Dtype;
pub use counterflow_codegen::kernel::Kernel;
pub use counterflow_codegen::model::Machine;
pub use counterflow_codegen::plan::Plan;
pub use counterflow_codegen::program::Program;
pub use counterflow_codegen::shape::Shape;
pub use counterflow_codegen::variant::{Arch, Layout, Scales, Variant};
pub use counterflow_codegen::verify::{Checked, Series};

pub mod families;
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
        /// Its element type in memory.
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
