//! The bytes that cross links, and the least: of schedules that waste none, of waste, of partial sums with scales.

use crate::fixtures::features as schedules;
use crate::fixtures::library;
use counterflow_codegen::builder::tune;
use counterflow_codegen::diag::Rule;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::rule::{self, Fp8};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_timeline::model::{Volume, predict};

fn planned(program: &Program, variant: &Variant, shape: &Shape) -> (Kernel, Plan) {
    let kernel = lower(program, variant).unwrap_or_else(|found| panic!("{found}"));
    let plan =
        Plan::new(&kernel, shape, &Machine::h200()).unwrap_or_else(|found| panic!("{found}"));
    (kernel, plan)
}

#[test]
fn library_schedules_move_the_least() {
    let shape = Shape::new(1000, 512, 256);
    let rows = |columns: u64| 1000 * columns * 2 * 3;
    for (program, least) in [
        (schedules::push_all_gather(), rows(256)),
        (schedules::pull(), rows(256)),
        (schedules::ring_all_gather(), rows(256)),
        (schedules::slots_sum(), rows(512)),
        (schedules::reduce_add(), rows(512)),
        (schedules::two_shot(), 2 * rows(512)),
        (schedules::gemm(), 0),
    ] {
        let (kernel, plan) = planned(&program, &Variant::new(4), &shape);
        let volume = Volume::of(&kernel, &plan);
        assert_eq!(volume.least_total(), least, "{}", program.name);
        assert_eq!(volume.total(), least, "{}", program.name);
        assert!(volume.warnings(&kernel, &plan).is_empty());
    }
}

#[test]
fn waste_is_named() {
    let shape = Shape::new(1024, 512, 256);
    let (kernel, plan) = planned(&schedules::twice(), &Variant::new(4), &shape);
    let warnings = Volume::of(&kernel, &plan).warnings(&kernel, &plan);
    assert_eq!(warnings[0].rule, Rule::Volume);
    let text = warnings[0].text(&|_| String::new());
    insta::assert_snapshot!(text, @r"
    warning[volume]: 3145.7 kB cross links in a launch, 2.00 times the least, 1572.9 kB
      = `x.on(peer)[c] = x[c]` moves 1572.9 kB
      = `x.on(peer)[c] = x[c]` moves 1572.9 kB
      = rows of x arrive more than once at a rank, or where they already are
    ");
    let (kernel, plan) = planned(&schedules::one_shot(), &Variant::new(4), &shape);
    let warnings = Volume::of(&kernel, &plan).warnings(&kernel, &plan);
    insta::assert_snapshot!(warnings[0].text(&|_| String::new()), @r"
    warning[volume]: 25.2 MB cross links in a launch, 4.00 times the least, 6291.5 kB
      = `partial.on(peer)[me][t] = acc0` moves 25.2 MB
      = partial is f32, wider than y, which is bf16
      = partial receives rows that their owner alone needs to receive
    ");
}

/// A code for each element and a scale for each 128 columns of a row, from each rank but its owner; then, where all keep it, the sum
/// itself.
#[test]
fn partial_sums_in_fp8_move_their_scales() {
    let shape = Shape::new(1000, 528, 256);
    let real = library::real();
    let sizes = library::Sizes {
        tiles: tune([(128, 128)]),
        ..real
    };
    let rule = rule::ScaleRule::transformer_engine(Fp8::E4M3).powers_of_two();
    let variant = Variant::new(4).quantised_reduction(rule);
    let (codes, scales, sums) = (528, 5 * 4, 528 * 2);
    for (program, row) in [
        (library::gemm_rs(&sizes), codes + scales),
        (library::gemm_ar(&sizes), codes + scales + sums),
    ] {
        let (kernel, plan) = planned(&program, &variant, &shape);
        let volume = Volume::of(&kernel, &plan);
        let least = 1000 * row * 3;
        assert_eq!(volume.least_total(), least, "{}", program.name);
        assert_eq!(volume.total(), least, "{}", program.name);
    }
}

/// The bytes of a plane take time where it is written, and where it is read again.
#[test]
fn computed_scales_take_time_for_their_bytes() {
    // A rate at which bytes are all that counts.
    let machine = Machine {
        memory: 1e9,
        ..Machine::h200()
    };
    let shape = Shape::new(4096, 4096, 128);
    let real = library::real();
    let sizes = library::Sizes {
        tiles: tune([(128, 128)]),
        ..real
    };
    let rule = rule::ScaleRule::transformer_engine(Fp8::E4M3);
    let time = |variant: &Variant| {
        let (kernel, plan) = planned(&library::gemm(&sizes), variant, &shape);
        let timeline = predict(&kernel, &plan, &machine);
        timeline.unwrap_or_else(|found| panic!("{found}")).total
    };
    let given = time(&Variant::new(1).output(rule.to.dtype()));
    let made = time(&Variant::new(1).output_scales(rule));
    let plane = 4096.0 * 32.0 * 4.0 / 1e9;
    assert!(
        (0.9..1.2).contains(&((made - given) / plane)),
        "{given} s with a given scale, {made} s with {plane} s for a plane"
    );
}
