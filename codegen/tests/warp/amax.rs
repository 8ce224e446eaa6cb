//! Amaxes of FP8 outputs: what kernels become, that each is of all that a rank computed before the scale, and what is refused.

use crate::fixtures::library;
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, me, ranks};
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::{self, Bf16, E4M3, E5M2, F32};
use counterflow_codegen::interp::{self, Input, Options, Outcome};
use counterflow_codegen::kernel::{Block, Kernel, Op, OpKind};
use counterflow_codegen::lower::lower;
use counterflow_codegen::model::Machine;
use counterflow_codegen::program::{Program, TensorId, TensorKind};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::value::Unary;
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_codegen::verify::{self, Series};
use counterflow_codegen::warp::{Elements, Expr, FragmentOp, Node, Pipeline, Test};
use counterflow_codegen::{cuda, sm90};
use std::collections::HashMap;

fn program(name: &str) -> Program {
    let mut all = library::all().into_iter();
    all.find(|program| program.name == name)
        .expect("a schedule")
}

/// One value stored in two outputs, one of them for half of the ranks by a loop of its own, behind functions that do not map
/// zero to zero: what is beyond the end must not count.
fn two_outputs() -> Program {
    let mut s = ScheduleBuilder::new("two_outputs");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let bias = s.vector("bias", F32);
    let (y, z) = (s.out("y", Bf16), s.out("z", Bf16));
    let tiles = s.tiles("tiles", y, (128, 128));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            let bias = s.load(bias);
            let value = product.bias(bias);
            s.store(y.at(t), value.clone().apply(Unary::Sigmoid));
            s.store(z.at(t), value);
        });
    });
    s.finish()
}

fn variant(world: u32, output: Dtype) -> Variant {
    Variant::new(world).output(output).amax(true)
}

/// The same with tiles of 128x128, where the schedule leaves them open.
fn square(program: &Program, world: u32, output: Dtype) -> Variant {
    match program.tunables.iter().any(|it| it.name == "tiles") {
        true => variant(world, output).set("tiles", (128, 128)),
        false => variant(world, output),
    }
}

fn built(program: &Program, variant: &Variant) -> Result<Pipeline, Diagnostics> {
    sm90::build(&lower(program, variant).and_then(verify::kernel)?)
}

fn series(program: &Program, variant: &Variant, shape: &Shape) -> Series {
    let kernel = lower(program, variant).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
    let series = verify::series(&kernel, shape, &Machine::h200());
    series.unwrap_or_else(|error| panic!("{error}"))
}

/// Of operands of every type, in tiles of every sort, alone and behind a gather.
#[test]
fn each_subtile_is_measured_before_its_scale() {
    let tiles = [
        (128, 128),
        (128, 256),
        (256, 128),
        (128, 192),
        (80, 128),
        (16, 256),
    ];
    let operands = [
        variant(2, E4M3),
        variant(2, E5M2).dtype(E4M3),
        variant(2, E4M3).dtype(E4M3).scales(Scales::Rows),
    ];
    let all = operands.iter().flat_map(|variant| {
        let tiles = tiles.map(|tile| variant.clone().set("tiles", tile));
        ["gemm", "ag_gemm"].map(|name| tiles.clone().map(|variant| (name, variant)))
    });
    for (name, variant) in all.flatten() {
        let pipeline = built(&program(name), &variant).and_then(verify::pipeline);
        let pipeline = pipeline.unwrap_or_else(|error| panic!("{name} {variant}: {error}"));
        let mut taken = Vec::new();
        pipeline.visit(|node| {
            if let Node::Fragment(FragmentOp::TakeAmax { elements, .. }) = node {
                taken.push(*elements);
            }
        });
        assert_eq!(taken.len(), 1, "{name} {variant}");
        // Scales of operands make a product what it stands for; then it is measured.
        let scaled = variant.scales.is_some();
        assert_eq!(
            taken[0] == Elements::Product(0),
            !scaled,
            "{name} {variant}"
        );
        let text = cuda::emit(&pipeline).text;
        assert!(
            text.contains("float* y_amax;  // one number, which grows"),
            "{text}"
        );
        assert!(
            text.contains("amax_take(plan.y_amax, largest, lane);"),
            "{text}"
        );
        // Of signed integers: as unsigned ones, a start of -0.0 is larger than every number.
        assert!(cuda::prelude().contains("red.relaxed.gpu.global.max.s32"));
    }
    let pipeline = built(&two_outputs(), &variant(3, E4M3)).and_then(verify::pipeline);
    let pipeline = pipeline.unwrap_or_else(|error| panic!("{error}"));
    let text = cuda::emit(&pipeline).text;
    let from = text.find("y_unscaled(").expect("a function");
    assert!(text[from..].contains("z_unscaled("), "{text}");
}

/// However warpgroups and CTAs share tiles, all of them together measure each element once.
#[test]
fn whoever_shares_a_tile_measures_a_part() {
    for (tile, ping_pong, split) in [
        ((128, 128), true, 1),
        ((128, 128), false, 1),
        ((256, 128), false, 1),
        ((128, 128), false, 2),
    ] {
        let mut s = ScheduleBuilder::new("shared");
        let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
        let tiles = s.tiles("tiles", y, tile);
        let options = GemmOptions {
            ping_pong: Some(ping_pong.into()),
            split: Some(split.into()),
            ..GemmOptions::default()
        };
        s.gemm(options, |s| {
            s.for_items("t", tiles.grouped(8), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
            });
        });
        let found = built(&s.finish(), &variant(2, E4M3)).and_then(verify::pipeline);
        found.unwrap_or_else(|error| panic!("{tile:?} {ping_pong} {split}: {error}"));
    }
}

#[test]
fn a_kernel_measures() {
    let gemm = program("gemm");
    let kernel = lower(&gemm, &square(&gemm, 1, E4M3)).expect("it is legal");
    let text = kernel.text();
    let line = text
        .lines()
        .find(|line| line.contains("max("))
        .expect("it measures");
    insta::assert_snapshot!(line.trim(), @"y[t] = acc0 * y.scale; y.amax = max(y.amax, |acc0|)");
    let pipeline = built(&gemm, &square(&gemm, 1, E4M3)).unwrap_or_else(|error| panic!("{error}"));
    let text = pipeline.text();
    let line = text
        .lines()
        .find(|line| line.contains("| of ["))
        .expect("it measures");
    insta::assert_snapshot!(line.trim(), @"y.amax = max(y.amax, |acc[part]| of [t.row * TILE_M..m, t.column * TILE_N + part * SUBTILE_N..n])");
    let text = cuda::emit(&verify::pipeline(pipeline).expect("it is right")).text;
    let at = text.find("float largest = 0").expect("it measures");
    let words: Vec<&str> = text[at..].split_whitespace().take(32).collect();
    insta::assert_snapshot!(words.join(" "), @"float largest = 0.0f; largest = subtile_amax<SUBTILE_N>(largest, acc + part * SUBTILE_N / 2, t.row * TILE_M + first_row, plan.m, t.column * TILE_N + part * SUBTILE_N, plan.n, lane); amax_take(plan.y_amax, largest, lane);");
}

/// The amax of a rank's launch.
fn amax(ran: &Outcome, series: &Series, (launch, rank): (usize, u32), name: &str) -> f32 {
    let mut buffers = series.kernel().buffers.iter();
    let at = buffers
        .position(|buffer| buffer.name == name)
        .expect("there");
    let output = ran
        .output(launch, rank, TensorId(at as u16))
        .expect("there");
    output.values[0]
}

/// Products of integers are exact: the amax is that of the sums, to the bit, whatever the scale is and however they saturate.
#[test]
fn an_amax_is_of_what_was_computed_before_the_scale() {
    let ((m, n, k), gemm) = ((20, 48, 32), program("gemm"));
    let held = [
        (E4M3, 0.0),
        (E5M2, 1.0),
        (E4M3, 100.0),
        (E4M3, -0.0),
        (E5M2, -100.0),
        (E4M3, f32::NEG_INFINITY),
        (E4M3, f32::NAN.copysign(-1.0)),
    ];
    for (output, before) in held {
        let shape = Shape::new(m, n, k);
        let series = series(&gemm, &square(&gemm, 1, output), &shape);
        let plan = series
            .plan(&shape)
            .unwrap_or_else(|error| panic!("{error}"));
        let mut given: HashMap<String, Vec<f32>> = HashMap::new();
        let mut fill = interp::integers(7);
        let mut inputs = |input: Input<'_>, values: &mut [f32]| {
            fill(input, values);
            match input.name {
                "y.scale" => values[0] = 65536.0,
                "y.amax" => values[0] = before,
                _ => {}
            }
            given.insert(input.name.into(), values.to_vec());
        };
        let ran = interp::run(&series, &[&plan], &Options::seed(1), &mut inputs);
        let ran = ran.unwrap_or_else(|error| panic!("{error}"));
        let known = interp::reference(series.kernel(), &plan, 0, &mut inputs);
        let known = known.unwrap_or_else(|error| panic!("{error}"));
        interp::compare_exactly(&ran, &known).unwrap_or_else(|error| panic!("{error}"));
        let depth = k as usize;
        let rows = |name: &str| {
            given[name]
                .chunks(depth)
                .map(<[f32]>::to_vec)
                .collect::<Vec<_>>()
        };
        let sums = rows("x").into_iter().flat_map(|x| {
            let of = move |w: Vec<f32>| x.iter().zip(&w).map(|(a, b)| a * b).sum::<f32>();
            rows("w").into_iter().map(of)
        });
        // What has its sign bit set counts for nothing.
        let before_it = if before.is_sign_negative() {
            0.0
        } else {
            before
        };
        let wanted = sums.fold(before_it, |most, sum| most.max(sum.abs()));
        assert!(wanted > 0.0);
        let found = amax(&ran, &series, (0, 0), "y.amax");
        assert_eq!(found, wanted, "{output} after {before}");
    }
}

/// NaN is larger than all, also where it comes first, and stays.
#[test]
fn an_amax_does_not_hide_nan() {
    let gemm = program("gemm");
    let shape = Shape::new(20, 48, 32);
    let series = series(&gemm, &square(&gemm, 1, E4M3), &shape);
    let plan = series
        .plan(&shape)
        .unwrap_or_else(|error| panic!("{error}"));
    let of = |wild: &dyn Fn(usize) -> Option<(usize, f32)>| {
        let mut fill = interp::integers(7);
        let inputs = |input: Input<'_>, values: &mut [f32]| {
            match (input.name, input.launch) {
                ("y.amax", 1..) => return,
                _ => fill(input, values),
            }
            if let Some((at, value)) = wild(input.launch).filter(|_| input.name == "x") {
                values[at] = value;
            }
        };
        let plans = [&plan, &plan, &plan];
        let ran = interp::run(&series, &plans, &Options::seed(1), inputs);
        let ran = ran.unwrap_or_else(|error| panic!("{error}"));
        [0, 1, 2].map(|launch| amax(&ran, &series, (launch, 0), "y.amax"))
    };
    let [first, second, third] = of(&|launch| (launch == 1).then_some((0, f32::NAN)));
    assert!(first.is_finite() && second.is_nan() && third.is_nan());
    let [first, second, third] = of(&|launch| (launch == 1).then_some((35, f32::INFINITY)));
    assert!(first.is_finite() && !second.is_finite() && !third.is_finite());
    let [first, second, third] = of(&|_| None);
    assert!(0.0 < first && first <= second && second <= third && third < 33.0);
}

/// Worlds of 1 to 8, with chunks that are short or empty, and functions that make something of what is not there.
#[test]
fn amaxes_of_every_rank_equal_the_reference() {
    for (program, names) in [
        (program("gemm"), vec!["y.amax"]),
        (program("ag_gemm"), vec!["y.amax"]),
        (two_outputs(), vec!["y.amax", "z.amax"]),
    ] {
        for (world, (m, n, k)) in (1..=8).zip([(130, 144, 80), (259, 272, 48)].into_iter().cycle())
        {
            let shape = Shape::new(m, n, k);
            let of = square(&program, world, [E4M3, E5M2][world as usize % 2]);
            let series = series(&program, &of, &shape);
            let plan = series
                .plan(&shape)
                .unwrap_or_else(|error| panic!("{error}"));
            let inputs = || interp::uniform(u64::from(world));
            let ran = interp::run(&series, &[&plan], &Options::seed(1), inputs());
            let mut ran = ran.unwrap_or_else(|error| panic!("{of}: {error}"));
            let known = interp::reference(series.kernel(), &plan, 0, inputs());
            let known = known.unwrap_or_else(|error| panic!("{of}: {error}"));
            interp::compare(&ran, &known).unwrap_or_else(|error| panic!("{of}: {error}"));
            for name in &names {
                let all = (0..world).map(|rank| amax(&ran, &series, (0, rank), name));
                let all: Vec<f32> = all.collect();
                assert!(
                    all.iter().all(|amax| amax.is_finite() && *amax > 0.0),
                    "{of}: {all:?}"
                );
            }
            // And the comparison looks at it.
            let kernel = series.kernel();
            let is = |tensor: TensorId| {
                matches!(kernel.buffers[tensor.index()].kind, TensorKind::Amax { .. })
            };
            let mut outputs = ran.outputs.iter_mut();
            let one = outputs.find(|output| is(output.tensor)).expect("an amax");
            one.values[0] *= 1.5;
            assert!(interp::compare(&ran, &known).is_err(), "{of}");
        }
    }
}

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
    let pieces = s.pieces("pieces", x, 128);
    let tiles = s.tiles("tiles", y, (128, 128));
    let arrived = s.counters("arrived", [pieces.into()]);
    s.comm(2, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("p", pieces.of(me()), |s, p| {
                s.copy(x.on(&peer).at(p), x.at(p));
                s.signal(arrived.on(&peer).at(p), 1);
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
        s.for_ranks("chunk", ranks().before_me(), |s, chunk| {
            s.for_items("t", tiles.of(&chunk), |s, t| {
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
        let takes = |node: &Node| matches!(node, Node::Fragment(FragmentOp::TakeAmax { .. }));
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
            if let FragmentOp::TakeAmax { rows, .. } = op {
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
            if let FragmentOp::TakeAmax { columns, .. } = op {
                columns[1] = columns[1].clone() - 8;
            }
        }),
    );
    insta::assert_snapshot!(short, @"error[coverage]: y.amax on rank 0 is of 78064 of 82656 elements of y");
    let elsewhere = broken(
        &program("gemm"),
        with(|op| {
            if let FragmentOp::TakeAmax { rows, .. } = op {
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
        if let Node::Fragment(FragmentOp::TakeAmax { elements, .. }) = &mut take {
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
            if let FragmentOp::TakeAmax { elements, .. } = op {
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
        let [Node::Fragment(FragmentOp::TakeAmax { columns, .. })] = &take else {
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
        if let Node::Fragment(op @ FragmentOp::TakeAmax { .. }) = node {
            take = Some(op.clone());
        }
    });
    let mut take = take.expect("it measures");
    if let FragmentOp::TakeAmax {
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
