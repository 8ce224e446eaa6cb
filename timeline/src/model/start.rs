//! Start of a launch: the time before its first instruction.

use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Grid;
use counterflow_codegen::sm90::cta::dependent_launch;

/// Seconds from enqueueing a launch of that grid to its first instruction, behind another of its kind.
pub(super) fn launch(machine: &Machine, kernel: &Kernel, grid: Grid) -> f64 {
    let dependent_launch = dependent_launch::chosen(kernel, grid.gemm + grid.comm, machine.sms);
    let doublings = kernel
        .gemm()
        .map_or(0.0, |kind| f64::from(kind.ctas()).log2());
    let latency = if dependent_launch {
        machine.sm.dependent_launch_latency
    } else {
        machine.sm.launch_latency
    };
    latency + doublings * machine.sm.cluster_launch
}
