//! Every schedule of the library as one tool: `cargo run --release --example library -- gemm_rs_add check`.

use counterflow::{families, schedules};

fn main() -> std::process::ExitCode {
    // No verb runs those that need multicast on a GPU.
    let all = [&schedules::ALL[..], &schedules::MULTICAST].concat();
    counterflow_workbench::main_of(&all, &families::ALL)
}
