//! Plans of too many steps, which would take the machine's memory.

use crate::fixtures::library;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::unroll::{MOST_STEPS, most_steps};
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;

#[test]
fn a_plan_of_too_many_steps_is_refused_before_anything_is_unrolled() {
    let lowered = lower(&library::gemm_rs(&library::real()), &Variant::new(8));
    let kernel = lowered.and_then(verify::kernel).expect("a kernel");
    let (small, large) = (Shape::new(4096, 2048, 8), Shape::new(1 << 24, 8192, 8));
    let series = verify::series(&kernel, &small, &Machine::h200()).expect("a series");
    let plan = series.plan(&small).expect("a plan");
    let steps: usize = plan.agents.iter().map(|agent| agent.steps.len()).sum();
    let most = most_steps(&kernel, &plan.geometry);
    assert!(
        steps as u64 <= most && most < 16 * steps as u64,
        "{steps}, {most}"
    );
    let told = [
        verify::series(&kernel, &large, &Machine::h200()).expect_err("a series"),
        Plan::new(&kernel, &large, &Machine::h200()).expect_err("a plan"),
    ];
    for told in told {
        let told = told.to_string();
        assert!(told.contains("gemm_rs at 16777216x8192x8"), "{told}");
        assert!(
            told.contains(&format!("at most {MOST_STEPS} are checked at once")),
            "{told}"
        );
    }
}
