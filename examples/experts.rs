//! Two experts of a rank, whose tensors lie apart, in one launch.
//!
//! `cargo run --release --example experts -- run --dim u.rows=512 --dim v.columns=768`.

fn main() -> std::process::ExitCode {
    counterflow_workbench::main(&[counterflow::schedules::experts])
}
