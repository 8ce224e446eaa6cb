//! y = reduce_scatter(x · wᵀ) around a ring, behind the product: each rank adds its tiles to what came, and sends that on.
//!
//! A chart of the ranks' waits: `cargo run --release --example rs_ring -- predict --world 4`.

fn main() -> std::process::ExitCode {
    counterflow_workbench::main(&[counterflow::schedules::rs_ring])
}
