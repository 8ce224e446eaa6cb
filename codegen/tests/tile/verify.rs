//! The verifier on good schedules: every library schedule, every world, ragged shapes.

use crate::fixtures::library;
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Arch, Variant};
use counterflow_codegen::verify;

#[test]
fn every_library_schedule_is_accepted_for_every_world_and_ragged_shapes() {
    let machine = Machine::h200();
    for program in library::all() {
        for world in 1..=8 {
            let variant = Variant::new(world).arch(Arch::Cpu);
            let chunks = program
                .tunables
                .iter()
                .any(|tunable| tunable.name == "chunks");
            let variant = variant.set("tiles", (4, 8));
            let variant = if chunks {
                variant.set("chunks", 3)
            } else {
                variant
            };
            let kernel =
                lower(&program, &variant).unwrap_or_else(|e| panic!("{}: {e}", program.name));
            let kernel = verify::kernel(kernel).unwrap_or_else(|e| panic!("{}: {e}", program.name));
            for m in [1, 2, 7, 8, 31, 64, 100] {
                let shape = Shape::new(m, 24, 16);
                verify::plan(&kernel, &shape, &machine)
                    .unwrap_or_else(|e| panic!("{} world {world} m {m}: {e}", program.name));
            }
        }
    }
}

/// A slot of an exchanged tensor is named, and written once.
#[test]
fn an_exchanged_tensor_is_written_slot_by_slot() {
    let mut s = ScheduleBuilder::new("exchange");
    let (x, w) = (s.local("x", Dtype::Bf16), s.local("w", Dtype::Bf16));
    let y = s.all_to_all("y", Dtype::Bf16);
    let tiles = s.tiles("tiles", y, (128, 256));
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("owner", ranks(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.on(&owner).at(t), product.clone());
                s.store(y.everywhere().at(me()).at(t), product.clone());
                s.store_add(y.on(&owner).at(me()).at(t), product);
            });
        });
    });
    let refused = lower(&s.finish(), &Variant::new(2)).expect_err("refused");
    let told: Vec<String> = refused
        .iter()
        .map(|found| found.text(&|_| String::new()))
        .collect();
    insta::assert_snapshot!(told.join("\n"), @"
    error[language]: `y` has several slots
      help: name one: `y[me()][t]`

    error[language]: each rank holds a different shard of `y`, so its rows are not on every rank
      help: address the owner with `.on(rank)`, or use memory that is whole on each rank

    error[language]: `y` is AllToAll: a slot holds what one rank sends, and nothing is added to it
      help: add the terms first and store their sum; a sum over ranks is ReduceScattered
    ");
}

/// Nothing is added to a gathered result; a gathered input is not computed.
#[test]
fn a_gathered_result_is_stored_and_an_input_is_copied() {
    let mut s = ScheduleBuilder::new("added");
    let (x, w) = (s.local("x", Dtype::Bf16), s.local("w", Dtype::Bf16));
    let (y, z) = (
        s.gathered_output("y", Dtype::Bf16),
        s.gathered("z", Dtype::Bf16),
    );
    let tiles = s.tiles("tiles", y, (4, 8));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store_add(y.on(0).at(t), product.clone());
            s.store(z.at(t), product);
        });
    });
    let refused = lower(&s.finish(), &Variant::new(2)).expect_err("refused");
    let told: Vec<String> = refused
        .iter()
        .map(|found| found.text(&|_| String::new()))
        .collect();
    insta::assert_snapshot!(told.join("\n"), @"
    error[language]: `y` is Gathered: rows hold what one rank computes, and nothing is added to it
      help: add the terms first and store their sum; a sum over ranks is AllReduced

    error[language]: `z` is an input
      help: write to Out, Accumulated, ReduceScattered, AllReduced, AllToAll, a gathered output or symmetric memory; copies may also fill a gathered input
    ");
}

/// What is said of a loop over some items.
fn some(of: impl Fn(ItemsRef) -> ItemsRef) -> String {
    let mut s = ScheduleBuilder::new("some");
    let (x, y) = (s.local("x", Dtype::Bf16), s.out("y", Dtype::Bf16));
    let tiles = s.tiles("tiles", y, (4, 8));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", of(tiles.all()), |s, t| {
            let read = s.load(x.at(t));
            s.store(y.at(t), read);
        });
    });
    let kernel = lower(&s.finish(), &Variant::new(2).arch(Arch::Cpu));
    let plan = kernel.and_then(|kernel| {
        Plan::new(&kernel, &Shape::new(16, 8, 8), &Machine::h200()).map(|_| kernel)
    });
    let refused = plan.map(|_| ()).expect_err("refused");
    refused.first().text(&|_| String::new())
}

#[test]
fn a_selection_has_one_step_and_numbers_that_are_none_below_zero() {
    insta::assert_snapshot!(some(|all| all.step_by(2).step_by(2)), @"
    error[language]: `step_by` twice in one selection
      help: keep one, the product of both: `.step_by(6)` for `.step_by(2).step_by(3)`
    ");
    insta::assert_snapshot!(some(|all| all.step_by(me())), @"error[bounds]: `step_by(me)` has no value on rank 0: a step is from 1 to 65536");
    insta::assert_snapshot!(some(|all| all.step_by(65537)), @"error[bounds]: `step_by(65537)` has no value on rank 0: a step is from 1 to 65536");
    insta::assert_snapshot!(some(|all| all.skip(me() - 1)), @"error[bounds]: `skip(me - 1)` has no value on rank 0: it is negative");
    insta::assert_snapshot!(some(|all| all.take(me() - 1)), @"error[bounds]: `take(me - 1)` has no value on rank 0: it is negative");
}

/// What lowering says of a copy from a tensor, or a vector, to a gathered one.
fn copied(dtype: Dtype, vector: bool) -> String {
    let mut s = ScheduleBuilder::new("copies");
    let x = s.gathered("x", Dtype::Bf16);
    let chunks = s.chunks("chunks", x, 3);
    let z = if vector {
        s.vector("z", dtype)
    } else {
        s.local("z", dtype)
    };
    s.comm(2, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(&peer).at(c), z.at(c));
            });
        });
    });
    let refused = lower(&s.finish(), &Variant::new(2).arch(Arch::Cpu)).expect_err("refused");
    refused.first().text(&|_| String::new())
}

#[test]
fn a_copy_moves_bytes_that_mean_the_same_on_both_sides() {
    insta::assert_snapshot!(copied(Dtype::F32, false), @r"
    error[language]: `z` is f32, but is copied to `x`, which is bf16
      help: a copy moves bytes unchanged: both sides have one element type
    ");
    insta::assert_snapshot!(copied(Dtype::Bf16, true), @r"
    error[language]: `z` is a vector, but is copied to rows of `x`
      help: a copy moves rows and columns unchanged
    ");
}

/// What lowering says of waits for what an item's rows and columns hold.
#[test]
fn a_side_indexes_what_is_divided_as_it_is() {
    let mut s = ScheduleBuilder::new("sides");
    let (x, w, y) = (
        s.local("x", Dtype::Bf16),
        s.gathered("w", Dtype::Bf16),
        s.out("y", Dtype::Bf16),
    );
    let (chunks, tiles) = (s.chunks("chunks", w, 3), s.tiles("tiles", y, (4, 8)));
    let [arrived, done] =
        [("arrived", chunks), ("done", tiles)].map(|(name, of)| s.counters(name, [of.into()]));
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.signal(arrived.at(t.columns()), 1);
                s.wait(arrived.at(t.rows()));
                s.signal(done.at(t), 1);
                s.wait(done.at(t.columns()));
                s.wait(done.at(t.rows()));
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
            });
        });
    });
    let refused = lower(&s.finish(), &Variant::new(2)).expect_err("refused");
    let told: Vec<String> = refused
        .iter()
        .map(|found| found.text(&|_| String::new()))
        .collect();
    insta::assert_snapshot!(told.join("\n"));
}
