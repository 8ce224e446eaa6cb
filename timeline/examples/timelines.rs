//! Charts of the timelines of some small schedules, and a trace of the last for Perfetto on standard output if
//! `trace` is given: `cargo run --release -p counterflow-timeline --example timelines -- trace > ag_gemm.json`.

#[path = "../../codegen/tests/fixtures/features.rs"]
mod schedules;

use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_timeline::model::predict;

fn main() {
    let machine = Machine::h200();
    let trace = std::env::args().any(|argument| argument == "trace");
    for (program, world, shape) in [
        (schedules::slots_sum(), 4, Shape::new(4096, 8192, 2048)),
        (schedules::pull(), 8, Shape::new(4096, 1280, 8192)),
        (
            schedules::push_all_gather(),
            4,
            Shape::new(2048, 2560, 8192),
        ),
    ] {
        let kernel = lower(&program, &Variant::new(world)).unwrap_or_else(|e| panic!("{e}"));
        let plan = Plan::new(&kernel, &shape, &machine).unwrap_or_else(|e| panic!("{e}"));
        let timeline = predict(&kernel, &plan, &machine).unwrap_or_else(|e| panic!("{e}"));
        if !trace {
            println!("{}", timeline.gantt(100));
        } else if program.name == "push_all_gather" {
            println!("{}", timeline.trace());
        }
    }
}
