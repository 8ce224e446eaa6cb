//! Amaxes of FP8 outputs: what kernels become, and that each is of all that a rank computed before the scale.

use crate::fixtures::library;
use crate::fixtures::wide::{sampled, wide};
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::{self, Bf16, E4M3, E5M2, F32};
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::{Program, TensorId};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90;
use counterflow_codegen::value::Unary;
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_codegen::verify::{self, Series};
use counterflow_codegen::warp::{Elements, FragmentOp, Node, Pipeline};
use counterflow_emitter as cuda;
use counterflow_emulator::{self as interp, Input, Options, Outcome};
use std::collections::HashMap;

mod refused;

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
        variant(2, E4M3).dtype(E4M3).scales(Scales::PerRow),
    ];
    let all = operands.iter().flat_map(|variant| {
        let tiles = tiles.map(|tile| variant.clone().set("tiles", tile));
        ["gemm", "ag_gemm"].map(|name| tiles.clone().map(|variant| (name, variant)))
    });
    for (name, variant) in sampled(all.flatten(), 7) {
        let pipeline = built(&program(name), &variant).and_then(verify::pipeline);
        let pipeline = pipeline.unwrap_or_else(|error| panic!("{name} {variant}: {error}"));
        let mut taken = Vec::new();
        pipeline.visit(|node| {
            if let Node::Fragment(FragmentOp::Amax { elements, .. }) = node {
                taken.push(*elements);
            }
        });
        assert_eq!(taken.len(), 1, "{name} {variant}");
        // Scales of operands make a product what it stands for; then it is measured.
        let scaled = variant.operand_scales().is_some();
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

/// Worlds of 1 to 8, with shards that are short or empty, and functions that make something of what is not there.
#[test]
fn amaxes_of_every_rank_equal_the_reference() {
    let all = [
        (program("gemm"), vec!["y.amax"]),
        (program("ag_gemm"), vec!["y.amax"]),
        (two_outputs(), vec!["y.amax", "z.amax"]),
    ];
    for (at, (program, names)) in all.into_iter().enumerate() {
        let worlds = (1..=8).zip([(130, 144, 80), (259, 272, 48)].into_iter().cycle());
        // The programs have the worlds in turn.
        for (world, (m, n, k)) in sampled(worlds.skip(if wide() { 0 } else { at }), 3) {
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
            let is = |tensor: TensorId| kernel.buffers[tensor.index()].usage.amax_of().is_some();
            let mut outputs = ran.outputs.iter_mut();
            let one = outputs.find(|output| is(output.tensor)).expect("an amax");
            one.values[0] *= 1.5;
            assert!(interp::compare(&ran, &known).is_err(), "{of}");
        }
    }
}
