//! y = all_gather(x) · wᵀ: push rows to the peers while the tensor cores start on those already here.
//!
//! `cargo run --release --example ag_gemm -- predict --world 8 --m 16384 --n 8192 --k 8192`

fn main() -> std::process::ExitCode {
    counterflow_workbench::main(&[counterflow::schedules::ag_gemm])
}
