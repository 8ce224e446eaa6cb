//! x
#[path = "../tests/common/schedules.rs"]
mod schedules;
fn main() -> std::process::ExitCode {
    counterflow::workbench::main(&[
        schedules::ag_gemm,
        schedules::gemm,
        schedules::copies_outside,
        schedules::bulk,
    ])
}
