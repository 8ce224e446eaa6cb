//! A GEMM and an all-gather that have nothing to do with each other, side by side in one kernel.
//!
//! What is gathered has sizes of its own: `cargo run --release --example bulk -- demo --dim z.rows=4096`.

fn main() -> std::process::ExitCode {
    counterflow_workbench::main(&[counterflow::schedules::bulk])
}
