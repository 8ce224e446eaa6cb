//! Names of sizes, and products of which two sides have one size.

use crate::fixtures::square::{by_itself, lora, through_scratch};
use crate::fixtures::strangers::{slots_for_peers, summed_by_everyone};
use crate::generator::judge;
use counterflow_codegen::builder::ScheduleBuilder;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Arch, Variant};
use counterflow_codegen::verify;

fn kernel(program: &Program, world: u32) -> Kernel {
    let small =
        |variant: Variant, name: &str| match program.tunables.iter().any(|it| it.name == name) {
            true if name == "rows" => variant.set(name, 4),
            true => variant.set(name, (4, 8)),
            false => variant,
        };
    let names = ["tiles", "hidden_tiles", "rows"];
    let variant = names
        .into_iter()
        .fold(Variant::new(world).arch(Arch::Cpu), small);
    lower(program, &variant).unwrap_or_else(|error| panic!("{}: {error}", program.name))
}

/// Accepted, and with the numbers of its statements.
fn is_right(program: &Program, world: u32, shape: &Shape) {
    let kernel = kernel(program, world);
    let name = &program.name;
    let checked = verify::kernel(kernel.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    verify::plan(&checked, shape, &Machine::h200())
        .unwrap_or_else(|error| panic!("{name}, {world} ranks: {error}"));
    let plan = Plan::new(&kernel, shape, &Machine::h200()).expect("a plan");
    let plans = [plan];
    judge::provoke(&kernel, &plans, 0..8).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(
        judge::unlike_reference(&kernel, &plans),
        None,
        "{name}, {world} ranks"
    );
}

#[test]
fn two_sides_of_a_product_may_have_one_size() {
    for world in [1, 2, 3] {
        is_right(
            &through_scratch(),
            world,
            &Shape::new(13, 16, 16).dim("y.columns", 8),
        );
        for rows in [8, 16, 24] {
            is_right(&by_itself(false), world, &Shape::new(rows, rows, 40));
        }
    }
}

#[test]
fn ranks_divide_one_side_of_a_product() {
    let refused = lower(&by_itself(true), &Variant::new(2)).expect_err("refused");
    insta::assert_snapshot!(refused.first().text(&|_| String::new()), @"
    error[language]: the rows and the columns of `dot(x, x)` over tiles of `y` have one size, which the ranks divide
      help: ranks divide one side of a product: take an operand that each rank has all of (`Local`), or a tensor of its own for the other side
    ");
}

#[test]
fn scratch_has_a_number_of_slots() {
    let mut s = ScheduleBuilder::new("no_slot");
    let y = s.out("y", Bf16);
    let _ = s.symmetric("z", Bf16, y.whole(), 0u32);
    let refused = lower(&s.finish(), &Variant::new(2)).expect_err("refused");
    let found = refused.iter().find(|found| found.message.contains("slots"));
    insta::assert_snapshot!(found.expect("slots").text(&|_| String::new()), @"
    error[language]: `z` has 0 slots
      help: write `slots = world()`, `slots = world() - 1`, or a number from 1 to 1024
    ");
}

#[test]
fn sums_over_everyone_are_right() {
    for world in [1, 2, 3, 5] {
        for program in [summed_by_everyone(), slots_for_peers()] {
            is_right(&program, world, &Shape::new(13, 8, 8));
        }
    }
}

/// The adapter's depth is its own, wherever its product stands.
#[test]
fn sizes_have_the_names_of_what_a_caller_gives() {
    for adapter_first in [false, true] {
        let kernel = kernel(&lora(adapter_first), 2);
        let size = |tensor: &str, columns: bool| {
            let mut buffers = kernel.buffers.iter();
            let buffer = buffers.find(|it| it.name == tensor).expect(tensor);
            let dim = if columns { buffer.columns } else { buffer.rows };
            kernel.dims[usize::from(dim.0)].name.as_str()
        };
        let sizes = [
            ("x", false),
            ("x", true),
            ("y", true),
            ("w", true),
            ("b", true),
        ];
        let named = sizes.map(|(tensor, columns)| size(tensor, columns));
        assert_eq!(named, ["m", "k", "n", "k", "b.columns"], "{adapter_first}");
    }
}

/// The reference has a caller's sizes where the kernel has them: no two of these are alike.
#[test]
fn the_reference_gives_sizes_the_same_names() {
    let shape = Shape::new(13, 24, 16).dim("b.columns", 8);
    for adapter_first in [false, true] {
        for world in [1, 2] {
            is_right(&lora(adapter_first), world, &shape);
        }
    }
}
