//! y = all_gather(x) · wᵀ again, but every rank sends only to the next one and forwards what it received.
//!
//! Compare the first tile of the last shard with `ag_gemm`'s: `cargo run --release --example ring -- predict`.

fn main() -> std::process::ExitCode {
    counterflow_workbench::main(&[counterflow::schedules::ag_gemm_ring])
}
