//! Scales that are not of all that is stored, once each, and kernels that make none.

use super::{THEIRS, built, program, shared, square, three_outputs};
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::dtype::Dtype::{Bf16, E4M3, E5M2, F32};
use counterflow_codegen::kernel::{Block, Kernel, Op, OpKind};
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::{Program, StoreMode};
use counterflow_codegen::variant::{Arch, Variant};
use counterflow_codegen::verify;
use counterflow_codegen::warp::{Elements, Expr, FragmentOp, Node, Pipeline, ScalesTo};

/// The ops of a kernel's items.
fn stores(kernel: &mut Kernel, edit: &mut dyn FnMut(&mut Op)) {
    fn each(body: &mut [Block], edit: &mut dyn FnMut(&mut Op)) {
        for block in body {
            match block {
                Block::ForRanks { body, .. } => each(body, edit),
                Block::Items { body, .. } => body.iter_mut().for_each(&mut *edit),
                Block::If { .. } | Block::Once { .. } | Block::Join => {}
            }
        }
    }
    for role in &mut kernel.roles {
        each(&mut role.body, edit);
    }
}

/// What the tile level says of a kernel that makes them otherwise.
fn wrong(program: &Program, mut edit: impl FnMut(&mut OpKind)) -> String {
    let mut kernel = lower(program, &square(program, 2, THEIRS)).expect("it is legal");
    stores(&mut kernel, &mut |op| edit(&mut op.kind));
    let found = verify::kernel(kernel).map(|_| ()).expect_err("refused");
    found.first().text(&|_| String::new())
}

#[test]
fn an_output_with_computed_scales_is_not_added_to() {
    let gemm = program("gemm");
    let added = wrong(&gemm, |op| {
        if let OpKind::Store { mode, .. } = op {
            *mode = StoreMode::Add;
        }
    });
    insta::assert_snapshot!(added, @"
    error[coverage]: `y` is added to, but its scales are of what is stored at once
      help: one sum in what is stored: `y[t] = dot(..) + ..`; or another type for it
    ");
}

/// Whatever reads codes in the launch that makes their scales has no scales, and what copies other codes there leaves them out.
#[test]
fn outputs_that_are_used_in_their_launch() {
    let uses = |copies: bool| {
        let mut s = ScheduleBuilder::new("used");
        let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
        let z = s.out("z", F32);
        let tiles = s.tiles("tiles", y, (128, 128));
        let rows = s.chunks("rows", y, 128);
        s.gemm(GemmOptions::default(), |s| {
            s.for_items("t", tiles.grouped(8), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
            });
            if !copies {
                s.for_items("t", tiles.grouped(8), |s, t| {
                    let again = s.load(y.at(t));
                    s.store(z.at(t), again);
                });
            }
        });
        if copies {
            s.comm(2, |s| {
                s.for_items("p", rows.all(), |s, p| s.copy(y.at(p), y.at(p)));
            });
        }
        let program = s.finish();
        let kernel = lower(&program, &square(&program, 1, THEIRS));
        let found = kernel
            .and_then(verify::kernel)
            .map(|_| ())
            .expect_err("refused");
        found.first().text(&|_| String::new())
    };
    insta::assert_snapshot!(uses(false), @"
    error[race]: `y` is used in the launch that makes its scales
      help: a launch after this one reads it, with its scales; or an output of another type
    ");
    insta::assert_snapshot!(uses(true), @"
    error[race]: `y` is used in the launch that makes its scales
      help: a launch after this one reads it, with its scales; or an output of another type
    ");
}

/// Tiles that make no whole blocks, or have no lanes, lines or registers for them.
#[test]
fn tiles_that_make_no_scales() {
    let said = |program: &Program, variant: &Variant| {
        let found = built(program, variant).map(|_| ()).expect_err("refused");
        found.first().text(&|_| String::new())
    };
    let gemm = program("gemm");
    let of = |tile: (u32, u32)| square(&gemm, 1, THEIRS).set("tiles", tile);
    insta::assert_snapshot!(said(&gemm, &of((128, 192))), @"
    error[coverage]: `y` has scales of 1×128, and tiles of 192 columns
      help: a multiple of 128 columns: a tile makes the scales of whole blocks
    ");
    let emulated = of((128, 96)).arch(Arch::Cpu);
    let found = lower(&gemm, &emulated).and_then(verify::kernel);
    insta::assert_snapshot!(found.map(|_| ()).expect_err("refused").first().text(&|_| String::new()), @"
    error[coverage]: `y` has scales of 1×128, and tiles of 96 columns
      help: a multiple of 128 columns: a tile makes the scales of whole blocks
    ");
    insta::assert_snapshot!(said(&gemm, &of((80, 128))), @"
    error[resources]: scales that are made in tiles of 80x128
      help: a multiple of 64 rows: other tiles are multiplied with their sides swapped, and the scales of a row are in no warp
    ");
    let of_two = shared((128, 128), false, 2);
    insta::assert_snapshot!(said(&of_two, &square(&of_two, 1, THEIRS)), @"
    error[resources]: 2 CTAs that share a tile of 1 subtiles of 128 columns
      help: a subtile each: `split` is at most 1
    ");
    let mut s = ScheduleBuilder::new("biased");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let bias = s.vector("bias", F32);
    let tiles = s.tiles("tiles", y, (256, 128));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            let bias = s.load(bias);
            s.store(y.at(t), product.bias(bias));
        });
    });
    let biased = s.finish();
    insta::assert_snapshot!(said(&biased, &square(&biased, 1, THEIRS)), @"
    error[resources]: scales made of what is computed in tiles of 256x128
      help: tiles of 128 rows: scales are made of 128 columns at a time, and a thread has no room for those of more rows
    ");
    let mut s = ScheduleBuilder::new("beside");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let z = s.out("z", F32);
    let tiles = s.tiles("tiles", y, (128, 128));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product.clone());
            s.store(z.at(t), product);
        });
    });
    let beside = s.finish();
    insta::assert_snapshot!(said(&beside, &square(&beside, 1, THEIRS)), @"
    error[resources]: tiles of `z` of f32, in a kernel that makes scales of 1×128
      help: a kernel whose items store and read FP8 alone: subtiles have 128 bytes a row; or quantise what it writes
    ");
}

#[test]
fn variants_that_make_no_scales() {
    let gemm = program("gemm");
    let said = |variant: Variant| {
        let found = lower(&gemm, &variant).map(|_| ()).expect_err("refused");
        found.first().text(&|_| String::new())
    };
    let made = || Variant::new(1).output_scales(THEIRS);
    insta::assert_snapshot!(said(made().output(E5M2)), @"
    error[shape]: scales of e4m3 for outputs of e5m2 in gemm
      help: outputs of the type that the rule of their scales is of
    ");
    for eps in [-1.0, f32::INFINITY, f32::NAN] {
        let told = said(Variant::new(1).output_scales(THEIRS.with_eps(eps)));
        assert!(told.contains("a finite eps of 0 or more"), "{told}");
    }
    insta::assert_snapshot!(said(made().amax(true)), @"
    error[shape]: amaxes beside scales that a launch makes in gemm
      help: one of them: an amax is for the next scale, and here every launch makes its own
    ");
    let mut s = ScheduleBuilder::new("summed");
    let (x, w, y) = (
        s.local("x", Bf16),
        s.local("w", Bf16),
        s.all_reduced("y", Bf16),
    );
    let tiles = s.tiles("tiles", y, (128, 128));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
    });
    let found = lower(&s.finish(), &made().dtype(E4M3)).map(|_| ());
    insta::assert_snapshot!(found.expect_err("refused").first().text(&|_| String::new()), @"
    error[shape]: outputs of e4m3 for summed, which has none of its first type
      help: an `Out` of the type of the first parameter, or no type for outputs
    ");
}

/// What the verifier of warps says where scales are made otherwise.
fn broken(program: &Program, name: &str, edit: impl Fn(&mut Vec<Node>, usize)) -> String {
    let pipeline = built(program, &square(program, 2, THEIRS));
    let mut pipeline = pipeline.unwrap_or_else(|error| panic!("{error}"));
    let mut changed = false;
    pipeline.lists(&mut |list| {
        let is = |node: &Node| matches!(node, Node::Fragment(op) if op_name(op) == name);
        if let Some(at) = list.iter().position(is).filter(|_| !changed) {
            edit(list, at);
            changed = true;
        }
    });
    assert!(changed, "{name}");
    let found = verify::pipeline(pipeline).map(|_| ()).expect_err("refused");
    found.first().text(&|_| String::new())
}

fn op_name(op: &FragmentOp) -> &'static str {
    match op {
        FragmentOp::Quantize {
            to: ScalesTo::Registers,
            ..
        } => "make",
        FragmentOp::Quantize {
            to: ScalesTo::Plane { .. },
            ..
        } => "write",
        FragmentOp::WriteSubtile { .. } => "subtile",
        _ => "",
    }
}

#[test]
fn scales_that_warps_do_not_make_as_they_should() {
    let gemm = program("gemm");
    let with = |edit: fn(&mut FragmentOp)| {
        move |list: &mut Vec<Node>, at: usize| {
            if let Node::Fragment(op) = &mut list[at] {
                edit(op);
            }
        }
    };
    let unmade = broken(&gemm, "make", |list, at| drop(list.remove(at)));
    insta::assert_snapshot!(unmade, @"
    error[coverage]: multiply of block 0 on rank 0 writes subtile 0 for tile (0, 0)
      = no scales were made of what this subtile is
    ");
    let unwritten = broken(&three_outputs(), "write", |list, at| drop(list.remove(at)));
    insta::assert_snapshot!(unwritten, @"error[coverage]: y.scale on rank 0 is of 0 of 82656 elements of y");
    let twice = broken(&gemm, "write", |list, at| list.insert(at, list[at].clone()));
    insta::assert_snapshot!(twice, @"
    error[coverage]: multiply of block 0 on rank 0 writes the scales of subtile 0 to y.scale for tile (0, 0)
      = some of its elements have been measured
    ");
    let unscaled = with(|op| {
        if let FragmentOp::WriteSubtile { scaled, .. } = op {
            *scaled = false;
        }
    });
    insta::assert_snapshot!(broken(&gemm, "subtile", unscaled), @"
    error[coverage]: store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 0..128 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = it is not multiplied by its scales
    ");
    let of_fewer = with(|op| {
        if let FragmentOp::Quantize {
            columns,
            to: ScalesTo::Registers,
            ..
        } = op
        {
            columns[1] = columns[1].clone() - 8;
        }
    });
    insta::assert_snapshot!(broken(&gemm, "make", of_fewer), @"
    error[coverage]: multiply of block 1 on rank 0 writes the scales of subtile 0 to y.scale for tile (0, 1)
      = they were made of other columns
    ");
    let elsewhere = with(|op| {
        if let FragmentOp::Quantize {
            to: ScalesTo::Plane { rows, .. },
            ..
        } = op
        {
            rows[0] = rows[0].clone() + 8;
        }
    });
    insta::assert_snapshot!(broken(&gemm, "write", elsewhere), @"
    error[coverage]: multiply of block 0 on rank 0 writes the scales of subtile 0 to y.scale for tile (0, 0)
      = the subtile is of another place
    ");
    let another_block = with(|op| {
        if let FragmentOp::Quantize {
            columns,
            to: ScalesTo::Plane { .. },
            ..
        } = op
        {
            columns[0] = columns[0].clone() + 128;
        }
    });
    insta::assert_snapshot!(broken(&gemm, "write", another_block), @"
    error[coverage]: multiply of block 0 on rank 0 writes the scales of subtile 0 to y.scale for tile (0, 0)
      = they were made of other columns
    ");
    let beyond = with(|op| {
        if let FragmentOp::Quantize {
            columns,
            to: ScalesTo::Plane { .. },
            ..
        } = op
        {
            columns[1] = Expr::from(1 << 20);
        }
    });
    insta::assert_snapshot!(broken(&gemm, "write", beyond), @"
    error[coverage]: multiply of block 1 on rank 0 writes the scales of subtile 0 to y.scale for tile (0, 1)
      = they were made of other columns
    ");
    let unpadded = with(|op| {
        if let FragmentOp::Quantize {
            to: ScalesTo::Plane { all, .. },
            ..
        } = op
        {
            all[1] = all[0].clone();
        }
    });
    insta::assert_snapshot!(broken(&gemm, "write", unpadded), @"
    error[coverage]: multiply of block 0 on rank 0 writes the scales of subtile 0 to y.scale for tile (0, 0)
      = its lines have other rows, or another padding
    ");
    let of_other_rows = with(|op| {
        if let FragmentOp::Quantize {
            to: ScalesTo::Plane { all, .. },
            ..
        } = op
        {
            all[0] = Expr::from(7);
        }
    });
    insta::assert_snapshot!(broken(&gemm, "write", of_other_rows), @"
    error[coverage]: multiply of block 0 on rank 0 writes the scales of subtile 0 to y.scale for tile (0, 0)
      = its lines have other rows, or another padding
    ");
    let to_another = with(|op| {
        if let FragmentOp::Quantize {
            to: ScalesTo::Plane { tensor, .. },
            ..
        } = op
        {
            tensor.0 += 2;
        }
    });
    insta::assert_snapshot!(broken(&three_outputs(), "write", to_another), @"
    error[coverage]: multiply of block 0 on rank 0 writes the scales of subtile 0 to u.scale for tile (0, 0)
      = the schedule stores another value there
    ");
    let of_nothing = with(|op| {
        if let FragmentOp::Quantize {
            elements,
            to: ScalesTo::Registers,
            ..
        } = op
        {
            *elements = Elements::Applied(1);
        }
    });
    insta::assert_snapshot!(broken(&three_outputs(), "make", of_nothing), @"
    error[coverage]: multiply of block 0 on rank 0 makes the scales of subtile 0 for tile (0, 0)
      = its epilogue was not applied to this subtile
    ");
}

/// Of fewer columns than a block has, to a tensor that is no plane, or for an output that has no scales.
#[test]
fn scales_of_other_blocks_and_tensors() {
    let said = |mut pipeline: Pipeline, edit: &dyn Fn(&mut Vec<Node>)| {
        pipeline.lists(&mut |list| edit(list));
        let found = verify::pipeline(pipeline).map(|_| ()).expect_err("refused");
        found.first().text(&|_| String::new())
    };
    let gemm = program("gemm");
    let pipeline =
        |variant: &Variant| built(&gemm, variant).unwrap_or_else(|error| panic!("{error}"));
    let part_of_a_block = said(pipeline(&square(&gemm, 2, THEIRS)), &|list| {
        for node in list {
            if let Node::Fragment(
                FragmentOp::Quantize {
                    columns,
                    to: ScalesTo::Registers,
                    ..
                }
                | FragmentOp::Quantize {
                    columns,
                    to: ScalesTo::Plane { .. },
                    ..
                },
            ) = node
            {
                columns[1] = columns[1].clone() - 8;
            }
        }
    });
    insta::assert_snapshot!(part_of_a_block, @"
    error[coverage]: multiply of block 1 on rank 0 writes the scales of subtile 0 to y.scale for tile (0, 1)
      = they are not of a whole block
    ");
    let to_no_plane = said(pipeline(&square(&gemm, 2, THEIRS)), &|list| {
        for node in list {
            if let Node::Fragment(FragmentOp::Quantize {
                to: ScalesTo::Plane { tensor, .. },
                ..
            }) = node
            {
                tensor.0 -= 1;
            }
        }
    });
    insta::assert_snapshot!(to_no_plane, @"
    error[coverage]: multiply of block 0 on rank 0 writes the scales of subtile 0 to y for tile (0, 0)
      = it is no plane of scales that a launch makes
    ");
    let given = Variant::new(2).output(E4M3).set("tiles", (128, 128));
    let for_no_plane = said(pipeline(&given), &|list| {
        let is = |node: &Node| matches!(node, Node::Fragment(FragmentOp::WriteSubtile { .. }));
        let Some(at) = list.iter().position(is) else {
            return;
        };
        let Node::Fragment(FragmentOp::WriteSubtile {
            elements,
            part,
            scaled,
            ..
        }) = &mut list[at]
        else {
            return;
        };
        *scaled = true;
        let make = FragmentOp::Quantize {
            elements: *elements,
            part: part.clone(),
            columns: [0.into(), 128.into()],
            to: ScalesTo::Registers,
        };
        list.insert(at, Node::Fragment(make));
    });
    insta::assert_snapshot!(for_no_plane, @"
    error[coverage]: store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 0..64 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = it is multiplied by scales that the tensor does not have
    ");
}

/// Scales are of what is complete: of accumulators that tensor cores still add to, or of a part of K, there are none.
#[test]
fn scales_of_sums_that_are_not_complete() {
    let moved = |split: u32, to: fn(&Node) -> bool| {
        let program = shared((128, 256), false, split);
        let mut pipeline =
            built(&program, &square(&program, 1, THEIRS)).unwrap_or_else(|error| panic!("{error}"));
        let mut make = None;
        pipeline.lists(&mut |list| {
            let is = |node: &Node| {
                matches!(
                    node,
                    Node::Fragment(FragmentOp::Quantize {
                        to: ScalesTo::Registers,
                        ..
                    })
                )
            };
            if let Some(at) = list.iter().position(is) {
                make = Some(list.remove(at));
            }
        });
        let mut make = make.expect("it makes scales");
        if let Node::Fragment(FragmentOp::Quantize {
            part,
            columns,
            to: ScalesTo::Registers,
            ..
        }) = &mut make
        {
            (*part, *columns) = (0.into(), [0.into(), 128.into()]);
        }
        let mut before = Some(make);
        pipeline.lists(&mut |list| {
            if let Some(at) = list.iter().position(to) {
                before
                    .take()
                    .into_iter()
                    .for_each(|make| list.insert(at, make));
            }
        });
        assert!(before.is_none());
        let found = verify::pipeline(pipeline).map(|_| ()).expect_err("refused");
        found.first().text(&|_| String::new())
    };
    let early = moved(1, |node| matches!(node, Node::MmaWait { pending: 0 }));
    insta::assert_snapshot!(early, @"
    error[race]: multiply of block 0 on rank 0 makes the scales of subtile 0 for tile (0, 0)
      = multiplies into `acc` are under way
      help: `wgmma_wait` for all groups of an item before its accumulators are named
    ");
    let added = |node: &Node| matches!(node, Node::Fragment(FragmentOp::AddPartial { .. }));
    insta::assert_snapshot!(moved(2, added), @"
    error[coverage]: multiply of block 0 on rank 0 writes subtile 0 for tile (0, 0)
      = no scales were made of what this subtile is
    ");
}
