//! y = reduce_scatter(x · wᵀ): partial tiles go straight to their owner, which adds them in rank order.
//!
//! Every run has the same bits: `cargo run --release --example gemm_rs -- run --seed 2`.

fn main() -> std::process::ExitCode {
    counterflow_workbench::main(&[counterflow::schedules::gemm_rs])
}
