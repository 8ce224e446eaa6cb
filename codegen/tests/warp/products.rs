//! Several products in an item: one load of what they share, accumulators for each, and one value of all of them.

use crate::fixtures::left_out::unnoticed;
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::{Bf16, F16};
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::sm90;
use counterflow_codegen::value::{Unary, Value};
use counterflow_codegen::variant::{Layout, Variant};
use counterflow_codegen::verify;
use counterflow_codegen::warp::{Elements, FragmentOp, Node, Pipeline, Source};
use counterflow_emitter as cuda;

type Tile = (u32, u32);

/// What an item stores, of the tiles of `x`, `gate` and `up`, and of `v` beside them.
type Of = fn(&mut ScheduleBuilder, &[TensorRef; 4], Item) -> Value;

/// `silu(x · gateᵀ) · (x · upᵀ)`.
fn swiglu(s: &mut ScheduleBuilder, [x, gate, up, _]: &[TensorRef; 4], t: Item) -> Value {
    s.dot(x.at(t), gate.at(t)).silu() * s.dot(x.at(t), up.at(t))
}

fn program(tile: Tile, options: GemmOptions, of: Of) -> Program {
    let mut s = ScheduleBuilder::new("products");
    let operands = ["x", "gate", "up", "v"].map(|name| s.local(name, Bf16));
    let y = s.out("y", Bf16);
    let tiles = s.tiles("tiles", y, tile);
    s.gemm(options, |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let value = of(s, &operands, t);
            s.store(y.at(t), value);
        });
    });
    s.finish()
}

fn ping_pong() -> GemmOptions {
    GemmOptions {
        ping_pong: Some(Tune::from(true)),
        ..GemmOptions::default()
    }
}

fn cluster(ctas: (u32, u32)) -> GemmOptions {
    GemmOptions {
        cluster: Some(Tune::from(ctas)),
        ..GemmOptions::default()
    }
}

fn built(program: &Program, layout: Layout) -> Result<Pipeline, String> {
    let kernel = lower(program, &Variant::new(1).layout(layout)).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
    sm90::build(&kernel).map_err(|error| error.first().text(&|_| String::new()))
}

fn good() -> Pipeline {
    let program = program((128, 128), GemmOptions::default(), swiglu);
    built(&program, Layout::Nt).unwrap_or_else(|error| panic!("{error}"))
}

/// What the verifier says of a pipeline that one thing was done to.
fn verdict(mut pipeline: Pipeline, change: impl FnOnce(&mut Pipeline)) -> String {
    change(&mut pipeline);
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

/// Every sort of tile, and what computes its products: the same instructions where they fit, or some of their own.
#[test]
fn products_of_every_sort_of_tile() {
    let plain = GemmOptions::default;
    let cases: [(Tile, GemmOptions, Layout, usize); 15] = [
        ((128, 128), plain(), Layout::Nt, 1),
        ((128, 112), plain(), Layout::Nt, 1),
        ((256, 80), plain(), Layout::Nt, 1),
        ((128, 80), ping_pong(), Layout::Nt, 1),
        ((64, 128), plain(), Layout::Nt, 1),
        ((128, 128), cluster((2, 1)), Layout::Nt, 1),
        ((128, 96), cluster((1, 2)), Layout::Nt, 1),
        ((128, 128), plain(), Layout::Nn, 1),
        ((128, 128), plain(), Layout::Tn, 1),
        // Blocks of an MN-major operand that its tile does not fill: nothing follows without a gap.
        ((128, 96), plain(), Layout::Nn, 2),
        // Their columns are on the M side, of each instruction those of one.
        ((80, 128), plain(), Layout::Nt, 2),
        ((104, 64), ping_pong(), Layout::Nt, 2),
        ((72, 128), ping_pong(), Layout::Nt, 2),
        ((80, 128), plain(), Layout::Nn, 2),
        ((80, 128), cluster((1, 2)), Layout::Nt, 2),
    ];
    for (tile, options, layout, multiplies) in cases {
        let what = format!("{tile:?} {options:?} {}", layout.name());
        let program = program(tile, options, swiglu);
        let pipeline = built(&program, layout).and_then(|pipeline| {
            verify::pipeline(pipeline).map_err(|error| error.first().text(&|_| String::new()))
        });
        let pipeline = pipeline.unwrap_or_else(|error| panic!("{what}: {error}"));
        let tiling = pipeline.tiling();
        assert_eq!(tiling.operands().len(), 3, "{what}: x comes once");
        assert_eq!(tiling.products(), [[0, 1], [0, 2]], "{what}");
        assert_eq!(tiling.multiplies().len(), multiplies, "{what}");
    }
}

#[test]
fn products_have_accumulators_of_their_own_where_no_instruction_has_both() {
    let program = program((80, 128), GemmOptions::default(), swiglu);
    let pipeline = built(&program, Layout::Nt).unwrap_or_else(|error| panic!("{error}"));
    let pipeline = verify::pipeline(pipeline).unwrap_or_else(|error| panic!("{error}"));
    let text = cuda::emit(&pipeline).text;
    let multiply = text.find("float acc").expect("accumulators");
    insta::assert_snapshot!(&text[multiply..]);
}

/// Products that share the weights, that share nothing, and that are the same.
#[test]
fn other_products() {
    let operands = |of: Of| {
        let program = program((128, 64), GemmOptions::default(), of);
        let pipeline = built(&program, Layout::Nt).unwrap_or_else(|error| panic!("{error}"));
        let pipeline = verify::pipeline(pipeline).unwrap_or_else(|error| panic!("{error}"));
        let parts = pipeline.rings[0].parts().iter();
        let names = parts.map(|part| part.name.as_str()).collect::<Vec<_>>();
        (names.join(" "), pipeline.tiling().products().to_vec())
    };
    let weights = operands(|s, [x, w, _, v], t| s.dot(x.at(t), w.at(t)) * s.dot(v.at(t), w.at(t)));
    assert_eq!(weights, ("x v gate".into(), vec![[0, 2], [1, 2]]));
    let little = operands(|s, [x, w, u, v], t| {
        s.dot(x.at(t), w.at(t)) - s.dot(v.at(t), u.at(t)) * s.dot(x.at(t), u.at(t))
    });
    let products = vec![[0, 2], [1, 3], [0, 3]];
    assert_eq!(little, ("x v gate up".into(), products));
    let same = operands(|s, [x, w, ..], t| s.dot(x.at(t), w.at(t)) * s.dot(x.at(t), w.at(t)));
    assert_eq!(same, ("x gate".into(), vec![[0, 1]]));
    let beside = operands(|s, [x, w, u, v], t| {
        let product = s.dot(x.at(t), w.at(t)) + s.dot(x.at(t), u.at(t));
        product * s.load(v.at(t))
    });
    assert_eq!(beside.0, "x gate up");
}

/// Each product stored as it is, in an output of its own.
#[test]
fn a_store_of_each() {
    let mut s = ScheduleBuilder::new("each");
    let [x, q, k, v] = ["x", "q", "k", "v"].map(|name| s.local(name, F16));
    let outputs = ["to_q", "to_k", "to_v"].map(|name| s.out(name, F16));
    let tiles = s.tiles("tiles", outputs[0], (128, 80));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            for (w, y) in [q, k, v].iter().zip(&outputs) {
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
            }
        });
    });
    let pipeline = built(&s.finish(), Layout::Nt).unwrap_or_else(|error| panic!("{error}"));
    let swapped = verdict(pipeline.clone(), |pipeline| {
        first(pipeline, |node| match node {
            Node::Fragment(FragmentOp::WriteSubtile { elements, .. }) => {
                *elements = Elements::Product(2);
                true
            }
            _ => false,
        });
    });
    assert!(
        swapped.contains("the schedule stores another value there"),
        "{swapped}"
    );
    let pipeline = verify::pipeline(pipeline).unwrap_or_else(|error| panic!("{error}"));
    let text = cuda::emit(&pipeline).text;
    assert!(text.contains("subtile_store<T, SUBTILE_N>(acc + TILE_N / 2 + part * SUBTILE_N / 2,"));
    assert!(
        text.contains("subtile_store<T, SUBTILE_N>(acc + 2 * TILE_N / 2 + part * SUBTILE_N / 2,")
    );
}

/// Changes the first node that `change` changes.
fn first(pipeline: &mut Pipeline, mut change: impl FnMut(&mut Node) -> bool) {
    let mut done = false;
    pipeline.lists(&mut |list| {
        for node in list {
            done = done || change(node);
        }
    });
    assert!(done);
}

#[test]
fn nothing_of_it_can_be_left_out() {
    insta::assert_snapshot!(unnoticed(good), @"
    AwaitStores
    ");
}

#[test]
fn an_operand_that_is_not_behind_the_other() {
    insta::assert_snapshot!(verdict(good(), |pipeline| {
        let stages = pipeline.rings[0].buffer.as_mut().expect("stages");
        let (places, bytes) = (stages.places, stages.parts[1].bytes);
        let after = stages.parts[1].at + places * bytes;
        stages.parts[1].stride = bytes;
        let up = &mut stages.parts[2];
        (up.at, up.stride, up.behind) = (after, bytes, false);
    }), @"
    error[race]: multiply of block 0 on rank 0 multiplies x of stage 0 by gate of stage 1
      = load of block 0 on rank 0 loads rows 0..128, columns 64..128 of gate (shard or slot 0) on rank 0 into gate of stage 1 for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

#[test]
fn products_in_each_others_place() {
    insta::assert_snapshot!(verdict(good(), |pipeline| {
        for param in &mut pipeline.epilogues[0].params {
            if let Source::Product(product) = &mut param.from {
                *product = 1 - *product;
            }
        }
    }), @"
    error[coverage]: store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 0..64 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = the schedule stores another value there
    ");
}

#[test]
fn an_operand_that_is_loaded_twice() {
    insta::assert_snapshot!(verdict(good(), |pipeline| {
        let map = |node: &Node| match node {
            Node::Load { part: 1, map, partial_boxes, .. } => Some((*map, partial_boxes.clone())),
            _ => None,
        };
        let mut gate = None;
        pipeline.lists(&mut |list| gate = gate.take().or_else(|| list.iter().find_map(map)));
        let (of_gate, partial) = gate.expect("a load");
        first(pipeline, |node| match node {
            Node::Load { part: 2, map, partial_boxes, .. } => {
                (*map, *partial_boxes) = (of_gate, partial.clone());
                true
            }
            _ => false,
        });
    }), @"
    error[coverage]: multiply of block 0 on rank 0 multiplies x of stage 0 by up of stage 0
      = a stage does not hold one tile of each operand
    ");
}

/// The stages are given back in time, but accumulators are read while the last step is multiplied into them.
#[test]
fn accumulators_that_are_read_too_early() {
    insta::assert_snapshot!(verdict(good(), |pipeline| {
        pipeline.lists(&mut |list| {
            let last = |node: &Node| *node == Node::MmaWait { pending: 0 };
            let Some(at) = list.iter().position(last) else {
                return;
            };
            // The wait, and the arrival after it, come after the subtiles were written.
            let late: Vec<Node> = list.drain(at..at + 2).collect();
            list.extend(late);
        });
    }), @"
    error[race]: multiply of block 0 on rank 0 applies y_value to subtile 0
      = multiplies into `acc_gate` are under way
      help: `wgmma_wait` for all groups of an item before its accumulators are named
    ");
}

/// Of two products with instructions of their own, one.
#[test]
fn a_product_that_is_not_multiplied() {
    let program = program((80, 128), GemmOptions::default(), swiglu);
    for multiply in [0, 1] {
        let pipeline = built(&program, Layout::Nt).unwrap_or_else(|error| panic!("{error}"));
        let found = verdict(pipeline, |pipeline| {
            pipeline.lists(&mut |list| {
                list.retain(
                    |node| !matches!(node, Node::Mma { multiply: at, .. } if *at == multiply),
                );
            });
        });
        assert!(
            found.contains("the schedule stores another value there"),
            "{found}"
        );
    }
    // Twice the first.
    let pipeline = built(&program, Layout::Nt).unwrap_or_else(|error| panic!("{error}"));
    insta::assert_snapshot!(verdict(pipeline, |pipeline| first(pipeline, |node| match node {
        Node::Mma { multiply, .. } if *multiply == 1 => {
            *multiply = 0;
            true
        }
        _ => false,
    })), @"
    error[coverage]: multiply of block 0 on rank 0 multiplies x of stage 1 by gate of stage 1
      = its operands are not the next of its tile's along K
    ");
}

fn refused(tile: Tile, options: GemmOptions, of: Of) -> String {
    match built(&program(tile, options, of), Layout::Nt) {
        Ok(_) => "accepted".into(),
        Err(error) => error,
    }
}

#[test]
fn what_has_no_pipeline() {
    insta::assert_snapshot!(refused((128, 160), GemmOptions::default(), swiglu), @"
    error[resources]: tiles of 128x160 of 2 products
      help: 2 products an item have tiles of up to 128x128
    ");
    insta::assert_snapshot!(refused((256, 96), GemmOptions::default(), swiglu), @"
    error[resources]: tiles of 256x96 of 2 products
      help: 2 products an item have tiles of up to 256x80
    ");
    let split = GemmOptions {
        split: Some(Tune::from(2)),
        ..GemmOptions::default()
    };
    insta::assert_snapshot!(refused((128, 128), split, swiglu), @"
    error[resources]: 2 CTAs that split the K of several products
      help: split = 1, or one product an item
    ");
    insta::assert_snapshot!(refused((128, 128), GemmOptions::default(), |s, [x, gate, up, _], t| {
        let acc = s.accumulator("acc");
        s.accumulate(&acc, x.at(t), gate.at(t));
        s.accumulate(&acc, x.at(t), up.at(t));
        acc
    }), @"
    error[resources]: a second product into an accumulator
      help: an accumulator each, and their sum in what is stored: `dot(..) + dot(..)`
    ");
}

/// Products that do not go through the same steps.
#[test]
fn products_of_two_depths() {
    let mut s = ScheduleBuilder::new("depths");
    let [x, gate, z, up] = ["x", "gate", "z", "up"].map(|name| s.local(name, Bf16));
    let y = s.out("y", Bf16);
    let tiles = s.tiles("tiles", y, (128, 64));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let value = s.dot(x.at(t), gate.at(t)) * s.dot(z.at(t), up.at(t));
            s.store(y.at(t), value);
        });
    });
    let found = built(&s.finish(), Layout::Nt).err().unwrap_or_default();
    insta::assert_snapshot!(found, @"
    error[resources]: products of another type or depth beside each other
      help: operands of one type, whose K is the same: they come step by step, together; or store one in a loop of its own, and add its tile: `+ z[t]`
    ");
}

/// Sums of stored tiles are added to one product.
#[test]
fn products_and_a_sum() {
    let mut s = ScheduleBuilder::new("summed");
    let [x, gate, up] = ["x", "gate", "up"].map(|name| s.local(name, Bf16));
    let y = s.reduce_scattered("y", Bf16);
    let tiles = s.tiles("tiles", y, (128, 128));
    let partial = s.symmetric("partial", Bf16, y.shard(), world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let value = s.dot(x.at(t), gate.at(t)) + s.dot(x.at(t), up.at(t));
                s.store(partial.on(&owner).at(me()).at(t), value);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            let mine = s.dot(x.at(t), gate.at(t)) + s.dot(x.at(t), up.at(t));
            s.wait(landed.at(others()).at(t));
            let theirs = s.sum(partial.at(others()).at(t));
            s.store(y.at(t), mine + theirs);
        });
    });
    let found = built(&s.finish(), Layout::Nt).err().unwrap_or_default();
    insta::assert_snapshot!(found, @"
    error[resources]: a sum of stored tiles, beside several products
      help: one product an item that adds stored tiles, or tiles that are added one by one: `+ z[t]`
    ");
}

/// A branch that has one of two products.
#[test]
fn a_branch_with_fewer_products() {
    let mut s = ScheduleBuilder::new("fewer");
    let [x, gate, up] = ["x", "gate", "up"].map(|name| s.local(name, Bf16));
    let y = s.out("y", Bf16);
    let tiles = s.tiles("tiles", y, (128, 128));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            s.when_else(
                Cond::compare(Comparison::Eq, me() % 2, 0),
                |s| {
                    let value = s.dot(x.at(t), gate.at(t)).silu() * s.dot(x.at(t), up.at(t));
                    s.store(y.at(t), value);
                },
                |s| {
                    let value = s.dot(x.at(t), gate.at(t));
                    s.store(y.at(t), value);
                },
            );
        });
    });
    let found = built(&s.finish(), Layout::Nt).err().unwrap_or_default();
    insta::assert_snapshot!(found, @"
    error[resources]: an item with fewer products than others
      help: the same products in each branch, or a loop for each
    ");
}

/// Where numbers are positive, `relu` and `abs` do nothing: a kernel that forgets them is found all the same.
#[test]
fn a_function_that_changes_negative_numbers_alone() {
    let rectified: Of = |s, [x, w, ..], t| s.dot(x.at(t), w.at(t)).relu();
    let absolute: Of =
        |s, [x, w, ..], t| Value::Unary(Unary::Abs, Box::new(s.dot(x.at(t), w.at(t))));
    for of in [rectified, absolute] {
        let made = || {
            let program = program((128, 128), GemmOptions::default(), of);
            built(&program, Layout::Nt).unwrap_or_else(|error| panic!("{error}"))
        };
        verify::pipeline(made()).unwrap_or_else(|error| panic!("{error}"));
        let stored = verdict(made(), |pipeline| {
            first(pipeline, |node| match node {
                Node::Fragment(FragmentOp::WriteSubtile { elements, .. }) => {
                    *elements = Elements::Product(0);
                    true
                }
                _ => false,
            });
        });
        let applied = verdict(made(), |pipeline| {
            let epilogue = &mut pipeline.epilogues[0];
            epilogue.value = Value::Acc(epilogue.params[0].acc);
        });
        for found in [stored, applied] {
            assert!(
                found.contains("the schedule stores another value there"),
                "{found}"
            );
        }
    }
}
