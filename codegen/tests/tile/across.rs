//! Tiles of all rows at once, wherever ranks divide them: each waits for the chunks of every shard that it reads, and for no
//! others, and is proved, emulated and held to the reference.

use crate::fixtures::across::{self, Mistake, SUMS, Way};
use crate::fixtures::wide::{sampled, wide};
use counterflow_codegen::diag::Rule;
use counterflow_codegen::dtype::Dtype::E4M3;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::unroll::StepKind;
use counterflow_codegen::variant::{Arch, Layout, Scales, Variant};
use counterflow_codegen::verify;
use counterflow_emulator::{self as interp, Options};
use counterflow_timeline::model::Volume;

const TILE: (u32, u32) = (8, 8);
const CHUNK: u32 = 4;

fn gather(chunk: u32, tile: (u32, u32), mistake: Mistake) -> Program {
    across::gather(Way::Push, (chunk, tile.into()), mistake)
}

fn kernel(program: &Program, variant: Variant) -> Kernel {
    lower(program, &variant).unwrap_or_else(|found| panic!("{found}"))
}

/// Proves a launch, emulates it in several interleavings, and holds it to the reference.
fn agrees(kernel: &Kernel, shape: &Shape) {
    let of = |found| -> ! { panic!("{shape} {}:\n{found}", kernel.variant) };
    let checked = verify::kernel(kernel.clone()).unwrap_or_else(|found| of(found));
    let plan = verify::plan(&checked, shape, &Machine::h200()).unwrap_or_else(|found| of(found));
    let launches = [vec![&*plan], vec![&*plan]];
    for seed in 0..3 {
        let inputs = || interp::integers(3);
        let outcome = interp::provoke(kernel, &launches, &Options::seed(seed), inputs());
        let outcome = outcome.unwrap_or_else(|failure| panic!("{shape}: {failure}"));
        for launch in 0..2 {
            let expected = interp::reference(kernel, &plan, launch, inputs());
            let expected = expected.unwrap_or_else(|why| panic!("{shape}: {why}"));
            interp::compare_exactly(&outcome, &expected).unwrap_or_else(|why| panic!("{why}"));
        }
    }
}

fn cpu(world: u32) -> Variant {
    Variant::new(world).arch(Arch::Cpu)
}

#[test]
fn ragged_shards_and_fewer_rows_than_ranks() {
    for world in 1..=8 {
        let kernel = kernel(&gather(CHUNK, TILE, Mistake::None), cpu(world));
        for m in [1, 3, 7, 8, 13, 40, 61] {
            agrees(&kernel, &Shape::new(m, 16, 8));
        }
    }
}

/// Tiles go to everybody, and so are summed everywhere, or their parts to the ranks that own their rows.
#[test]
fn sums_of_ragged_shards_and_of_fewer_rows_than_ranks() {
    for to in SUMS {
        for world in 1..=8 {
            let program = across::one_shot(to, TILE.into(), Mistake::None);
            let kernel = kernel(&program, cpu(world));
            // The worlds have the rows in turn.
            let first = if wide() { 0 } else { world as usize % 5 };
            for m in sampled([1, 3, 7, 8, 13, 40, 61].into_iter().skip(first), 5) {
                agrees(&kernel, &Shape::new(m, 16, 8));
            }
        }
    }
}

/// Where rows are contiguous, each shard is a matrix of its own.
#[test]
fn operands_of_either_layout() {
    for layout in Layout::ALL {
        let kernel = kernel(&gather(CHUNK, TILE, Mistake::None), cpu(3).layout(layout));
        for m in [24, 48] {
            agrees(&kernel, &Shape::new(m, 16, 8));
        }
    }
}

/// Scales of rows and of blocks, whose shards are multiples of 4 rows, or of 128.
#[test]
fn fp8_with_scales() {
    for (at, scales) in Scales::ALL.into_iter().enumerate() {
        let variant = cpu(3).dtype(E4M3).scales(scales);
        let kernel = kernel(&gather(128, (128, 64), Mistake::None), variant);
        let rows = [300, 500];
        for m in if wide() {
            &rows[..]
        } else {
            &rows[at % 2..][..1]
        } {
            agrees(&kernel, &Shape::new(*m, 64, 256));
        }
    }
}

/// A tile waits for the chunks that it reads, of whatever shard, and for no others.
#[test]
fn each_tile_waits_for_what_it_reads() {
    let kernel = kernel(&gather(CHUNK, TILE, Mistake::None), cpu(4));
    let checked = verify::kernel(kernel).unwrap_or_else(|found| panic!("{found}"));
    // Shards of 6 rows: chunks of 4 and 2. Tiles of 8 rows.
    let plan = verify::plan(&checked, &Shape::new(24, 8, 8), &Machine::h200());
    let plan = plan.unwrap_or_else(|found| panic!("{found}"));
    let gemm = checked.roles.iter().position(|role| role.name == "gemm");
    let agent = plan.agent(0, gemm.expect("a role"));
    let waits: Vec<Vec<u32>> = (agent.items.iter())
        .map(|item| {
            let steps = &agent.steps[item.start as usize..item.end as usize];
            let cells = steps.iter().filter_map(|step| match step.kind {
                StepKind::Wait { counter, cell, .. } if counter.0 == 0 => Some(cell),
                _ => None,
            });
            cells.collect()
        })
        .filter(|cells: &Vec<u32>| !cells.is_empty())
        .collect();
    // Two cells a shard: rows 0..4, 4..6, 6..10, 10..12, 12..16, 16..18, 18..22, 22..24.
    assert_eq!(waits, [[0, 1, 2], [2, 3, 4], [5, 6, 7]]);
    let volume = Volume::of(&checked, &plan);
    assert_eq!(volume.total(), volume.least_total());
}

/// Few rows of many ranks are one tile, so `w` is read once.
#[test]
fn few_rows_are_one_tile() {
    let across = kernel(&gather(CHUNK, TILE, Mistake::None), cpu(8));
    let checked = verify::kernel(across).unwrap_or_else(|found| panic!("{found}"));
    let plan = verify::plan(&checked, &Shape::new(8, 8, 8), &Machine::h200());
    let plan = plan.unwrap_or_else(|found| panic!("{found}"));
    for agent in &*plan.agents {
        let products = agent.steps.iter();
        let products = products.filter(|step| matches!(step.kind, StepKind::Dot { .. }));
        let computes = checked.roles[usize::from(agent.role)].name == "gemm";
        assert_eq!(products.count(), usize::from(computes));
    }
}

#[test]
fn what_is_wrong_is_refused() {
    let gathers = |mistake| gather(CHUNK, TILE, mistake);
    let sums = |to| move |mistake| across::one_shot(to, TILE.into(), mistake);
    let [everybody, owner] = SUMS.map(sums);
    refused(&gathers);
    refused(&everybody);
    refused(&owner);
}

/// A way to get it wrong is refused at a statement, by the rule that it breaks.
fn refused(program: &dyn Fn(Mistake) -> Program) {
    let rejected = |mistake| {
        let kernel = lower(&program(mistake), &cpu(3)).and_then(verify::kernel);
        let shape = Shape::new(24, 8, 8);
        let plan = kernel.and_then(|kernel| verify::plan(&kernel, &shape, &Machine::h200()));
        let found = plan.expect_err("a refusal");
        let first = found.first();
        let at = first.at.expect("a statement");
        assert!(at.file().ends_with("across.rs"), "{found}");
        (first.rule, first.message.clone())
    };
    let (rule, message) = rejected(Mistake::NoWait);
    assert_eq!(rule, Rule::Race, "{message}");
    let (rule, message) = rejected(Mistake::OnePeer);
    assert_eq!(rule, Rule::Race, "{message}");
    let (_, message) = rejected(Mistake::OfShard);
    assert!(message.contains("`tiles` has no shards"), "{message}");
}

/// Launches of a series have any numbers of rows: which shards a tile is in depends on them.
#[test]
fn launches_of_any_rows_follow_each_other() {
    let programs = |world: u32| {
        let sums = SUMS.map(|to| across::one_shot(to, TILE.into(), Mistake::None));
        let all = [gather(CHUNK, TILE, Mistake::None)].into_iter().chain(sums);
        all.map(move |program| kernel(&program, cpu(world)))
    };
    for world in [2, 3, 5, 8] {
        for kernel in programs(world) {
            let checked = verify::kernel(kernel.clone()).unwrap_or_else(|found| panic!("{found}"));
            let series = verify::series(&checked, &Shape::new(61, 16, 8), &Machine::h200());
            let series = series.unwrap_or_else(|found| panic!("{found}"));
            let plans = [61, 1, 24, 7, 40, 61].map(|m| {
                let plan = series.plan(&Shape::new(m, 16, 8));
                plan.unwrap_or_else(|found| panic!("{m}: {found}"))
            });
            let launches: Vec<_> = plans.iter().map(|plan| vec![&**plan]).collect();
            for seed in sampled(0..3, 3) {
                let inputs = || interp::integers(3);
                let outcome = interp::provoke(&kernel, &launches, &Options::seed(seed), inputs());
                let outcome = outcome.unwrap_or_else(|failure| panic!("{world}: {failure}"));
                let last = plans.len() - 1;
                let expected = interp::reference(&kernel, &plans[last], last, inputs());
                let expected = expected.unwrap_or_else(|why| panic!("{why}"));
                interp::compare_exactly(&outcome, &expected).unwrap_or_else(|why| panic!("{why}"));
            }
        }
    }
}
