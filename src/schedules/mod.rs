//! The library: schedules in the language itself, one per file. Each says when to use it.

mod ag_gemm;
mod ag_gemm_pull;
mod ag_gemm_ring;
mod bulk;
mod gemm;
mod gemm_ar;
mod gemm_rs;
mod gemm_rs_add;
mod linear_gelu;
mod linear_residual;
mod wgrad;

pub use ag_gemm::ag_gemm;
pub use ag_gemm_pull::ag_gemm_pull;
pub use ag_gemm_ring::ag_gemm_ring;
pub use bulk::bulk;
pub use gemm::gemm;
pub use gemm_ar::gemm_ar;
pub use gemm_rs::gemm_rs;
pub use gemm_rs_add::gemm_rs_add;
pub use linear_gelu::linear_gelu;
pub use linear_residual::linear_residual;
pub use wgrad::wgrad;

/// Every schedule of the library.
pub const ALL: [fn() -> crate::Program; 11] = [
    gemm,
    linear_gelu,
    linear_residual,
    wgrad,
    ag_gemm,
    ag_gemm_pull,
    ag_gemm_ring,
    gemm_rs,
    gemm_rs_add,
    gemm_ar,
    bulk,
];
