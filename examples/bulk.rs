//! A GEMM and an independent all-gather, side by side in one kernel.
//!
//! The gathered tensor has its own sizes: `cargo run --release --example bulk -- demo --dim z.rows=4096`.

fn main() -> std::process::ExitCode {
    counterflow_workbench::main(&[counterflow::schedules::bulk])
}
