//! One tiny program a feature, at each stage: read a slice from `@1` on, and stop at the first stage that surprises.

mod schedules;

use counterflow_codegen::lower::lower;
use counterflow_codegen::model::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;

/// The most lines a slice may have; most have fewer than 60.
const MOST_LINES: usize = 120;

fn slice(program: &Program, shape: &Shape) {
    let variant = Variant::new(4);
    let kernel = lower(program, &variant).unwrap_or_else(|found| panic!("{found}"));
    let plan =
        Plan::new(&kernel, shape, &Machine::h200()).unwrap_or_else(|found| panic!("{found}"));
    for (stage, text) in [
        ("1-program", program.to_string()),
        ("2-kernel", kernel.to_string()),
        ("4-plan", plan.text(&kernel)),
    ] {
        let lines = text.lines().count();
        assert!(
            lines <= MOST_LINES,
            "{} {stage}: {lines} lines",
            program.name
        );
        assert!(!text.contains(".rs:"), "{text}");
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_path("snapshots");
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.set_snapshot_suffix(stage);
        settings.set_description(format!("{variant}, shape {shape}"));
        settings.bind(|| insta::assert_snapshot!(program.name.as_str(), text));
    }
}

#[test]
fn push_all_gather() {
    slice(&schedules::push_all_gather(), &Shape::new(1000, 512, 256));
}

#[test]
fn pull() {
    slice(&schedules::pull(), &Shape::new(1024, 512, 256));
}

#[test]
fn ring() {
    slice(&schedules::ring_all_gather(), &Shape::new(1024, 512, 256));
}

#[test]
fn slots_sum() {
    slice(&schedules::slots_sum(), &Shape::new(1024, 512, 256));
}

#[test]
fn reduce_add() {
    slice(&schedules::reduce_add(), &Shape::new(1024, 512, 256));
}

#[test]
fn two_shot() {
    slice(&schedules::two_shot(), &Shape::new(1000, 512, 256));
}

#[test]
fn gated_pair() {
    slice(&schedules::gated_pair(), &Shape::new(1024, 512, 256));
}

#[test]
fn splits() {
    slice(&schedules::splits(), &Shape::new(1024, 512, 256));
}

#[test]
fn rank_if() {
    slice(&schedules::rank_if(), &Shape::new(1024, 512, 256));
}
