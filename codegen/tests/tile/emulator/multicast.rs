//! Every rank's memory at once: what it means, in every world, and what is refused of it, each with its story.

use super::meaning::agrees;
use crate::fixtures::multicast::{self, SMALL};
use crate::fixtures::wide::wide;
use counterflow_codegen::bits::BitsClass;
use counterflow_codegen::builder::*;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Arch, Variant};
use counterflow_codegen::verify;
use counterflow_emulator::{self as interp, Input, Options};
use std::collections::BTreeSet;

#[test]
fn what_reaches_every_rank_is_what_programs_say_in_every_world() {
    for world in 1..=8 {
        // The sample has a third of the programs in each world, in turn.
        for (at, program) in (0..).zip(multicast::all(SMALL)) {
            if wide() || (at + world) % 3 == 0 {
                agrees(&program, &Variant::new(world), &[29, 7, 1], 24, 16);
            }
        }
    }
}

/// A GPU needs a multicast address for each of them, but not where a copy engine goes to one rank after another.
#[test]
fn who_needs_a_multicast_address() {
    let needs = |program: &Program| {
        let kernel = lower(program, &Variant::new(3)).expect("a kernel");
        kernel.needs_multicast()
    };
    for program in multicast::all(SMALL) {
        assert!(needs(&program), "{}", program.name);
    }
    let copied = |engine: bool| {
        let mut s = ScheduleBuilder::new("copied");
        let x = s.gathered("x", Bf16);
        let chunks = s.chunks("chunks", x, 2);
        let arrived = s.counters("arrived", [chunks.into()]);
        let body = |s: &mut ScheduleBuilder| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.everywhere().at(c), x.at(c));
                s.signal(arrived.everywhere().at(c), 1);
            });
        };
        match engine {
            true => s.copy_engine(body),
            false => s.comm(1, body),
        }
        s.finish()
    };
    assert!(needs(&copied(false)));
    assert!(!needs(&copied(true)));
}

/// Numbers of which no sum of three is exact.
fn thirds(input: Input<'_>, values: &mut [f32]) {
    for (at, value) in values.iter_mut().enumerate() {
        *value = (1.0 + at as f32 * 0.37 + input.rank as f32 * 5.1) / 3.0;
    }
}

/// The switch adds in an order of its own: the emulator draws it, and a variant that promises bits refuses it.
#[test]
fn the_order_of_a_sum_is_the_switchs() {
    let sizes = multicast::Sizes {
        dtype: counterflow_codegen::dtype::Dtype::F32,
        ..SMALL
    };
    let variant = Variant::new(8).arch(Arch::Cpu);
    let kernel = lower(&multicast::gemm_ar(sizes), &variant).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|found| panic!("{found}"));
    let shape = Shape::new(8, 8, 8);
    let series = verify::series(&kernel, &shape, &Machine::h200()).expect("legal");
    let plan = series.plan(&shape).expect("legal");
    let bits = |seed| {
        let outcome = interp::run(&series, &[&plan], &Options::seed(seed), thirds);
        let outcome = outcome.unwrap_or_else(|failure| panic!("{failure}"));
        let outputs = outcome.outputs.into_iter().flat_map(|output| output.values);
        outputs.map(f32::to_bits).collect::<Vec<_>>()
    };
    assert_eq!(bits(3), bits(3), "a seed says it");
    let all: BTreeSet<Vec<u32>> = (0..8).map(bits).collect();
    assert!(all.len() > 1, "and another one another order");
    assert!(matches!(BitsClass::of(&kernel), Err(found)
        if found.iter().any(|it| it.message.contains("in an order of its own"))));
}

/// Ranks that add to every rank's memory do so as they come.
#[test]
fn the_order_of_adds_is_nobodys() {
    let variant = Variant::new(4).arch(Arch::Cpu);
    let kernel = lower(&multicast::added(SMALL), &variant).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|found| panic!("{found}"));
    let found = BitsClass::of(&kernel).expect_err("no class of bits");
    let told = found.first().message.clone();
    assert!(told.contains("in the order in which they come"), "{told}");
}

/// A schedule with something wrong, and what is said of it first.
fn said(program: &Program) -> String {
    fn first<T>(result: Result<T, Diagnostics>) -> Result<T, String> {
        result.map_err(|found| found.first().text(&|_| String::new()))
    }
    let all = || {
        let kernel = first(lower(program, &Variant::new(3).arch(Arch::Cpu)))?;
        let kernel = first(verify::kernel(kernel))?;
        let shape = Shape::new(29, 24, 16);
        first(verify::plan(&kernel, &shape, &Machine::h200()))
    };
    let found = all().err().unwrap_or_else(|| "accepted".into());
    format!("{}: {found}\n", program.name)
}

/// y of rows that ranks compute, by what an item and then all ranks do.
fn results(
    name: &str,
    item: impl Fn(&mut ScheduleBuilder, TensorRef, CountersRef, Value, Item),
) -> Program {
    let mut s = ScheduleBuilder::new(name);
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.gathered_output("y", Bf16);
    let tiles = s.tiles("tiles", y, (4, 8));
    let done = s.counters("done", [tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            item(s, y, done, product, t);
        });
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| s.wait(done.at(t)));
        });
    });
    s.finish()
}

/// y = all_reduce(x · wᵀ), by what the owner of a tile does with every rank's part.
fn sums(
    name: &str,
    signals: bool,
    owner: impl Fn(&mut ScheduleBuilder, [TensorRef; 2], [CountersRef; 2], Item),
) -> Program {
    let mut s = ScheduleBuilder::new(name);
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.all_reduced("y", Bf16);
    let tiles = s.tiles("tiles", y, (4, 8));
    let partial = s.symmetric("partial", Bf16, y.whole(), 1);
    let ready = s.counters("ready", [world().into(), tiles.into()]);
    let done = s.counters("done", [tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("peer", ranks().from_me(), |s, peer| {
            s.for_items("t", tiles.of(&peer), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                s.store(partial.at(t), product);
                if signals {
                    s.signal(ready.on(&peer).at(me()).at(t), 1);
                }
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            owner(s, [partial, y], [ready, done], t)
        });
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| s.wait(done.at(t)));
        });
    });
    s.finish()
}

/// y of parts that are added everywhere: whether the owner's comes first, and is waited for.
fn adds(name: &str, begins: bool, waits: bool, all: bool) -> Program {
    let mut s = ScheduleBuilder::new(name);
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.all_reduced("y", Bf16);
    let tiles = s.tiles("tiles", y, (4, 8));
    let begun = s.counters("begun", [tiles.into()]);
    let done = s.counters("done", [world().into(), tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            if begins {
                s.store(y.everywhere().at(t), product);
            }
            s.signal(begun.everywhere().at(t), 1);
        });
        let who = if all {
            ranks().from_me()
        } else {
            ranks().after_me()
        };
        s.for_ranks("owner", who, |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                if waits {
                    s.wait(begun.at(t));
                }
                s.store_add(y.everywhere().at(t), product);
                s.signal(done.everywhere().at(me()).at(t), 1);
            });
        });
        s.for_ranks("owner", ranks().from_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                s.wait(done.at(everyone()).at(t))
            });
        });
    });
    s.finish()
}

/// What has no meaning there, of a tensor of some kind.
fn meaningless(
    name: &str,
    kind: fn(&mut ScheduleBuilder) -> TensorRef,
    what: impl Fn(&mut ScheduleBuilder, TensorRef, [TensorRef; 3], Item),
) -> Program {
    let mut s = ScheduleBuilder::new(name);
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let z = kind(&mut s);
    let tiles = s.tiles("tiles", y, (4, 8));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| what(s, z, [x, w, y], t));
    });
    s.finish()
}

#[test]
fn what_is_wrong_with_every_ranks_memory_has_its_story() {
    let rightly = |s: &mut ScheduleBuilder, [partial, y]: [TensorRef; 2], done: CountersRef, t| {
        let sum = s.sum(partial.everywhere().at(t));
        s.store(y.everywhere().at(t), sum);
        s.signal(done.everywhere().at(t), 1);
    };
    let broken = [
        results("a_signal_before_its_store", |s, y, done, product, t| {
            s.signal(done.everywhere().at(t), 1);
            s.store(y.everywhere().at(t), product);
        }),
        results("a_signal_to_this_rank_alone", |s, y, done, product, t| {
            s.store(y.everywhere().at(t), product);
            s.signal(done.on(me()).at(t), 1);
        }),
        results("a_store_to_this_rank_alone", |s, y, done, product, t| {
            s.store(y.at(t), product);
            s.signal(done.everywhere().at(t), 1);
        }),
        results("a_store_twice", |s, y, done, product, t| {
            s.store(y.everywhere().at(t), product.clone());
            s.store(y.at(t), product);
            s.signal(done.everywhere().at(t), 1);
        }),
        sums(
            "a_sum_before_a_grant",
            true,
            |s, tensors, [ready, done], t| {
                s.wait(ready.at(others()).at(t));
                rightly(s, tensors, done, t);
            },
        ),
        sums(
            "a_sum_without_a_signal",
            false,
            |s, tensors, [_, done], t| {
                rightly(s, tensors, done, t);
            },
        ),
        sums(
            "a_sum_and_this_ranks_part_again",
            true,
            |s, [partial, y], [ready, done], t| {
                s.wait(ready.at(everyone()).at(t));
                let sum = s.sum(partial.everywhere().at(t)) + s.load(partial.at(t));
                s.store(y.everywhere().at(t), sum);
                s.signal(done.everywhere().at(t), 1);
            },
        ),
        adds("adds_without_a_beginning", false, true, false),
        adds("adds_that_do_not_wait", true, false, false),
        adds("the_owners_part_twice", true, true, true),
        meaningless(
            "a_store_beyond_a_shard",
            |s| s.reduce_scattered("z", Bf16),
            |s, z, [x, w, _], t| {
                let product = s.dot(x.at(t), w.at(t));
                s.store(z.everywhere().at(t), product);
            },
        ),
        meaningless(
            "what_peers_cannot_reach",
            |s| s.out("z", Bf16),
            |s, z, [x, w, _], t| {
                let product = s.dot(x.at(t), w.at(t));
                s.store(z.everywhere().at(t), product);
            },
        ),
        meaningless(
            "every_copy_but_no_sum",
            |s| s.gathered("z", Bf16),
            |s, z, [_, _, y], t| {
                let all = s.load(z.everywhere().at(t));
                s.store(y.at(t), all);
            },
        ),
        meaningless(
            "a_product_of_every_copy",
            |s| s.gathered("z", Bf16),
            |s, z, [_, w, y], t| {
                let product = s.dot(z.everywhere().at(t), w.at(t));
                s.store(y.at(t), product);
            },
        ),
    ];
    let said: String = broken.iter().map(said).collect();
    assert!(!said.contains("accepted"), "{said}");
    insta::assert_snapshot!(said, @"
    a_signal_before_its_store: error[reuse]: rows 10..14, columns 0..8 of y are written on rank 0 by rank 1, perhaps after rank 0's launch has ended
      = gemm of rank 1 writes rows 10..14, columns 0..8 of y everywhere
      = no role of rank 0 waits for a signal that comes after it
      help: signal the owner afterwards, and let one of its roles wait for that signal before its launch ends

    a_signal_to_this_rank_alone: error[reuse]: rows 10..14, columns 0..8 of y are written on rank 0 by rank 1, perhaps after rank 0's launch has ended
      = gemm of rank 1 writes rows 10..14, columns 0..8 of y everywhere
      = no role of rank 0 waits for a signal that comes after it
      help: signal the owner afterwards, and let one of its roles wait for that signal before its launch ends

    a_store_to_this_rank_alone: error[coverage]: nobody writes rows 10..14, columns 0..8 of y on rank 0
      help: every element of an output is written once, on every rank that holds it

    a_store_twice: error[coverage]: rows 0..4, columns 0..8 of y on rank 0 is written 2 times
      = gemm of rank 0 writes rows 0..4, columns 0..8 of y everywhere
      = gemm of rank 0 writes rows 0..4, columns 0..8 of y
      help: every element of an output is written once; `+=` adds to it

    a_sum_before_a_grant: error[race]: gemm of rank 0 may read rows 0..4, columns 0..8 of partial on rank 0 before they are written
      = gemm of rank 0 writes rows 0..4, columns 0..8 of partial
      = then gemm of rank 0 adds 1 to ready[0][0] on rank 0
      = gemm of rank 0 waits for ready[2][0]
      = gemm of rank 0 waits for ready[1][0]
      help: items of a role run on different CTAs: let the item that writes signal after the data, and the item that reads wait for that same cell

    a_sum_without_a_signal: error[race]: gemm of rank 0 may read rows 0..4, columns 0..8 of partial on rank 0 before they are written
      = gemm of rank 0 writes rows 0..4, columns 0..8 of partial
      = gemm of rank 0 signals nothing after it in that item
      = gemm of rank 0 waits for nothing before it in that item
      help: items of a role run on different CTAs: let the item that writes signal after the data, and the item that reads wait for that same cell

    a_sum_and_this_ranks_part_again: error[coverage]: rows 0..4, columns 0..8 of y on rank 0 holds the contribution of rank 0 twice
      = gemm of rank 0 writes rows 0..4, columns 0..8 of y everywhere
      help: each rank's contribution must be summed once

    adds_without_a_beginning: error[coverage]: rows 0..4, columns 0..8 of y on rank 0 is added to, but nobody writes it
      = gemm of rank 1 adds to rows 0..4, columns 0..8 of y everywhere
      = gemm of rank 2 adds to rows 0..4, columns 0..8 of y everywhere
      help: write it first, or make it Accumulated: the launch then adds to what it held before

    adds_that_do_not_wait: error[race]: two accesses to rows 0..4, columns 0..8 of y on rank 0 are not ordered, and one of them writes
      = gemm of rank 0 writes rows 0..4, columns 0..8 of y everywhere
      = gemm of rank 1 adds to rows 0..4, columns 0..8 of y everywhere
      = then gemm of rank 0 adds 1 to begun[0] on rank 0
      = then gemm of rank 0 adds 1 to begun[0] on rank 1
      = then gemm of rank 0 adds 1 to begun[0] on rank 2
      = gemm of rank 1 waits for ready_y[2]
      = gemm of rank 1 waits for ready_y[0]
      help: items of a role run on different CTAs: let the item that writes signal after the data, and the item that reads wait for that same cell

    the_owners_part_twice: error[coverage]: rows 0..4, columns 0..8 of y on rank 0 holds the contribution of rank 0 twice
      = gemm of rank 0 adds to rows 0..4, columns 0..8 of y everywhere
      = gemm of rank 0 writes rows 0..4, columns 0..8 of y everywhere
      help: each rank's contribution must be summed once

    a_store_beyond_a_shard: error[language]: each rank holds a different shard of `z`, so its rows are not on every rank
      help: address the owner with `.on(rank)`, or use memory that is whole on each rank

    what_peers_cannot_reach: error[language]: `z` is Out: peers cannot address it
      help: only Gathered, ReduceScattered, AllReduced, AllToAll and symmetric memory can be addressed on another rank

    every_copy_but_no_sum: error[language]: a load reads every rank's copy at once
      help: their sum, `z.everywhere()[t].sum()`, or one rank's

    a_product_of_every_copy: error[language]: a dot reads `z` from another rank
      help: remote tiles are not cached on the rank that reads them: copy the chunk first, and wait for it
    ");
}

/// Lanes take 16 bytes of a row each.
#[test]
fn a_row_is_whole_16_bytes() {
    for program in multicast::all(multicast::REAL) {
        let kernel = lower(&program, &Variant::new(3)).and_then(verify::kernel);
        let kernel = kernel.unwrap_or_else(|found| panic!("{found}"));
        let of = |n| verify::plan(&kernel, &Shape::new(1088, n, n), &Machine::h200());
        of(264).unwrap_or_else(|found| panic!("{}: {found}", program.name));
        let found = of(268).expect_err("refused");
        let told = found.first().text(&|_| String::new());
        assert!(told.contains("it must be a multiple of 16 bytes"), "{told}");
    }
}
