//! Every schedule of the library, as it ships, on emulated ranks: worlds 1 to 8, ragged shapes, M changing from launch
//! to launch, many seeds, against the f64 reference.

use crate::parallel::in_parallel;
use crate::wide::wide;
use counterflow::codegen::interp::{self, Expected, Options, Says};
use counterflow::codegen::lower::lower;
use counterflow::codegen::program::Usage;
use counterflow::codegen::verify;
use counterflow::{Arch, Checked, Machine, Plan, Program, Shape, Variant, cpu, schedules};

/// Whatever a type determines is derived from it alone, and is what the statements make of it.
fn promised_as_written(
    program: &Program,
    (variant, shape): (&Variant, &Shape),
    expected: &Expected,
    seed: u64,
) {
    let launch = expected.launch;
    let written = interp::meaning(program, variant, shape, launch, interp::uniform(seed));
    let written = written.unwrap_or_else(|error| panic!("{error}"));
    for (expected, written) in expected.tensors.iter().zip(&written.tensors) {
        let tensor = &program.tensors[expected.tensor.index()];
        let told = format!(
            "{}, {} on rank {}",
            program.name, tensor.name, expected.rank
        );
        let says = if tensor.usage == Usage::OUT {
            Says::Schedule
        } else {
            Says::Type
        };
        assert_eq!(expected.says, says, "{told}");
        assert_eq!(
            (expected.rank, expected.tensor),
            (written.rank, written.tensor)
        );
        assert_eq!(expected.values.len(), written.values.len(), "{told}");
        let pairs = expected.values.iter().zip(&written.values);
        let off = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off < 1e-12, "{told}: {off}");
    }
}

#[test]
fn every_schedule_agrees_with_its_reference_in_every_world() {
    let all = schedules::ALL.iter().chain(&schedules::MULTICAST);
    let programs: Vec<Program> = all.map(|schedule| schedule()).collect();
    in_parallel(8 * programs.len(), |case| {
        // Every fourth world for each schedule, in turn, without `WIDE`.
        if wide() || (case / 8 + case) % 4 == 0 {
            agrees(&programs[case / 8], 1 + case as u32 % 8);
        }
    });
}

fn agrees(program: &Program, world: u32) {
    let mut variant = Variant::new(world).arch(Arch::Cpu);
    for (name, setting) in [("tiles", (4, 8).into()), ("chunks", 3.into())] {
        if program.tunables.iter().any(|tunable| tunable.name == name) {
            variant.choices.insert(name.into(), setting);
        }
    }
    let kernel = lower(program, &variant).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{}: {error}", program.name));
    let series = verify::series(&kernel, &Shape::new(29, 24, 16), &Machine::h200());
    let series = series.unwrap_or_else(|error| panic!("{}: {error}", program.name));
    let plans: Vec<Checked<Plan>> = [29, 1, 7, 29]
        .map(|m| series.plan(&Shape::new(m, 24, 16)))
        .into_iter()
        .collect::<Result<_, _>>()
        .unwrap_or_else(|error| panic!("{} world {world}: {error}", program.name));
    let launches: Vec<&Checked<Plan>> = plans.iter().collect();
    let (valued, tagged) = if wide() { (3, 20) } else { (1, 4) };
    for seed in 0..valued {
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
            promised_as_written(program, (&variant, &plan.shape), &expected, seed);
        }
    }
    for seed in valued..tagged {
        let options = Options::seed(seed).tags_only();
        interp::run(&series, &launches, &options, |_, _| {})
            .unwrap_or_else(|failure| panic!("{} {world}: {failure}", program.name));
    }
}

/// With the M's of launches that share counters, but do not know of each other.
#[test]
fn launches_of_several_series_are_refused() {
    let variant = Variant::new(4).arch(Arch::Cpu);
    let kernel = lower(&schedules::gemm_rs_add(), &variant).and_then(verify::kernel);
    let kernel = kernel.expect("legal");
    let of = |m| verify::series(&kernel, &Shape::new(m, 512, 64), &Machine::h200());
    let series = [1024, 512, 3, 1000].map(|m| of(m).expect("legal"));
    let plans: Vec<Checked<Plan>> = series
        .iter()
        .map(|series| series.plan(series.most()).expect("legal"))
        .collect();
    let launches: Vec<&Checked<Plan>> = plans.iter().collect();
    let refused = [
        cpu::run(&series[0], launches.clone(), 1).err(),
        cpu::interleave(&series[0], &launches, 1).err(),
    ];
    for refused in refused {
        let refused = refused.expect("refused");
        assert_eq!(refused.kind(), "rejected");
        let told = refused.to_string();
        assert!(
            told.contains("the plan of 512x512x64 does not belong to this series"),
            "{told}"
        );
        assert!(
            told.contains("make one series with the largest size of every dimension"),
            "{told}"
        );
    }
    // One series for all of them is what it asks for.
    let shapes = [1024, 512, 3, 1000].map(|m| Shape::new(m, 512, 64));
    let plans = shapes.map(|shape| series[0].plan(&shape).expect("legal"));
    cpu::interleave(&series[0], &plans.iter().collect::<Vec<_>>(), 1).expect("runs");
}

/// Rings, an all-to-all, a gathered result and a gathered weight are proved in every world that a plan may have, odd ones too.
#[test]
fn what_goes_by_ranks_is_proved_in_every_world() {
    let all = [
        schedules::ag_gemm_double_ring(),
        schedules::all_to_all(),
        schedules::gemm_ag(),
        schedules::rs_ring(),
        schedules::fsdp_gemm(),
    ];
    let some = [31, 32, 33, 64, 127, 128];
    let worlds: Vec<u32> = match wide() {
        true => (1..=128).collect(),
        false => (1..=17).chain(some).collect(),
    };
    in_parallel(worlds.len() * all.len(), |case| {
        let (of, at) = (case / worlds.len(), case % worlds.len());
        let (program, world) = (&all[of], worlds[at]);
        // Every third one in turn, without `WIDE`.
        if !wide() && (of + at) % 3 != 0 {
            return;
        }
        let mut variant = Variant::new(world).arch(Arch::Cpu);
        variant.choices.insert("tiles".into(), (4, 8).into());
        if program
            .tunables
            .iter()
            .any(|tunable| tunable.name == "chunks")
        {
            variant.choices.insert("chunks".into(), 3.into());
        }
        let kernel = lower(program, &variant).and_then(verify::kernel);
        let kernel = kernel.unwrap_or_else(|error| panic!("{world}: {error}"));
        // The last ranks have fewer rows, or none; or that of columns.
        let most = match program.name.as_str() {
            "fsdp_gemm" => Shape::new(5, 8 * (world + 2), 16),
            _ => Shape::new(2 * world + 1, 8, 16),
        };
        let series = verify::series(&kernel, &most, &Machine::h200());
        series.unwrap_or_else(|error| panic!("{world}: {error}"));
    });
}
