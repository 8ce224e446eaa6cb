//! y = x · all_gather(w)ᵀ: every rank keeps a shard of the weight; shards arrive while tiles of the others are computed.
//!
//! `cargo run --release --example fsdp_gemm -- check --n 8192 --k 4096`.

fn main() -> std::process::ExitCode {
    counterflow_workbench::main(&[counterflow::schedules::fsdp_gemm])
}
