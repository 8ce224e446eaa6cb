//! The gated activation of an MLP, `silu(x · gateᵀ) · (x · upᵀ)`: two products an item that share each load of `x`, and one
//! store.

use counterflow::schedules::swiglu;

fn main() -> std::process::ExitCode {
    counterflow_workbench::main(&[swiglu])
}
