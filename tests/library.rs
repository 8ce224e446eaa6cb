//! Every schedule of the library, as it ships, on emulated ranks: worlds 1 to 8, ragged shapes, M changing from launch
//! to launch, many seeds, against the f64 reference.

use counterflow::codegen::interp::{self, Options};
use counterflow::codegen::lower::lower;
use counterflow::codegen::verify;
use counterflow::{Arch, Checked, Machine, Plan, Shape, Variant, schedules};

#[test]
fn every_schedule_agrees_with_its_reference_in_every_world() {
    for program in schedules::ALL.map(|schedule| schedule()) {
        for world in 1..=8 {
            let mut variant = Variant::new(world).arch(Arch::Cpu);
            for (name, setting) in [("tiles", (4, 8).into()), ("pieces", 3.into())] {
                if program.tunables.iter().any(|tunable| tunable.name == name) {
                    variant.choices.insert(name.into(), setting);
                }
            }
            let kernel = lower(&program, &variant).and_then(verify::kernel);
            let kernel = kernel.unwrap_or_else(|error| panic!("{}: {error}", program.name));
            let series = verify::series(&kernel, &Shape::new(29, 24, 16), &Machine::h200());
            let series = series.unwrap_or_else(|error| panic!("{}: {error}", program.name));
            let plans: Vec<Checked<Plan>> = [29, 1, 7, 29]
                .map(|m| series.plan(&Shape::new(m, 24, 16)))
                .into_iter()
                .collect::<Result<_, _>>()
                .unwrap_or_else(|error| panic!("{} world {world}: {error}", program.name));
            let launches: Vec<&Checked<Plan>> = plans.iter().collect();
            for seed in 0..3 {
                let told = format!("{} world {world} seed {seed}", program.name);
                let outcome = interp::run(
                    &series,
                    &launches,
                    &Options::seed(seed),
                    interp::uniform(seed),
                )
                .unwrap_or_else(|failure| panic!("{told}: {failure}"));
                for (launch, plan) in plans.iter().enumerate() {
                    let expected = interp::reference(&kernel, plan, launch, interp::uniform(seed));
                    let expected = expected.unwrap_or_else(|error| panic!("{told}: {error}"));
                    interp::compare(&outcome, &expected)
                        .unwrap_or_else(|error| panic!("{told} launch {launch}: {error}"));
                }
            }
            for seed in 3..20 {
                let options = Options::seed(seed).tags_only();
                interp::run(&series, &launches, &options, |_, _| {})
                    .unwrap_or_else(|failure| panic!("{} {world}: {failure}", program.name));
            }
        }
    }
}
