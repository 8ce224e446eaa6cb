//! Schedules that layers need beside those of [`counterflow::schedules`]: products with a bias, and
//! a weight's gradient beside the sum of an input's gradient, and sums of gradients and gathers of a few
//! numbers in f32.

mod biased;
mod bulk;
mod sums;

pub use biased::{
    AgGemmBiasOp, AgGemmDoubleRingBiasOp, AgGemmPullBiasOp, AgGemmRingBiasOp, GemmBiasOp,
    GemmRsBiasOp, ReduceScatterBiasOp, ag_gemm_bias, ag_gemm_double_ring_bias, ag_gemm_pull_bias,
    ag_gemm_ring_bias, gemm_bias, gemm_rs_bias, reduce_scatter_bias,
};
pub use bulk::{GemmRsBesideGatherOp, WgradRsOp, gemm_rs_beside_gather, wgrad_rs};
pub use sums::{GatherRowsOp, SumGradientsOp, gather_rows, sum_gradients};
