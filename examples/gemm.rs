//! y = x · wᵀ on each rank, without communication: the smallest schedule.
//!
//! `cargo run --release --example gemm -- check --set tiles=256x128`

fn main() -> std::process::ExitCode {
    counterflow_workbench::main(&[counterflow::schedules::gemm])
}
