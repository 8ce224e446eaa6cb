//! The library: schedules in the language itself, one per file. Each says when to use it. Beside each stands its
//! launcher ([`Communicator::op_of`](crate::Communicator::op_of)).
//!
//! Outputs of a launch are given by `&mut`:
//!
//! ```compile_fail,E0277
//! use counterflow::{Communicator, Op, Tensor, UserBuffer, prelude::bf16, schedules::AgGemmOp};
//!
//! type Given<'a> = (&'a UserBuffer<bf16>, &'a Tensor<bf16>, &'a Tensor<bf16>);
//!
//! fn launch(op: &Op<AgGemmOp<'static>>, rank: &Communicator, (x, w, y): Given<'_>) {
//!     let _ = op.on(rank).x(x).w(w).y(y).launch();
//! }
//! ```

mod ag_gemm;
mod ag_gemm_across;
mod ag_gemm_double_ring;
mod ag_gemm_multicast;
mod ag_gemm_pull;
mod ag_gemm_ring;
mod ag_gemm_slabs;
mod ag_swiglu;
mod all_gather;
mod all_reduce;
mod all_reduce_multicast;
mod all_to_all;
mod bulk;
mod bulk_rs;
mod experts;
mod fsdp_gemm;
mod gemm;
mod gemm_ag;
mod gemm_ar;
mod gemm_ar_multicast;
mod gemm_ar_one_shot;
mod gemm_rs;
mod gemm_rs_across;
mod gemm_rs_add;
mod linear_gelu;
mod linear_residual;
mod mlp;
mod reduce_scatter;
mod rs_ring;
mod swiglu;
mod wgrad;

pub use ag_gemm::{AgGemmOp, ag_gemm};
pub use ag_gemm_across::{AgGemmAcrossOp, ag_gemm_across};
pub use ag_gemm_double_ring::{AgGemmDoubleRingOp, ag_gemm_double_ring};
pub use ag_gemm_multicast::{AgGemmMulticastOp, ag_gemm_multicast};
pub use ag_gemm_pull::{AgGemmPullOp, ag_gemm_pull};
pub use ag_gemm_ring::{AgGemmRingOp, ag_gemm_ring};
pub use ag_gemm_slabs::{AgGemmSlabsOp, ag_gemm_slabs};
pub use ag_swiglu::{AgSwigluOp, ag_swiglu};
pub use all_gather::{AllGatherOp, all_gather};
pub use all_reduce::{AllReduceOp, all_reduce};
pub use all_reduce_multicast::{AllReduceMulticastOp, all_reduce_multicast};
pub use all_to_all::{AllToAllOp, all_to_all};
pub use bulk::{BulkOp, bulk};
pub use bulk_rs::{BulkRsOp, bulk_rs};
pub use experts::{ExpertsOp, experts};
pub use fsdp_gemm::{FsdpGemmOp, fsdp_gemm};
pub use gemm::{GemmOp, gemm};
pub use gemm_ag::{GemmAgOp, gemm_ag};
pub use gemm_ar::{GemmArOp, gemm_ar};
pub use gemm_ar_multicast::{GemmArMulticastOp, gemm_ar_multicast};
pub use gemm_ar_one_shot::{GemmArOneShotOp, gemm_ar_one_shot};
pub use gemm_rs::{GemmRsOp, gemm_rs};
pub use gemm_rs_across::{GemmRsAcrossOp, gemm_rs_across};
pub use gemm_rs_add::{GemmRsAddOp, gemm_rs_add};
pub use linear_gelu::{LinearGeluOp, linear_gelu};
pub use linear_residual::{LinearResidualOp, linear_residual};
pub use mlp::{MlpOp, mlp};
pub use reduce_scatter::{ReduceScatterOp, reduce_scatter};
pub use rs_ring::{RsRingOp, rs_ring};
pub use swiglu::{SwigluOp, swiglu};
pub use wgrad::{WgradOp, wgrad};

/// Every schedule of the library that goes to one rank at a time.
pub const ALL: [fn() -> crate::Program; 28] = [
    gemm,
    linear_gelu,
    linear_residual,
    swiglu,
    experts,
    wgrad,
    ag_gemm,
    ag_gemm_across,
    ag_gemm_pull,
    ag_gemm_ring,
    ag_gemm_double_ring,
    ag_gemm_slabs,
    ag_swiglu,
    fsdp_gemm,
    gemm_rs,
    gemm_rs_across,
    gemm_rs_add,
    rs_ring,
    gemm_ar,
    gemm_ar_one_shot,
    gemm_ag,
    all_to_all,
    mlp,
    bulk,
    bulk_rs,
    all_gather,
    reduce_scatter,
    all_reduce,
];

/// Schedules that reach every rank's memory at once. Only GPUs whose heap has a multicast view run them, and nothing
/// chooses one by itself: no family, no default, no test on a GPU.
pub const MULTICAST: [fn() -> crate::Program; 3] =
    [ag_gemm_multicast, gemm_ar_multicast, all_reduce_multicast];
