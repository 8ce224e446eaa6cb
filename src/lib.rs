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
//! Every rank is a thread of one process today. [`launch::Tensors`] trusts the addresses and lengths that it gets, and
//! buffers must outlive their launches.
//!
//! ```rust,no_run
//! use counterflow::codegen::{lower::lower, program::TensorId, sm90, verify};
//! use counterflow::driver::Local;
//! use counterflow::launch::{Loaded, Tensors};
//! use counterflow::{Communicator, Error, Machine, Shape, Variant, jit::Compiler, prelude::bf16, schedules};
//!
//! fn main() -> Result<(), Error> {
//!     let (m, n, k) = (8192, 8192, 8192);
//!     let kernel = verify::kernel(lower(&schedules::ag_gemm(), &Variant::new(4))?)?;
//!     let warps = verify::pipeline(sm90::build(&kernel)?)?;
//!     let series = verify::series(&kernel, &Shape::new(m, n, k), &Machine::h200())?; // the largest shape
//!     let plan = series.plan(&Shape::new(m, n, k))?; // one for each M that is launched
//!     let compiler = Compiler::find()?;
//!     let (m, n, k) = (m as usize, n as usize, k as usize);
//!     Communicator::each(&Communicator::local(4)?, |rank| {
//!         rank.reserve((2 * m * k + (4 << 20)) as u64)?;
//!         let x = rank.allocate::<bf16>("x", [m, k])?; // symmetric: fill this rank's rows, peers push theirs
//!         let w = Local::<bf16>::zeros(rank.stream(), n * k)?;
//!         let y = Local::<bf16>::zeros(rank.stream(), m * n)?;
//!         let loaded = Loaded::load(rank, &compiler, &warps, &series)?;
//!         let mut tensors = Tensors::new();
//!         tensors.shared(TensorId(0), &x);
//!         tensors.local(TensorId(1), w.address(), (2 * n * k) as u64);
//!         tensors.local(TensorId(2), y.address(), (2 * m * n) as u64);
//!         loaded.launch(rank, &plan, &tensors)?; // on the rank's stream; returns at once
//!         rank.synchronize()
//!     })?;
//!     Ok(())
//! }
//! ```
#![forbid(unsafe_code)]

// `#[schedule]` writes paths that start with `::counterflow`, and this package holds schedules too.
extern crate self as counterflow;

pub use counterflow_codegen as codegen;
pub use counterflow_codegen::given;
pub use counterflow_macros::{epilogue, schedule};
pub use counterflow_runtime::{
    Communicator, Device, Error, UserBuffer, cpu, cuda, driver, gpus, jit, launch, tuned,
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
