//! Partial sums that lose their scales, and kernels that have none to send.

use super::{THEIRS, built, program, variant};
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, me, others, world};
use counterflow_codegen::dtype::Dtype::{Bf16, E4M3};
use counterflow_codegen::kernel::{Block, Kernel, Op, OpKind};
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::{Program, StoreMode};
use counterflow_codegen::variant::{Arch, Scales, Variant};
use counterflow_codegen::verify;
use counterflow_codegen::warp::{Expr, FragmentOp, Node, Pipeline, ReadInto, ScalesTo};

/// What is said of a schedule in a variant.
fn said(program: &Program, variant: &Variant) -> String {
    let found = built(program, variant).map(|_| ()).expect_err("refused");
    found.first().text(&|_| String::new())
}

#[test]
fn schedules_that_send_no_tiles_once() {
    let of = |name: &str| {
        let program = program(name);
        let tiles = program.tunables.iter().any(|it| it.name == "tiles");
        let variant = Variant::new(4).quantised_reduction(THEIRS);
        let variant = if tiles {
            variant.set("tiles", (128, 128))
        } else {
            variant
        };
        said(&program, &variant)
    };
    insta::assert_snapshot!(of("gemm"), @"
    error[shape]: partial sums of e4m3 for gemm, which adds up no tiles of scratch
      help: a schedule that sends tiles once and adds them by `partial[others()][t].sum()`; what adds on its way, or in memory, rounds at each addition
    ");
    insta::assert_snapshot!(of("gemm_rs_add"), @"
    error[shape]: partial sums of e4m3 for gemm_rs_add, which adds up no tiles of scratch
      help: a schedule that sends tiles once and adds them by `partial[others()][t].sum()`; what adds on its way, or in memory, rounds at each addition
    ");
}

#[test]
fn tiles_and_values_that_have_no_scales() {
    let gemm_rs = program("gemm_rs");
    let of = |tile: (u32, u32)| variant(2, THEIRS).set("tiles", tile);
    insta::assert_snapshot!(said(&gemm_rs, &of((128, 160))), @"
    error[coverage]: `partial` has scales of 1×128, and tiles of 160 columns
      help: a multiple of 128 columns: a tile makes the scales of whole blocks
    ");
    insta::assert_snapshot!(said(&gemm_rs, &of((128, 160)).arch(Arch::Cpu)), @"
    error[coverage]: `partial` has scales of 1×128, and tiles of 160 columns
      help: a multiple of 128 columns: a tile makes the scales of whole blocks
    ");
    let whole = variant(2, THEIRS).dtype(E4M3).scales(Scales::PerTensor);
    insta::assert_snapshot!(said(&gemm_rs, &whole), @"
    error[resources]: partial sums with scales of 1×128 of values that are computed, in tiles of 128x128
      help: products as they are: of bf16 or f16, or of FP8 with scales of blocks, which go into the sum; or partial sums of the schedule's type
    ");
    for eps in [-1.0, f32::INFINITY, f32::NAN] {
        let told = said(&gemm_rs, &variant(2, THEIRS.with_eps(eps)));
        assert!(told.contains("a finite eps of 0 or more"), "{told}");
    }
    let both = variant(2, THEIRS).output_scales(THEIRS);
    let mut s = ScheduleBuilder::new("both");
    let (x, w, z) = (s.local("x", Bf16), s.local("w", Bf16), s.out("z", Bf16));
    let y = s.reduce_scattered("y", Bf16);
    let tiles = s.tiles("tiles", y, (128, 128));
    let partial = s.symmetric("partial", Bf16, y, world());
    let _ = z;
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            let sum = s.sum(partial.at(others()).at(t));
            s.store(y.at(t), product + sum);
        });
    });
    insta::assert_snapshot!(said(&s.finish(), &both), @"
    error[shape]: partial sums of FP8 in both, beside outputs whose scales launches make
      help: one of them in a launch
    ");
}

/// The ops of a kernel's items.
fn ops(kernel: &mut Kernel, edit: &mut dyn FnMut(&mut Op)) {
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

/// What the tile level says of a kernel that does otherwise.
fn wrong(mut edit: impl FnMut(&mut OpKind)) -> String {
    let mut kernel = lower(&program("gemm_rs"), &variant(2, THEIRS)).expect("it is legal");
    ops(&mut kernel, &mut |op| edit(&mut op.kind));
    let found = verify::kernel(kernel).map(|_| ()).expect_err("refused");
    found.first().text(&|_| String::new())
}

#[test]
fn partial_sums_that_lose_their_scales() {
    let added = wrong(|op| {
        if let OpKind::Store { mode, dst, .. } = op
            && dst.home.is_remote()
        {
            *mode = StoreMode::Add;
        }
    });
    insta::assert_snapshot!(added, @"
    error[coverage]: `partial` is added to, but its scales are of what is stored at once
      help: one sum in what is stored: `y[t] = dot(..) + ..`; or another type for it
    ");
    let alone = wrong(|op| {
        if let OpKind::Reduce { acc, from, .. } = op {
            *op = OpKind::Load {
                acc: *acc,
                from: from.clone(),
            };
        }
    });
    insta::assert_snapshot!(alone, @"
    error[race]: `partial` is used without its scales
      help: a sum of its slots, `partial[others()][t].sum()`, which reads them, too
    ");
}

/// What the verifier of warps says where scales are sent or read otherwise.
fn broken(name: &str, edit: impl Fn(&mut Vec<Node>, usize)) -> String {
    let pipeline = built(&program("gemm_rs"), &variant(2, THEIRS));
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
    let text = found.first().text(&|_| String::new());
    text.lines().take(3).collect::<Vec<_>>().join("\n")
}

fn op_name(op: &FragmentOp) -> &'static str {
    match op {
        FragmentOp::Quantize {
            to: ScalesTo::Registers,
            ..
        } => "make",
        FragmentOp::Quantize {
            to: ScalesTo::Slot { .. },
            ..
        } => "send",
        FragmentOp::ReadTileScales { .. } => "read",
        FragmentOp::WriteSubtile { .. } => "subtile",
        FragmentOp::ReadSubtile {
            into: ReadInto::Product { .. },
            ..
        } => "add",
        _ => "",
    }
}

fn with(edit: fn(&mut FragmentOp)) -> impl Fn(&mut Vec<Node>, usize) {
    move |list: &mut Vec<Node>, at: usize| {
        if let Node::Fragment(op) = &mut list[at] {
            edit(op);
        }
    }
}

#[test]
fn scales_that_warps_lose() {
    let unmade = broken("make", |list, at| drop(list.remove(at)));
    insta::assert_snapshot!(unmade, @"
    error[coverage]: multiply of block 0 on rank 0 writes the scales of subtile 0 to partial.scale on rank 1 for tile (0, 0)
      = no scales were made of what this subtile is
    ");
    let unsent = broken("send", |list, at| drop(list.remove(at)));
    insta::assert_snapshot!(unsent, @"
    error[race]: multiply of block 0 on rank 0 reads partial.scale for tile (0, 0)
      = not everything that the schedule orders before it came before it
      = conflicting accesses of 0 elements came before it in its launch, where 64 should
    ");
    let unread = broken("read", |list, at| drop(list.remove(at)));
    insta::assert_snapshot!(unread, @"
    error[coverage]: multiply of block 0 on rank 0 reads w of stage 5 for tile (0, 0)
      = no scales were read for it
    ");
    let alone = with(|op| {
        if let FragmentOp::ReadSubtile {
            into: ReadInto::Product { scaled, .. },
            ..
        } = op
        {
            *scaled = false;
        }
    });
    insta::assert_snapshot!(broken("add", alone), @"
    error[coverage]: multiply of block 0 on rank 0 reads w of stage 5 for tile (0, 0)
      = its codes are added without their scales
    ");
    let unscaled = with(|op| {
        if let FragmentOp::WriteSubtile { scaled, .. } = op {
            *scaled = false;
        }
    });
    insta::assert_snapshot!(broken("subtile", unscaled), @"
    error[coverage]: store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 0..64 of partial (shard or slot 0) on rank 1 for tile (0, 0)
      = it is not multiplied by its scales
    ");
}

/// Behind the last arrival that lets the storing thread announce the tile; before the wait for what the loading thread waited for;
/// and without its wait for the launch before.
#[test]
fn scales_that_nothing_orders() {
    let of = || {
        built(&program("gemm_rs"), &variant(2, THEIRS)).unwrap_or_else(|error| panic!("{error}"))
    };
    let said = |pipeline: Pipeline| {
        let found = verify::pipeline(pipeline).map(|_| ()).expect_err("refused");
        let text = found.first().text(&|_| String::new());
        text.lines().take(3).collect::<Vec<_>>().join("\n")
    };
    let mut late = of();
    let mut taken = Vec::new();
    late.lists(&mut |list| {
        let sends = |node: &Node| {
            matches!(
                node,
                Node::Fragment(FragmentOp::Quantize {
                    to: ScalesTo::Slot { .. },
                    ..
                })
            )
        };
        if let Some(at) = list.iter().position(sends) {
            taken.push(list.remove(at));
        }
        let makes = |node: &Node| {
            matches!(
                node,
                Node::Fragment(FragmentOp::Quantize {
                    to: ScalesTo::Registers,
                    ..
                })
            )
        };
        taken.splice(0..0, list.iter().find(|node| makes(node)).cloned());
    });
    assert_eq!(taken.len(), 2);
    let zero = Node::Let {
        name: "part".into(),
        value: 0.into(),
    };
    let mut behind = Some([vec![zero], taken].concat());
    late.lists(&mut |list| {
        let has = |node: &Node| {
            let mut found = false;
            node.visit(&mut |node| {
                found |= matches!(
                    node,
                    Node::Fragment(FragmentOp::Quantize {
                        to: ScalesTo::Registers,
                        ..
                    })
                )
            });
            found && matches!(node, Node::For { .. })
        };
        if let Some(at) = list.iter().position(has) {
            list.splice(at + 1..at + 1, behind.take().into_iter().flatten());
        }
    });
    insta::assert_snapshot!(said(late), @"
    error[race]: multiply of block 0 on rank 0 reads partial.scale for tile (1, 0)
      = multiply of block 0 on rank 1 writes the scales of subtile 0 to partial.scale on rank 0 for tile (1, 0)
      = nothing orders these two
    ");
    let early = broken("read", |list, at| {
        let read = list.remove(at);
        list.insert(at - 1, read);
    });
    insta::assert_snapshot!(early, @"
    error[race]: multiply of block 0 on rank 0 reads partial.scale for tile (0, 0)
      = not everything that the schedule orders before it came before it
      = conflicting accesses of 0 elements came before it in its launch, where 64 should
    ");
    let mut uncredited = of();
    let free = uncredited
        .kernel
        .counters
        .iter()
        .position(|it| it.name == "free_partial");
    let mut removed = false;
    uncredited.lists(&mut |list| {
        let waits = |node: &Node| matches!(node, Node::CounterWait { counter, .. } if Some(counter.index()) == free);
        if let Some(at) = list.iter().position(waits).filter(|_| !removed) {
            list.remove(at);
            removed = true;
        }
    });
    insta::assert_snapshot!(said(uncredited), @"
    error[race]: multiply of block 0 on rank 0 in the next launch writes the scales of subtile 0 to partial.scale on rank 1 for tile (0, 0)
      = multiply of block 0 on rank 1 reads partial.scale for tile (0, 0)
      = nothing orders these two
    ");
}

#[test]
fn scales_of_other_tiles() {
    let another_slot = with(|op| {
        if let FragmentOp::Quantize {
            to: ScalesTo::Slot { to, .. },
            ..
        } = op
        {
            to[1] = Expr::from(0);
        }
    });
    insta::assert_snapshot!(broken("send", another_slot), @"
    error[coverage]: multiply of block 0 on rank 1 writes the scales of subtile 0 to partial.scale on rank 2 for tile (0, 0)
      = another role or rank of the schedule writes there, not this one
    ");
    let other_rows = with(|op| {
        if let FragmentOp::Quantize {
            to: ScalesTo::Slot { rows, .. },
            ..
        } = op
        {
            rows[0] = rows[0].clone() + 8;
        }
    });
    insta::assert_snapshot!(broken("send", other_rows), @"
    error[coverage]: multiply of block 0 on rank 0 writes the scales of subtile 0 to partial.scale on rank 1 for tile (0, 0)
      = the subtile is of another place
    ");
    let of_fewer = with(|op| {
        if let FragmentOp::Quantize {
            columns,
            to: ScalesTo::Slot { .. },
            ..
        } = op
        {
            columns[1] = columns[1].clone() - 8;
        }
    });
    insta::assert_snapshot!(broken("send", of_fewer), @"
    error[coverage]: multiply of block 1 on rank 0 writes the scales of subtile 0 to partial.scale on rank 1 for tile (0, 1)
      = they are not of a whole block
    ");
    let from_another_slot = with(|op| {
        if let FragmentOp::ReadTileScales { slot, .. } = op {
            *slot = Expr::from(0);
        }
    });
    insta::assert_snapshot!(broken("read", from_another_slot), @"
    error[coverage]: multiply of block 0 on rank 0 reads w of stage 5 for tile (0, 0)
      = the scales are of another tile
    ");
    let of_other_columns = with(|op| {
        if let FragmentOp::ReadTileScales { columns, .. } = op {
            columns[0] = Expr::from(0);
        }
    });
    insta::assert_snapshot!(broken("read", of_other_columns), @"
    error[race]: multiply of block 1 on rank 0 reads partial.scale for tile (0, 1)
      = multiply of block 0 on rank 1 writes the scales of subtile 0 to partial.scale on rank 0 for tile (0, 0)
      = nothing orders these two
    ");
}
