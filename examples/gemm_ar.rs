//! y = all_reduce(x · wᵀ): every rank gets the whole sum.
//!
//! `cargo run --release --example gemm_ar -- run --m 1000 --world 5`

fn main() -> std::process::ExitCode {
    counterflow_workbench::main(&[counterflow::schedules::gemm_ar])
}
