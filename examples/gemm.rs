//! y = x · wᵀ on each rank, with nothing to communicate: the smallest schedule there is.
//!
//! `cargo run --release --example gemm -- check --set tiles=256x128`

fn main() -> std::process::ExitCode {
    counterflow_workbench::main(&[counterflow::schedules::gemm])
}
