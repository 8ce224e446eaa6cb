//! What a program says, beside what the emulator makes of its kernel: two executions that share nothing but the program.

use super::{Case, library, schedules};
use counterflow_codegen::interp::{self, Expected};
use counterflow_codegen::program::Program;
use counterflow_codegen::variant::Variant;

fn meaning(case: &Case, program: &Program, launch: usize, seed: u64) -> Expected {
    let (variant, shape) = (&case.kernel.variant, &case.plans[launch].shape);
    interp::meaning(program, variant, shape, launch, interp::uniform(seed))
        .unwrap_or_else(|error| panic!("{}: {error}", program.name))
}

/// Every launch of every rank is what the program says.
fn agrees(program: &Program, variant: &Variant, rows: &[u32], n: u32, k: u32) {
    let case = Case::new(program, variant, rows, n, k);
    for seed in 0..2 {
        let outcome = case.run(seed, interp::uniform(seed));
        for launch in 0..rows.len() {
            let told = format!("{} {} launch {launch}", program.name, case.kernel.variant);
            let agreed = interp::compare(&outcome, &meaning(&case, program, launch, seed));
            let agreed = agreed.unwrap_or_else(|error| panic!("{told}: {error}"));
            assert!(agreed.elements > 0, "{told}");
        }
    }
}

#[test]
fn every_schedule_is_what_its_program_says() {
    for (_, schedule) in schedules::ALL {
        for world in 1..=8 {
            agrees(&schedule(), &Variant::new(world), &[29, 7, 1], 24, 16);
        }
    }
    for program in library::all() {
        agrees(&program, &Variant::new(3), &[520, 100], 264, 64);
    }
}
