//! The names that a schedule uses: `use counterflow::prelude::*;`.
//!
//! Only [`schedule`](macro@schedule) knows the words that are not Rust items (`counters`, `symmetric`, `dot`, `zero`).
//! Its documentation lists the whole language.

use crate::__private::Tensor;
pub use crate::{epilogue, schedule};
pub use counterflow_codegen::builder::{everyone, me, others, ranks, ring, tune, world};
pub use half::{bf16, f16};

/// Input in row chunks, one per rank. Every rank holds all of it at the end.
pub type Gathered<T> = Tensor<T>;
/// Input, whole on each rank and different on each.
pub type Local<T> = Tensor<T>;
/// Input vector along the columns, whole on each rank: a bias.
pub type Vector<T> = Tensor<T>;
/// Output, whole on each rank and different on each.
pub type Out<T> = Tensor<T>;
/// Output that a launch adds to (`grad[t] += …`), whole on each rank and different on each. Its old contents count.
pub type Accumulated<T> = Tensor<T>;
/// Output: the sum over ranks. Each rank keeps its row chunk.
pub type Scattered<T> = Tensor<T>;
/// Output: the sum over ranks, whole on every rank.
pub type Reduced<T> = Tensor<T>;

#[cfg(test)]
mod tests {
    use super::*;

    #[schedule]
    fn copy(x: Gathered<f16>, y: Out<f32>) {
        let pieces = x.pieces(rows = 64);
        #[copy_engine]
        for p in pieces.of(me()) {
            y[p] = x[p];
        }
    }

    #[test]
    fn this_package_may_hold_schedules() {
        assert_eq!(copy().tensors.len(), 2);
    }
}
