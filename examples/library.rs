//! Every schedule of the library as one tool: `cargo run --release --example library -- gemm_rs_add check`.

fn main() -> std::process::ExitCode {
    counterflow_workbench::main_of(&counterflow::schedules::ALL, &counterflow::families::ALL)
}
