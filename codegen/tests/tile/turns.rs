//! Waits, loads and signals of an item take their turns in the order of the statements, a sum over slots slot by slot.

use crate::fixtures::strangers::far_cells;
use crate::fixtures::strangers::slots::acknowledged_in_turn;
use crate::generator::judge;
use counterflow_codegen::builder::*;
use counterflow_codegen::diag::{Diagnostics, Rule};
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::rule::Fp8;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::unroll::{Item, Step, StepKind};
use counterflow_codegen::variant::{Arch, Variant};
use counterflow_codegen::verify;
use counterflow_emulator::{self as interp, Options};

fn kernel(program: &Program, world: u32) -> Kernel {
    let mut variant = Variant::new(world).arch(Arch::Cpu);
    if program.tunables.iter().any(|it| it.name == "tiles") {
        variant = variant.set("tiles", (4, 8));
    }
    lower(program, &variant).unwrap_or_else(|error| panic!("{world} ranks: {error}"))
}

/// With partial sums in FP8.
fn in_codes(program: &Program, world: u32) -> Kernel {
    let codes = counterflow_codegen::rule::ScaleRule::transformer_engine(Fp8::E4M3);
    let variant = Variant::new(world)
        .arch(Arch::Cpu)
        .quantised_reduction(codes);
    lower(program, &variant.set("tiles", (64, 128)))
        .unwrap_or_else(|error| panic!("{world} ranks: {error}"))
}

/// The steps of rank 1's last item that stores something, in words.
fn last_item(program: &Program, world: u32) -> Vec<String> {
    let kernel = kernel(program, world);
    let plan = Plan::new(&kernel, &Shape::new(world * 4, 8, 8), &Machine::h200()).expect("a plan");
    let agents = plan.agents.iter().filter(|agent| agent.rank == 1);
    let mut items = agents.flat_map(|agent| {
        let steps = |item: &Item| &agent.steps[item.start as usize..item.end as usize];
        agent.items.iter().map(steps)
    });
    let computes = |steps: &&[Step]| {
        steps
            .iter()
            .any(|step| matches!(step.kind, StepKind::Store { .. }))
    };
    let item = items.rfind(computes);
    let word = |kind: &StepKind| match kind {
        StepKind::Wait { counter, cell, .. } => {
            format!(
                "wait {}[{cell}]",
                kernel.counters[usize::from(counter.0)].name
            )
        }
        StepKind::Signal { .. } => "signal".into(),
        StepKind::Copy { .. } => "copy".into(),
        StepKind::Dot { .. } => "dot".into(),
        StepKind::Reduce { from, .. } => format!("add {}", from.slot),
        StepKind::OwnTerm { of, .. } => format!("own {}", of.slot),
        StepKind::Load { .. } => "load".into(),
        StepKind::Store { .. } => "store".into(),
    };
    let steps = item.expect("it stores");
    steps.iter().map(|step| word(&step.kind)).collect()
}

#[test]
fn each_slot_is_waited_for_and_added_before_the_next_is_waited_for() {
    assert_eq!(
        last_item(&far_cells(0), 4),
        [
            "dot",
            "wait landed[1]",
            "add 0",
            "own 1",
            "wait landed[9]",
            "add 2",
            "wait landed[13]",
            "add 3",
            "store"
        ]
    );
}

/// With a wait of another kind between, which comes once; and with a statement before the product.
#[test]
fn what_does_not_stand_directly_before_a_sum_comes_before_all_of_it() {
    for before_the_product in [false, true] {
        let mut s = ScheduleBuilder::new("flagged");
        let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
        let y = s.reduce_scattered("y", Bf16);
        let tiles = s.tiles("tiles", y, (4, 8));
        let partial = s.symmetric("partial", Bf16, y.shard(), world());
        let landed = s.counters("landed", [world().into()]);
        let flag = s.counters("flag", [world().into()]);
        s.gemm(GemmOptions::default(), |s| {
            s.for_items("t", tiles.of(me()), |s, t| {
                let landed = landed.at(others());
                if before_the_product {
                    s.wait(landed.clone());
                }
                let mine = s.dot(x.at(t), w.at(t));
                if !before_the_product {
                    s.wait(landed);
                    s.wait(flag.at(me()));
                }
                let theirs = s.sum(partial.at(others()).at(t));
                s.store(y.at(t), mine + theirs);
                s.for_ranks("peer", ranks(), |s, peer| {
                    s.signal(flag.on(&peer).at(&peer), 1);
                });
            });
        });
        s.comm(1u32, |s| s.signal(landed.on(0).at(me()), 1));
        let told = last_item(&s.finish(), 3);
        let waits = ["wait landed[0]", "wait landed[2]"];
        let (first, sums) = match before_the_product {
            true => ([&waits[..], &["dot"]].concat(), ["add 0", "add 2"]),
            false => (
                [&["dot"], &waits[..], &["wait flag[1]"]].concat(),
                ["add 0", "add 2"],
            ),
        };
        assert_eq!(told[..first.len() + 2], [&first[..], &sums[..]].concat());
    }
}

fn verdict(program: &Program, world: u32) -> Result<(), Diagnostics> {
    let kernel = verify::kernel(kernel(program, world))?;
    let shape = Shape::new(world * 4 + 3, 24, 8);
    verify::plan(&kernel, &shape, &Machine::h200()).map(|_| ())
}

/// A kernel may add a slot when its cell says so, while the cells of other slots are still to come. With arithmetic that hides
/// that up to a world of eight, it is found in the plan's own world, and the emulator finds it there, too.
#[test]
fn a_slot_that_another_cell_announces_is_read_too_early() {
    // Sums of codes have no own term, and their kernel waits slot by slot. Others wait for all of the slots first.
    for (world, codes) in (2..=16).flat_map(|world| [(world, false), (world, true)]) {
        let verdict = |shift: i64| {
            let kernel = match codes {
                false => kernel(&far_cells(shift), world),
                true => in_codes(&far_cells(shift), world),
            };
            let (tile, n) = if codes { (64, 128) } else { (4, 24) };
            let shape = Shape::new(world * tile + 3, n, 8);
            let kernel = verify::kernel(kernel)?;
            verify::plan(&kernel, &shape, &Machine::h200()).map(|_| ())
        };
        verdict(0).unwrap_or_else(|error| panic!("{world} ranks: {error}"));
        if world < 9 {
            verdict(2).unwrap_or_else(|error| panic!("{world} ranks: {error}"));
            continue;
        }
        let refused = verdict(2).expect_err("other cells");
        assert_eq!(refused.first().rule, Rule::Race, "{world} ranks: {refused}");
    }
    let kernel = kernel(&far_cells(2), 9);
    let plan = Plan::new(&kernel, &Shape::new(36, 8, 8), &Machine::h200()).expect("a plan");
    let fails = |seed| {
        let options = Options::seed(seed).tags_only();
        interp::provoke(&kernel, &[vec![&plan]], &options, |_, _| {}).is_err()
    };
    assert!((0..40).any(fails), "no interleaving reads too early");
}

/// One counter for two acknowledgements: the second follows the first, so one that has come is the first.
#[test]
fn acknowledgements_of_one_counter_come_in_turn() {
    for world in [1, 2, 3, 5] {
        let program = acknowledged_in_turn(false);
        let kernel = kernel(&program, world);
        let checked = verify::kernel(kernel.clone()).unwrap_or_else(|error| panic!("{error}"));
        let shape = Shape::new(13, 24, 8);
        verify::plan(&checked, &shape, &Machine::h200())
            .unwrap_or_else(|error| panic!("{world} ranks: {error}"));
        let plans = [Plan::new(&kernel, &shape, &Machine::h200()).expect("a plan")];
        judge::provoke(&kernel, &plans, 0..16).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            judge::unlike_reference(&kernel, &plans),
            None,
            "{world} ranks"
        );
    }
    let refused =
        verdict(&acknowledged_in_turn(true), 3).expect_err("the second slot is still read");
    assert_eq!(refused.first().rule, Rule::Race, "{refused}");
}
