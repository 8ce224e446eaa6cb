//! Gathers in slabs of rows and K, which a product waits for before it begins: proved, run, and refused where one is missing.

use crate::fixtures::slabs::{
    Counted, Mistake, WAYS, Way, across_by_slab, by_slab, by_slab_of, gated_by_slab, gathered,
    scales_apart, weights_by_slab, wrong,
};
use crate::fixtures::wide::in_turn;
use crate::generator::judge;
use counterflow_codegen::builder::*;
use counterflow_codegen::diag::Rule;
use counterflow_codegen::dtype::Dtype::{Bf16, E4M3};
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::unroll::StepKind;
use counterflow_codegen::variant::{Arch, Scales, Variant};
use counterflow_codegen::verify;
use counterflow_timeline::model::predict;

const SLAB: (u32, u32) = (4, 16);
/// Each case has some of these in its turn. One rank alone moves nothing.
const WORLDS: [&[u32]; 7] = [&[1, 5], &[6], &[3], &[8], &[4], &[2], &[7]];
/// Two slabs and a part of one.
const K: u32 = 40;

fn kernel(program: &Program, world: u32) -> Kernel {
    let variant = Variant::new(world).arch(Arch::Cpu).set("tiles", (8, 16));
    lower(program, &variant).unwrap_or_else(|error| panic!("{}: {error}", program.name))
}

#[test]
fn slabs_are_proved_and_run_in_every_world() {
    for (at, way) in WAYS.into_iter().enumerate() {
        for (also, counted) in [Counted::Each, Counted::ByRows].into_iter().enumerate() {
            let program = gathered(way, counted, SLAB);
            for world in in_turn(WORLDS, at + 3 * also).flatten().copied() {
                let kernel = kernel(&program, world);
                let checked = verify::kernel(kernel.clone())
                    .unwrap_or_else(|error| panic!("{}, {world} ranks: {error}", program.name));
                // Whole shards, a short last one, and fewer rows than ranks.
                for rows in [world * 10, world * 10 - 3, world.div_ceil(2)] {
                    let shape = Shape::new(rows, 24, K);
                    verify::plan(&checked, &shape, &Machine::h200())
                        .unwrap_or_else(|error| panic!("{}, {world} ranks: {error}", program.name));
                    let plan = Plan::new(&kernel, &shape, &Machine::h200());
                    let plans = [plan.expect("a plan")];
                    if let Err(failure) = judge::provoke(&kernel, &plans, 0..4) {
                        panic!("{}, {world} ranks, {rows} rows: {failure}", program.name);
                    }
                    assert_eq!(
                        judge::unlike_reference(&kernel, &plans),
                        None,
                        "{}, {world} ranks, {rows} rows",
                        program.name
                    );
                }
            }
        }
    }
}

/// Elements in slabs and their scales in chunks have the numbers of both.
#[test]
fn scales_apart_from_slabs_are_proved_and_run() {
    let program = scales_apart(SLAB);
    for world in [1, 2, 3, 8] {
        let variant = Variant::new(world).arch(Arch::Cpu).set("tiles", (8, 16));
        let kernel = lower(&program, &variant.dtype(E4M3).scales(Scales::PerRow));
        let kernel = kernel.unwrap_or_else(|error| panic!("{world} ranks: {error}"));
        let checked = verify::kernel(kernel.clone()).expect("a kernel");
        let shape = Shape::new(world * 10 - 3, 24, 48);
        verify::plan(&checked, &shape, &Machine::h200())
            .unwrap_or_else(|error| panic!("{world} ranks: {error}"));
        let plans = [Plan::new(&kernel, &shape, &Machine::h200()).expect("a plan")];
        assert_eq!(
            judge::unlike_reference(&kernel, &plans),
            None,
            "{world} ranks"
        );
    }
}

/// What is said of three ranks with whole shards.
fn refused(program: &Program) -> (Rule, String) {
    let kernel = verify::kernel(kernel(program, 3)).expect("a kernel for some shape");
    let found = verify::plan(&kernel, &Shape::new(24, 8, K), &Machine::h200());
    let found = found.expect_err("refused");
    let first = found.first();
    let at = first.at.expect("a statement");
    assert!(at.file().ends_with("slabs.rs"), "{at}");
    (first.rule, first.message.clone())
}

#[test]
fn a_product_that_waits_for_one_slab_fewer_races_with_it() {
    let program = wrong(Counted::ByRows, SLAB, Mistake::OneWaitFewer(3));
    let (rule, message) = refused(&program);
    assert_eq!(rule, Rule::Race, "{message}");
    insta::assert_snapshot!(message, @"gemm of rank 0 may read rows 8..12, columns 0..16 of x on rank 0 before they are written");
}

#[test]
fn a_slab_that_stays_behind_is_missed() {
    let missing = Mistake::OneSlabFewer;
    for program in [
        wrong(Counted::Each, SLAB, missing),
        wrong(Counted::ByRows, SLAB, missing),
        by_slab_of(Way::Push, SLAB, Bf16, missing),
    ] {
        let (rule, message) = refused(&program);
        insta::allow_duplicates! { insta::assert_snapshot!(format!("{rule:?}: {message}"), @"Race: gemm of rank 0 reads rows 8..12, columns 0..16 of x on rank 0, which nobody has written"); }
    }
}

/// A product that waits for each slab when it comes to it: the same numbers, in every world, ragged and of no depth.
#[test]
fn products_that_wait_slab_by_slab_are_proved_and_run_in_every_world() {
    let others = [
        across_by_slab(SLAB),
        gated_by_slab(SLAB),
        weights_by_slab(SLAB),
    ];
    let all = WAYS.map(|way| by_slab(way, SLAB)).into_iter().chain(others);
    for (at, program) in all.enumerate() {
        for world in in_turn(WORLDS, at).flatten().copied() {
            let kernel = kernel(&program, world);
            let checked = verify::kernel(kernel.clone())
                .unwrap_or_else(|error| panic!("{}, {world} ranks: {error}", program.name));
            for (rows, k) in [(world * 10, K), (world * 10 - 3, K), (1, K), (world, 16)] {
                let shape = Shape::new(rows, 24, k);
                verify::plan(&checked, &shape, &Machine::h200())
                    .unwrap_or_else(|error| panic!("{}, {world} ranks: {error}", program.name));
                let plans = [Plan::new(&kernel, &shape, &Machine::h200()).expect("a plan")];
                if let Err(failure) = judge::provoke(&kernel, &plans, 0..4) {
                    panic!("{}, {world} ranks, {rows}x{k}: {failure}", program.name);
                }
                assert_eq!(
                    judge::unlike_reference(&kernel, &plans),
                    None,
                    "{}, {world} ranks, {rows}x{k}",
                    program.name
                );
            }
        }
    }
}

/// Each slab is waited for, then multiplied, before the next one is waited for.
#[test]
fn each_slab_is_multiplied_before_the_next_is_waited_for() {
    let kernel = kernel(&by_slab(Way::Push, SLAB), 2);
    let plan = Plan::new(&kernel, &Shape::new(16, 16, K), &Machine::h200()).expect("a plan");
    let gemm = kernel
        .roles
        .iter()
        .position(|role| role.kind.word() == "gemm");
    let mut agents = plan.agents.iter();
    let agent = agents
        .find(|it| it.rank == 0 && Some(usize::from(it.role)) == gemm)
        .expect("an agent");
    let last = agent.items.last().expect("an item");
    let steps = &agent.steps[last.start as usize..last.end as usize];
    let mut said = String::new();
    for step in steps {
        match step.kind {
            StepKind::Wait { cell, .. } => said += &format!("wait {cell}; "),
            StepKind::Dot { a, .. } => {
                said += &format!("dot {}..{}; ", a.columns.start, a.columns.end);
            }
            _ => {}
        }
    }
    insta::assert_snapshot!(said, @"wait 6; wait 9; dot 0..16; wait 7; wait 10; dot 16..32; wait 8; wait 11; dot 32..40;");
}

/// The first thing that is said of a schedule whose tiles are computed so, or its GEMM: `x` comes in slabs of 16 columns, of 32,
/// and in whole rows.
fn told(item: impl FnOnce(&mut ScheduleBuilder, [TensorRef; 3], [CountersRef; 3], Item)) -> String {
    let mut s = ScheduleBuilder::new("told");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let moved = [
        s.tiles("slabs", x, (4, 16)),
        s.tiles("wide", x, (4, 32)),
        s.chunks("rows", x, 4),
    ];
    let tiles = s.tiles("tiles", y, (8, 16));
    let arrived = moved.map(|of| s.counters("arrived", [of.into()]));
    s.comm(4u32, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            for (of, arrived) in moved.into_iter().zip(arrived) {
                s.for_items("c", of.of(me()), |s, c| {
                    s.copy(x.on(&peer).at(c), x.at(c));
                    s.signal(arrived.on(&peer).at(c), 1);
                });
            }
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                item(s, [x, w, y], arrived, t);
            });
        });
    });
    match lower(&s.finish(), &Variant::new(3).arch(Arch::Cpu)) {
        Ok(kernel) => {
            let text = kernel.text();
            text[text.rfind("  for t in").unwrap_or(0)..].to_string()
        }
        Err(found) => found.first().text(&|_| String::new()),
    }
}

/// Behind the product it would be for nothing that this reads.
#[test]
fn a_wait_slab_by_slab_stands_before_its_product() {
    let said = told(|s, [x, w, y], [slabs, ..], t| {
        let product = s.dot(x.at(t), w.at(t));
        s.wait_by_slab(slabs.at(t.rows()));
        s.store(y.at(t), product);
    });
    insta::assert_snapshot!(said, @"
    error[language]: a wait slab by slab, and no product behind it
      help: a product waits for the slabs of an operand as it comes to them: `dot(x[t].wait(arrived[t.rows()]), w[t])`
    ");
}

#[test]
fn a_product_takes_turns_with_slabs_of_one_width() {
    let said = told(|s, [x, w, y], [slabs, wide, _], t| {
        s.wait_by_slab(slabs.at(t.rows()));
        s.wait_by_slab(wide.at(t.rows()));
        let product = s.dot(x.at(t), w.at(t));
        s.store(y.at(t), product);
    });
    insta::assert_snapshot!(said, @"
    error[language]: one product waits for slabs of 16 and of 32 columns
      help: slabs of one width, or a wait for all of one operand before the product
    ");
}

/// Products that read the same slabs wait for them together, and chunks of whole rows are waited for before the first.
#[test]
fn the_kernel_says_what_waits_slab_by_slab() {
    let said = told(|s, [x, w, y], [slabs, _, rows], t| {
        let products = [0, 1].map(|_| {
            s.wait_by_slab(slabs.at(t.rows()));
            s.dot(x.at(t), w.at(t))
        });
        s.wait_by_slab(rows.at(t.rows()));
        let third = s.dot(x.at(t), w.at(t));
        let [first, second] = products;
        s.store(y.at(t), first + second + third);
    });
    insta::assert_snapshot!(said, @"
    for t in tiles[shard]
      wait arrived[t.rows] slab by slab
      acc0 += dot(x[t.rows, :], w[t.columns, :])
      acc1 += dot(x[t.rows, :], w[t.columns, :])
      wait arrived[t.rows]
      acc2 += dot(x[t.rows, :], w[t.columns, :])
      y[t] = acc0 + acc1 + acc2
    ");
}

/// The model: the product of what a peer sends begins with the first slab, and takes as long as in one piece.
#[test]
fn a_product_is_predicted_to_begin_with_the_first_slab() {
    let total = |program: &Program, world: u32, shape: &Shape| {
        let kernel = lower(program, &Variant::new(world)).expect("a kernel");
        let plan = Plan::new(&kernel, shape, &Machine::h200()).expect("a plan");
        predict(&kernel, &plan, &Machine::h200())
            .expect("a timeline")
            .total
    };
    let slab = (128, 512);
    let (within, before) = (
        by_slab(Way::Pull, slab),
        gathered(Way::Pull, Counted::Each, slab),
    );
    // Few rows of many columns: there is less to multiply before they arrive than the link takes.
    let few = Shape::new(512, 5120, 8192);
    let [within_k, before_k] = [&within, &before].map(|program| total(program, 2, &few));
    assert!(within_k < 0.97 * before_k, "{within_k} and {before_k}");
    let [within_k, before_k] = [&within, &before].map(|program| total(program, 1, &few));
    assert!(
        (within_k / before_k - 1.0).abs() < 1e-3,
        "{within_k} and {before_k}"
    );
}
