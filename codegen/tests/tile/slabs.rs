//! Gathers in slabs of rows and K, which a product waits for before it begins: proved, run, and refused where one is missing.

use crate::fixtures::slabs::{Counted, Mistake, WAYS, gathered, scales_apart, wrong};
use crate::generator::judge;
use counterflow_codegen::diag::Rule;
use counterflow_codegen::dtype::Dtype::E4M3;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::model::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Arch, Scales, Variant};
use counterflow_codegen::verify;

const SLAB: (u32, u32) = (4, 16);
/// Two slabs and a part of one.
const K: u32 = 40;

fn kernel(program: &Program, world: u32) -> Kernel {
    let variant = Variant::new(world).arch(Arch::Cpu).set("tiles", (8, 16));
    lower(program, &variant).unwrap_or_else(|error| panic!("{}: {error}", program.name))
}

#[test]
fn slabs_are_proved_and_run_in_every_world() {
    for way in WAYS {
        for counted in [Counted::Each, Counted::ByRows] {
            let program = gathered(way, counted, SLAB);
            for world in 1..=8 {
                let kernel = kernel(&program, world);
                let checked = verify::kernel(kernel.clone())
                    .unwrap_or_else(|error| panic!("{}, {world} ranks: {error}", program.name));
                // Whole chunks, a short last one, and fewer rows than ranks.
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

/// Elements in slabs and their scales in pieces have the numbers of both.
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

/// What is said of three ranks with whole chunks.
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
    for counted in [Counted::Each, Counted::ByRows] {
        let (rule, message) = refused(&wrong(counted, SLAB, Mistake::OneSlabFewer));
        insta::allow_duplicates! { insta::assert_snapshot!(format!("{rule:?}: {message}"), @"Race: gemm of rank 0 reads rows 8..12, columns 0..16 of x on rank 0, which nobody has written"); }
    }
}
