//! y = all_gather(x) · wᵀ over two rings at once: half of the shards go one way, half the other.
//!
//! Compare the last shard's first tile with `ring`'s: `cargo run --release --example double_ring -- predict`.

fn main() -> std::process::ExitCode {
    counterflow_workbench::main(&[counterflow::schedules::ag_gemm_double_ring])
}
