//! Amaxes that are not of all that a rank computed before the scale, and kernels that have none.

use super::{built, program, square, two_outputs};
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, me, ranks};
use counterflow_codegen::dtype::Dtype::{Bf16, E4M3, F32};
use counterflow_codegen::kernel::{Block, Kernel, Op, OpKind};
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;
use counterflow_codegen::warp::{Elements, Expr, FragmentOp, Node, Test};

/// Changes every op of a kernel.
fn edited(mut kernel: Kernel, edit: &mut dyn FnMut(&mut Op)) -> Kernel {
    fn ops(body: &mut [Op], edit: &mut dyn FnMut(&mut Op)) {
        for op in body {
            edit(op);
            match &mut op.kind {
                OpKind::ForRanks { body, .. } => ops(body, edit),
                OpKind::If {
                    then, otherwise, ..
                } => {
                    ops(then, edit);
                    ops(otherwise, edit);
                }
                OpKind::Wait { .. }
                | OpKind::Signal { .. }
                | OpKind::Copy { .. }
                | OpKind::Dot { .. }
                | OpKind::Reduce { .. }
                | OpKind::Load { .. }
                | OpKind::Store { .. } => {}
            }
        }
    }
    fn blocks(body: &mut [Block], edit: &mut dyn FnMut(&mut Op)) {
        for block in body {
            match block {
                Block::ForRanks { body, .. } => blocks(body, edit),
                Block::If {
                    then, otherwise, ..
                } => {
                    blocks(then, edit);
                    blocks(otherwise, edit);
                }
                Block::Items { body, .. } | Block::Once { body } => ops(body, edit),
                Block::Join => {}
            }
        }
    }
    for role in &mut kernel.roles {
        blocks(&mut role.body, edit);
    }
    kernel
}

/// What the tile level says of a kernel that measures otherwise.
fn wrong(program: &Program, edit: &mut dyn FnMut(&mut Op)) -> String {
    let kernel = lower(program, &square(program, 2, E4M3)).expect("it is legal");
    let shape = Shape::new(260, 144, 272);
    let found = verify::kernel(edited(kernel, edit));
    let found = found.and_then(|kernel| verify::series(&kernel, &shape, &Machine::h200()));
    let found = found.map(|_| ()).expect_err("refused");
    found.first().text(&|_| String::new())
}

/// A product in two halves of the ranks' rows, each by a loop of its own.
fn two_loops() -> Program {
    let mut s = ScheduleBuilder::new("two_loops");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let chunks = s.chunks("chunks", x, 128);
    let tiles = s.tiles("tiles", y, (128, 128));
    let arrived = s.counters("arrived", [chunks.into()]);
    s.comm(2, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(&peer).at(c), x.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().before_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait(arrived.at(t.rows()));
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
            });
        });
    });
    s.finish()
}

#[test]
fn an_amax_of_other_elements() {
    let mut seen = 0;
    let half = wrong(&two_loops(), &mut |op| {
        if let OpKind::Store { amax, .. } = &mut op.kind {
            seen += 1;
            if seen == 1 {
                *amax = None;
            }
        }
    });
    insta::assert_snapshot!(half, @"
    error[coverage]: y.amax on rank 0 is of 18720 of 37440 elements of y
      help: every store of an output that has an amax measures it
    ");
    let scaled = wrong(&program("gemm"), &mut |op| {
        if let OpKind::Store {
            value,
            amax: Some(amax),
            ..
        } = &mut op.kind
        {
            amax.of = *value;
        }
    });
    insta::assert_snapshot!(scaled, @"
    error[coverage]: y.amax is made of something else than what its output gets, before the scale
      help: every store of an output that has an amax measures it
    ");
    let read = wrong(&program("gemm"), &mut |op| {
        if let OpKind::Load { from, .. } = &mut op.kind {
            // Behind the scale, which is the last of the schedule's tensors otherwise.
            from.buffer.0 += 1;
        }
    });
    insta::assert_snapshot!(read, @"
    error[race]: y.amax is used in the launch that measures, in no order with it
      help: a launch after this one reads an amax
    ");
}

/// What the verifier of warps says where a subtile is measured otherwise.
fn broken(program: &Program, edit: impl Fn(&mut Vec<Node>, usize)) -> String {
    let mut pipeline =
        built(program, &square(program, 2, E4M3)).unwrap_or_else(|error| panic!("{error}"));
    let mut changed = false;
    pipeline.lists(&mut |list| {
        let takes = |node: &Node| matches!(node, Node::Fragment(FragmentOp::Amax { .. }));
        // Not what the change puts into a list of its own.
        if let Some(at) = list.iter().position(takes).filter(|_| !changed) {
            edit(list, at);
            changed = true;
        }
    });
    assert!(changed);
    let found = verify::pipeline(pipeline).map(|_| ()).expect_err("refused");
    found.first().text(&|_| String::new())
}

#[test]
fn a_subtile_that_is_not_measured_as_it_should_be() {
    let with = |edit: fn(&mut FragmentOp)| {
        move |list: &mut Vec<Node>, at: usize| {
            if let Node::Fragment(op) = &mut list[at] {
                edit(op);
            }
        }
    };
    let left_out = broken(&two_outputs(), |list, at| drop(list.remove(at)));
    insta::assert_snapshot!(left_out, @"error[coverage]: y.amax on rank 0 is of 0 of 82656 elements of y");
    let twice = broken(&program("gemm"), |list, at| {
        list.insert(at, list[at].clone())
    });
    insta::assert_snapshot!(twice, @"
    error[coverage]: multiply of block 0 on rank 0 measures subtile 0 for y.amax for tile (0, 0)
      = some of its elements have been measured
    ");
    let beyond = broken(
        &program("ag_gemm"),
        with(|op| {
            if let FragmentOp::Amax { rows, .. } = op {
                rows[1] = Expr::from(1 << 20);
            }
        }),
    );
    insta::assert_snapshot!(beyond, @"
    error[coverage]: multiply of block 3 on rank 0 measures subtile 0 for y.amax for tile (1, 0)
      = some of what exists of its operands was not loaded
    ");
    let short = broken(
        &program("gemm"),
        with(|op| {
            if let FragmentOp::Amax { columns, .. } = op {
                columns[1] = columns[1].clone() - 8;
            }
        }),
    );
    insta::assert_snapshot!(short, @"error[coverage]: y.amax on rank 0 is of 78064 of 82656 elements of y");
    let elsewhere = broken(
        &program("gemm"),
        with(|op| {
            if let FragmentOp::Amax { rows, .. } = op {
                rows[0] = rows[0].clone() + 8;
            }
        }),
    );
    insta::assert_snapshot!(elsewhere, @"
    error[coverage]: multiply of block 0 on rank 0 measures subtile 0 for y.amax for tile (0, 0)
      = the subtile is of another place
    ");
    let unwritten = broken(&program("gemm"), |list, at| {
        let mut take = list.remove(at);
        if let Node::Fragment(FragmentOp::Amax { elements, .. }) = &mut take {
            *elements = Elements::Applied(0);
        }
        list.insert(0, take);
    });
    insta::assert_snapshot!(unwritten, @"
    error[coverage]: multiply of block 0 on rank 0 measures subtile 0 for y.amax for tile (0, 0)
      = its epilogue was not applied to this subtile
    ");
    let unlike = broken(
        &program("gemm"),
        with(|op| {
            if let FragmentOp::Amax { elements, .. } = op {
                *elements = Elements::Applied(0);
            }
        }),
    );
    insta::assert_snapshot!(unlike, @"
    error[coverage]: multiply of block 0 on rank 0 measures subtile 0 for y.amax for tile (0, 0)
      = the schedule measures another value
    ");
}

/// As many elements are measured as there are, but not each of them once.
#[test]
fn elements_that_are_measured_in_place_of_others() {
    fn only(test: Test, body: &[Node]) -> Node {
        Node::If {
            test,
            body: body.to_vec(),
        }
    }
    let by_one_group = broken(&program("gemm"), |list, at| {
        let take = list[at].clone();
        let first = Test::Equal(Expr::var("consumer"), 0.into());
        list[at] = only(first, &[take.clone(), take]);
    });
    insta::assert_snapshot!(by_one_group, @"
    error[coverage]: multiply of block 0 on rank 0 measures subtile 0 for y.amax for tile (0, 0)
      = some of its elements have been measured
    ");
    let by_half = broken(&program("gemm"), |list, at| {
        let first = Test::Equal(Expr::var("consumer"), 0.into());
        list[at] = only(first, &[list[at].clone()]);
    });
    insta::assert_snapshot!(by_half, @"error[coverage]: y.amax on rank 0 is of 0 of 82656 elements of y");
    // In the first tiles of rows, the first subtile twice and the second one never.
    let one_subtile = broken(&program("gemm"), |list, at| {
        let take = [list[at].clone()];
        let [Node::Fragment(FragmentOp::Amax { columns, .. })] = &take else {
            panic!("it measures");
        };
        let again = Test::Equal(columns[0].clone(), 0.into());
        let others = [
            Test::Differ(Expr::var("part"), 1.into()),
            Test::AtLeast(columns[0].clone(), 128.into()),
        ];
        let [part, tile] = others.map(Box::new);
        let others = Test::Or(part, tile);
        list.splice(at..=at, [only(again, &take), only(others, &take)]);
    });
    insta::assert_snapshot!(one_subtile, @"
    error[coverage]: multiply of block 0 on rank 0 measures subtile 0 for y.amax for tile (0, 0)
      = some of its elements have been measured
    ");
}

/// Tensor cores still add to what is measured.
#[test]
fn accumulators_are_measured_when_they_are_complete() {
    let gemm = program("gemm");
    let mut pipeline =
        built(&gemm, &square(&gemm, 2, E4M3)).unwrap_or_else(|error| panic!("{error}"));
    let mut take = None;
    pipeline.visit(|node| {
        if let Node::Fragment(op @ FragmentOp::Amax { .. }) = node {
            take = Some(op.clone());
        }
    });
    let mut take = take.expect("it measures");
    if let FragmentOp::Amax {
        part,
        rows,
        columns,
        ..
    } = &mut take
    {
        *part = 0.into();
        (*rows, *columns) = ([0.into(), 1.into()], [0.into(), 1.into()]);
    }
    pipeline.lists(&mut |list| {
        let waits = |node: &Node| matches!(node, Node::MmaWait { pending: 0 });
        if let Some(at) = list.iter().position(waits) {
            list.insert(at, Node::Fragment(take.clone()));
        }
    });
    let found = verify::pipeline(pipeline).map(|_| ()).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[race]: multiply of block 0 on rank 0 measures subtile 0 for y.amax for tile (0, 0)
      = multiplies into `acc` are under way
      help: `wgmma_wait` for all groups of an item before its accumulators are named
    ");
}

#[test]
fn what_has_no_amax() {
    let refused = |program: &Program, variant: &Variant| {
        let found = lower(program, variant).map(|_| ());
        found.expect_err("refused").first().text(&|_| String::new())
    };
    let plain = Variant::new(1).amax(true);
    insta::assert_snapshot!(refused(&program("gemm"), &plain), @"
    error[shape]: amaxes of outputs of the schedule's type in gemm
      help: outputs of e4m3 or e5m2, which have a scale: an amax is for the next one
    ");
    insta::assert_snapshot!(refused(&program("gemm"), &plain.clone().output(F32)), @"
    error[shape]: amaxes of outputs of f32 in gemm
      help: outputs of e4m3 or e5m2, which have a scale: an amax is for the next one
    ");
    insta::assert_snapshot!(refused(&program("gemm_rs"), &plain.output(E4M3)), @"
    error[shape]: outputs of e4m3 for gemm_rs, which has none of its first type
      help: an `Out` of the type of the first parameter, or no type for outputs
    ");
}
