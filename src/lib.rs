//! counterflow.

// `#[schedule]` writes paths that start with `::counterflow`, and this package holds schedules too.
extern crate self as counterflow;

pub use counterflow_codegen::program::Program;
pub use counterflow_macros::{epilogue, schedule};

pub mod prelude;

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
