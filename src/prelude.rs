//! What a schedule names: `use counterflow::prelude::*;`.
//!
//! The words of the language that are no items of Rust (`counters`, `symmetric`, `dot`, `zero`, `splits`) are known to
//! [`schedule`](macro@schedule) alone, which lists them all.

pub use crate::{epilogue, schedule};
pub use counterflow_codegen::builder::{everyone, me, others, ranks, ring, tune, world};
pub use half::{bf16, f16};

use counterflow_codegen::dtype::{Dtype, Element};
use std::marker::PhantomData;

macro_rules! markers {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        pub struct $name<T: Element>(PhantomData<T>);

        impl<T: Element> $name<T> {
            /// Its elements.
            pub const DTYPE: Dtype = T::DTYPE;
        }
    )*};
}
markers! {
    /// Input in row chunks, one a rank, that every rank holds all of at the end.
    Gathered
    /// Input, whole on each rank and different on each.
    Local
    /// Input vector along the columns, whole on each rank: a bias.
    Vector
    /// Output, whole on each rank and different on each.
    Out
    /// Output: the sum over ranks, of which each rank keeps its chunk of the rows.
    Scattered
    /// Output: the sum over ranks, whole on every rank.
    Reduced
}
