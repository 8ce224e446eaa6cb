//! Element types as the libraries and our kernels of numbers call them: a row each.

use counterflow_codegen::dtype::Dtype;
use cudarc::cublaslt::sys::cudaDataType;
use std::ffi::c_int;

/// (our number in `numbers.cu`, NCCL's `ncclDataType_t`, cuBLASLt's type).
const fn row(dtype: Dtype) -> (u32, c_int, cudaDataType) {
    match dtype {
        Dtype::Bf16 => (0, 9, cudaDataType::CUDA_R_16BF),
        Dtype::F16 => (1, 6, cudaDataType::CUDA_R_16F),
        Dtype::F32 => (2, 7, cudaDataType::CUDA_R_32F),
        Dtype::E4M3 => (3, 10, cudaDataType::CUDA_R_8F_E4M3),
        Dtype::E5M2 => (4, 11, cudaDataType::CUDA_R_8F_E5M2),
    }
}

/// Number in the text of `numbers.cu`.
pub(super) const fn ours(dtype: Dtype) -> u32 {
    row(dtype).0
}

/// NCCL's number.
pub(super) const fn nccl(dtype: Dtype) -> c_int {
    row(dtype).1
}

/// cuBLASLt's type.
pub(super) const fn blas(dtype: Dtype) -> cudaDataType {
    row(dtype).2
}
