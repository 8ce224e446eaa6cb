//! The names that a schedule uses: `use counterflow::prelude::*;`.
//!
//! Only [`schedule`](macro@schedule) knows the words that are not Rust items (`counters`, `symmetric`, `dot`, `zero`).
//! Its documentation lists the whole language.
//!
//! ```
//! use counterflow::prelude::*;
//!
//! /// y = reduce_scatter(relu6(x · wᵀ)): each tile goes to the rank that owns its rows.
//! #[schedule]
//! fn summed(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<f16>) {
//!     let tiles = y.tiles(tune((128, 256), (128, 128)));
//!     let partial = symmetric::<f16>(y, slots = world());
//!     let landed = counters(world(), tiles);
//!
//!     #[gemm]
//!     for owner in ranks().after_me() {
//!         for t in tiles.of(owner) {
//!             partial.on(owner)[me()][t] = dot(x[t], w[t]);
//!             landed.on(owner)[me()][t].add(1);
//!         }
//!     }
//!     #[gemm]
//!     for t in tiles.of(me()) {
//!         y[t] = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
//!     }
//! }
//! # assert_eq!(summed().name, "summed");
//! ```

use crate::__private::Tensor;
pub use crate::{epilogue, schedule};
pub use counterflow_codegen::builder::{everyone, me, others, ranks, ring, tune, world};
pub use float8::{F8E4M3 as e4m3, F8E5M2 as e5m2};
pub use half::{bf16, f16};

/// Input in row shards, one per rank. Every rank holds all of it at the end.
///
/// One that a statement stores to is an output, given by `&mut`: each rank computes the rows of its shard and sends them to
/// its peers, as [`gemm_ag`](crate::schedules::gemm_ag) does. Where ranks divide the columns, gather the transpose:
/// `dot(w[t], x[t])`.
///
/// ```
/// # use counterflow::prelude::*;
/// #[schedule]
/// fn gather(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
///     let chunks = x.chunks(rows = 64);
///     let tiles = y.tiles((128, 128));
///     let arrived = counters(chunks);
///     #[comm(ctas = 4)]
///     for peer in ranks().before_me() {
///         for c in chunks.of(me()) {
///             x.on(peer)[c] = x[c]; // my rows, on every peer
///             arrived.on(peer)[c].add(1);
///         }
///     }
///     #[gemm]
///     for shard in ranks().from_me() {
///         for t in tiles.of(shard) {
///             arrived[t.rows()].wait();
///             y[t] = dot(x[t], w[t]);
///         }
///     }
/// }
/// #[schedule]
/// fn gather_after(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
///     let tiles = y.tiles((128, 128));
///     let arrived = counters(tiles);
///     #[gemm]
///     for t in tiles.of(me()) {
///         let tile = dot(x[t], w[t]).gelu();
///         y[t] = tile;
///         for peer in ranks().after_me() {
///             y.on(peer)[t] = tile; // the same on every rank
///             arrived.on(peer)[t].add(1);
///         }
///     }
///     #[gemm]
///     for owner in ranks().after_me() {
///         for t in tiles.of(owner) {
///             arrived[t].wait(); // a launch ends when all of y is here
///         }
///     }
/// }
/// # for program in [gather(), gather_after()] {
/// #     counterflow::Communicator::emulated(2)?[0].op(&program).up_to(64, 16, 16).workspace()?;
/// # }
/// # Ok::<(), counterflow::Error>(())
/// ```
pub type Gathered<T> = Tensor<T>;
/// Input, whole on each rank and different on each.
///
/// ```
/// # use counterflow::prelude::*;
/// #[schedule]
/// fn product(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
///     let tiles = y.tiles((128, 128));
///     #[gemm]
///     for t in tiles {
///         y[t] = dot(x[t], w[t]); // rows of `x` and `w` are what the tile needs
///     }
/// }
/// # counterflow::Communicator::emulated(2)?[0].op(&product()).up_to(64, 16, 16).workspace()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
pub type Local<T> = Tensor<T>;
/// Input vector along the columns, whole on each rank: a bias.
///
/// ```
/// # use counterflow::prelude::*;
/// #[schedule]
/// fn linear(x: Local<bf16>, w: Local<bf16>, b: Vector<bf16>, y: Out<bf16>) {
///     let tiles = y.tiles((128, 128));
///     #[gemm]
///     for t in tiles {
///         y[t] = dot(x[t], w[t]).bias(b);
///     }
/// }
/// # counterflow::Communicator::emulated(2)?[0].op(&linear()).up_to(64, 16, 16).workspace()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
pub type Vector<T> = Tensor<T>;
/// Output, whole on each rank and different on each.
///
/// [`Local`] has an example with one. What a schedule leaves out is found when it is built:
///
/// ```
/// # use counterflow::prelude::*;
/// #[schedule]
/// fn half(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
///     let tiles = y.tiles((128, 128));
///     #[gemm]
///     for t in tiles.of(me()) {
///         y[t] = dot(x[t], w[t]);
///     }
/// }
///
/// let rank = &counterflow::Communicator::emulated(2)?[0];
/// let error = rank.op(&half()).up_to(64, 16, 16).workspace().unwrap_err();
/// assert!(error.to_string().contains("coverage"), "{error}");
/// # Ok::<(), counterflow::Error>(())
/// ```
pub type Out<T> = Tensor<T>;
/// Output that a launch adds to (`grad[t] += …`), whole on each rank and different on each. Its old contents count.
///
/// ```
/// # use counterflow::prelude::*;
/// #[schedule]
/// fn gradient(dy: Local<bf16>, x: Local<bf16>, grad: Accumulated<f32>) {
///     let tiles = grad.tiles((128, 128));
///     #[gemm]
///     for t in tiles {
///         grad[t] += dot(dy[t], x[t]);
///     }
/// }
/// # counterflow::Communicator::emulated(2)?[0].op(&gradient()).up_to(64, 16, 16).workspace()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
pub type Accumulated<T> = Tensor<T>;
/// Output: the sum over ranks. Each rank keeps its row shard: in any memory of its own, unless a statement stores to a peer's.
///
/// The module's [example](self) has one.
pub type ReduceScattered<T> = Tensor<T>;
/// Output: the sum over ranks, whole on every rank.
///
/// ```
/// # use counterflow::prelude::*;
/// #[schedule]
/// fn total(x: Local<bf16>, w: Local<bf16>, y: AllReduced<bf16>) {
///     let tiles = y.tiles((128, 128));
///     let partial = symmetric::<bf16>(y.shard(), slots = world());
///     let landed = counters(world(), tiles);
///     let done = counters(tiles);
///     #[gemm]
///     for owner in ranks().after_me() {
///         for t in tiles.of(owner) {
///             partial.on(owner)[me()][t] = dot(x[t], w[t]);
///             landed.on(owner)[me()][t].add(1);
///         }
///     }
///     #[gemm]
///     for t in tiles.of(me()) {
///         let sum = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
///         y[t] = sum;
///         for peer in ranks().after_me() {
///             y.on(peer)[t] = sum;
///             done.on(peer)[t].add(1);
///         }
///     }
///     #[gemm]
///     for owner in ranks().after_me() {
///         for t in tiles.of(owner) {
///             done[t].wait();
///         }
///     }
/// }
/// # counterflow::Communicator::emulated(2)?[0].op(&total()).up_to(64, 16, 16).workspace()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
pub type AllReduced<T> = Tensor<T>;
/// Output of an all-to-all, with a slot for each rank. Each rank keeps its row shard of what every rank sends:
/// `y.on(owner)[me()][t] = …`. A slot begins `ceil(M / world)` rows after the one before it, so a rank needs
/// `world · ceil(M / world)` rows.
///
/// ```
/// # use counterflow::prelude::*;
/// #[schedule]
/// fn redistributed(x: Local<bf16>, w: Local<bf16>, y: AllToAll<bf16>) {
///     let tiles = y.tiles((128, 128));
///     let landed = counters(world(), tiles);
///     #[gemm]
///     for owner in ranks().from_me() {
///         for t in tiles.of(owner) {
///             y.on(owner)[me()][t] = dot(x[t], w[t]); // into my slot of what the owner keeps
///             landed.on(owner)[me()][t].add(1);
///         }
///     }
///     #[gemm]
///     for t in tiles.of(me()) {
///         landed[everyone()][t].wait();
///     }
/// }
/// # counterflow::Communicator::emulated(2)?[0].op(&redistributed()).up_to(64, 16, 16).workspace()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
pub type AllToAll<T> = Tensor<T>;

#[cfg(test)]
mod tests {
    use super::*;

    #[schedule]
    fn copy(x: Gathered<f16>, y: Out<f32>) {
        let chunks = x.chunks(rows = 64);
        #[copy_engine]
        for c in chunks.of(me()) {
            y[c] = x[c];
        }
    }

    #[test]
    fn this_package_may_hold_schedules() {
        assert_eq!(copy().tensors.len(), 2);
    }
}
