//! Scales of 1×128 that a launch makes of what it stores: what kernels become, and that scales and codes are those of the values.

use crate::fixtures::library;
use crate::fixtures::wide::sampled;
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::{self, Bf16, E4M3, F32};
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::rule::{Fp8, ScaleRule};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90;
use counterflow_codegen::value::Unary;
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_codegen::verify::{self, Series};
use counterflow_codegen::warp::{Elements, FragmentOp, Node, Pipeline, ScalesTo};
use counterflow_emitter as cuda;
use counterflow_emulator::{self as interp, Options};

mod refused;

fn program(name: &str) -> Program {
    let mut all = library::all().into_iter();
    all.find(|program| program.name == name)
        .expect("a schedule")
}

/// One value stored in two outputs, and a function of it that does not map zero to zero in a third: what is beyond the end must
/// not count.
fn three_outputs() -> Program {
    let mut s = ScheduleBuilder::new("three_outputs");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let bias = s.vector("bias", F32);
    let outputs = ["y", "z", "u"].map(|name| s.out(name, Bf16));
    let tiles = s.tiles("tiles", outputs[0], (128, 128));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            let bias = s.load(bias);
            let value = product.bias(bias);
            s.store(outputs[0].at(t), value.clone());
            s.store(outputs[1].at(t), value.clone());
            s.store(outputs[2].at(t), value.apply(Unary::Sigmoid));
        });
    });
    s.finish()
}

/// A product whose tiles warpgroups and CTAs share so.
fn shared(tile: (u32, u32), ping_pong: bool, split: u32) -> Program {
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
    s.finish()
}

const THEIRS: ScaleRule = ScaleRule::transformer_engine(Fp8::E4M3);

/// With tiles of 128x128, where the schedule leaves them open.
fn square(program: &Program, world: u32, rule: ScaleRule) -> Variant {
    let variant = Variant::new(world).output_scales(rule);
    match program.tunables.iter().any(|it| it.name == "tiles") {
        true => variant.set("tiles", (128, 128)),
        false => variant,
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

/// Of operands of every type, in tiles of every sort, by both conventions.
#[test]
fn each_subtile_is_multiplied_by_its_scales() {
    let tiles = [(128, 128), (128, 256), (256, 128)];
    let [theirs, deep] = [THEIRS.powers_of_two(), ScaleRule::deep_gemm()];
    let operands = [
        Variant::new(2).output_scales(theirs),
        Variant::new(2).output_scales(deep).dtype(E4M3),
        Variant::new(2)
            .output_scales(theirs)
            .dtype(E4M3)
            .scales(Scales::Blocks1d2d),
    ];
    let all = operands.iter().flat_map(|variant| {
        let tiles = tiles.map(|tile| variant.clone().set("tiles", tile));
        ["gemm", "ag_gemm"].map(|name| tiles.clone().map(|variant| (name, variant)))
    });
    for (name, variant) in sampled(all.flatten(), 5) {
        let pipeline = built(&program(name), &variant).and_then(verify::pipeline);
        let pipeline = pipeline.unwrap_or_else(|error| panic!("{name} {variant}: {error}"));
        let mut made = Vec::new();
        pipeline.visit(|node| match node {
            Node::Fragment(FragmentOp::Quantize {
                elements,
                to: ScalesTo::Registers,
                ..
            }) => made.push(*elements),
            Node::Fragment(FragmentOp::WriteSubtile { scaled, .. }) => assert!(scaled),
            _ => {}
        });
        assert_eq!(made, [Elements::Product(0)], "{name} {variant}");
        let text = cuda::emit(&pipeline).text;
        for line in [
            "float* y_scale;  // numbers of rows, a line for each 128 columns",
            "u32 y_scale_line;  // from a line of y.scale to the next",
            "constexpr u32 SUBTILE_N = 128;",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}

#[test]
fn a_kernel_makes_scales() {
    let gemm = program("gemm");
    let variant = square(&gemm, 1, THEIRS.with_eps(0.5));
    let kernel = lower(&gemm, &variant).expect("it is legal");
    let find = |text: &str, what: &str| -> String {
        let mut lines = text.lines();
        let line = lines.find(|line| line.contains(what)).expect("there");
        line.trim().into()
    };
    insta::assert_snapshot!(find(&kernel.text(), "y.scale;"), @"y[t] = acc0 / y.scale; y.scale = scales of |acc0|");
    let pipeline = built(&gemm, &variant).unwrap_or_else(|error| panic!("{error}"));
    let text = pipeline.text();
    insta::assert_snapshot!(find(&text, "make scales"), @"make scales of |acc[part]| of [t.column * TILE_N + part * SUBTILE_N..n]");
    insta::assert_snapshot!(find(&text, "<- scales"), @"y.scale[(t.column * TILE_N + part * SUBTILE_N) / 128, t.row * TILE_M..m] <- scales of |acc[part]| of [..n], zeros in m..y_scale_line");
    insta::assert_snapshot!(find(&text, "by its scales"), @"write subtile <- acc[part] by its scales as e4m3");
    let text = cuda::emit(&verify::pipeline(pipeline).expect("it is right")).text;
    insta::assert_snapshot!(find(&text, "RuleNumbers"), @"constexpr RuleNumbers RULE = {0.5f, 448.0f, 3.4028235e38f};  // of scales of e4m3: te+eps=0.5");
    let words = |from: &str, count: usize| {
        let at = text.find(from).expect("there");
        let words: Vec<&str> = text[at..].split_whitespace().take(count).collect();
        words.join(" ")
    };
    insta::assert_snapshot!(words("scales_make<", 24), @"scales_make<SUBTILE_N, TRANSFORMER_ENGINE, false>(acc_multipliers, acc_scales, acc + part * SUBTILE_N / 2, t.column * TILE_N + part * SUBTILE_N, plan.n, RULE, lane); subtile_store_scaled<e4m3, SUBTILE_N>(acc +");
    insta::assert_snapshot!(words("subtile_store_scaled<", 12), @"subtile_store_scaled<e4m3, SUBTILE_N>(acc + part * SUBTILE_N / 2, acc_multipliers, smem_subtile[subtile.index], first_row, lane);");
    insta::assert_snapshot!(words("scales_write(", 24), @"scales_write(plan.y_scale + static_cast<u64>((t.column * TILE_N + part * SUBTILE_N) / SUBTILE_N) * plan.y_scale_line, acc_scales, t.row * TILE_M + first_row, plan.m, plan.m, plan.y_scale_line, lane); }");
}

/// However warpgroups and CTAs share tiles, all of them together make each scale once.
#[test]
fn whoever_shares_a_tile_makes_the_scales_of_its_rows() {
    for (tile, ping_pong, split) in [
        ((64, 256), true, 1),
        ((128, 128), true, 1),
        ((128, 256), false, 1),
        ((256, 128), false, 1),
        ((128, 256), false, 2),
    ] {
        let program = shared(tile, ping_pong, split);
        let variant = Variant::new(1).output_scales(THEIRS);
        let pipeline = built(&program, &variant).and_then(verify::pipeline);
        pipeline.unwrap_or_else(|error| panic!("{tile:?} {ping_pong} {split}: {error}"));
    }
    let pipeline = built(&three_outputs(), &square(&three_outputs(), 1, THEIRS));
    let pipeline = pipeline.and_then(verify::pipeline);
    let pipeline = pipeline.unwrap_or_else(|error| panic!("{error}"));
    // Of one value for two outputs once, and written twice.
    let (mut made, mut written) = (0, 0);
    pipeline.visit(|node| match node {
        Node::Fragment(FragmentOp::Quantize {
            to: ScalesTo::Registers,
            ..
        }) => made += 1,
        Node::Fragment(FragmentOp::Quantize {
            to: ScalesTo::Plane { .. },
            ..
        }) => written += 1,
        _ => {}
    });
    assert_eq!((made, written), (2, 3));
}

fn rules() -> Vec<ScaleRule> {
    let theirs = ScaleRule::transformer_engine(Fp8::E5M2);
    vec![
        THEIRS,
        THEIRS.powers_of_two(),
        ScaleRule::deep_gemm(),
        ScaleRule::deep_gemm().powers_of_two(),
        theirs.with_eps(8.0),
    ]
}

/// Worlds of 1 to 8, with shards that are short or empty, columns that are no whole blocks, and shards of columns: the emulator
/// agrees with the schedule in f64, of integers to the bit and of other numbers within the bounds.
#[test]
fn scales_and_codes_of_every_rank_equal_the_reference() {
    let programs = ["gemm", "ag_gemm", "fsdp_gemm"].map(program);
    let programs: Vec<Program> = programs.into_iter().chain([three_outputs()]).collect();
    let worlds = (1..=8).zip([(130, 144, 80), (259, 400, 48)].into_iter().cycle());
    let all = worlds.flat_map(|of| programs.iter().map(move |program| (program, of)));
    for (program, (world, (m, n, k))) in sampled(all, 7) {
        let rules = rules();
        let shape = Shape::new(m, n, k);
        let of = square(program, world, rules[world as usize % rules.len()]);
        let series = series(program, &of, &shape);
        let plan = series.plan(&shape);
        let plan = plan.unwrap_or_else(|error| panic!("{error}"));
        let ran = interp::run(&series, &[&plan], &Options::seed(1), interp::integers(7));
        let ran = ran.unwrap_or_else(|error| panic!("{of}: {error}"));
        let known = interp::reference(series.kernel(), &plan, 0, interp::integers(7));
        let known = known.unwrap_or_else(|error| panic!("{of}: {error}"));
        let exact = program.name != "three_outputs";
        if exact {
            interp::compare_exactly(&ran, &known)
                .unwrap_or_else(|error| panic!("{} {of}: {error}", program.name));
        }
        let seed = u64::from(world);
        let ran = interp::run(&series, &[&plan], &Options::seed(1), interp::uniform(seed));
        let mut ran = ran.unwrap_or_else(|error| panic!("{of}: {error}"));
        let known = interp::reference(series.kernel(), &plan, 0, interp::uniform(seed));
        let known = known.unwrap_or_else(|error| panic!("{of}: {error}"));
        interp::compare(&ran, &known)
            .unwrap_or_else(|error| panic!("{} {of}: {error}", program.name));
        // And the comparison looks at them.
        let buffers = &series.kernel().buffers;
        let at = ran.outputs.iter().position(|output| {
            let kind = buffers[output.tensor.index()].usage;
            kind.computed_scale_of().is_some() && !kind.is_scratch()
        });
        let at = at.expect("scales");
        let plane = &ran.outputs[at];
        assert_eq!(plane.values.len(), (m * n.div_ceil(128)) as usize);
        assert!(
            plane
                .values
                .iter()
                .all(|scale| scale.is_finite() && *scale > 0.0)
        );
        let is = plane.values[0];
        // Powers of two are whole steps, and one step may be an amax at its edge.
        let step = if rules[world as usize % rules.len()].power_of_two {
            4.0
        } else {
            1.01
        };
        for wrong in [is * step, is / step, 0.0] {
            ran.outputs[at].values[0] = wrong;
            assert!(
                interp::compare(&ran, &known).is_err(),
                "{of}: {wrong} for {is}"
            );
        }
    }
}

/// What a launch wrote is what the next product reads: its scales are where that looks for them.
#[test]
fn the_next_product_has_the_same_plane() {
    let (gemm, shape) = (program("gemm"), Shape::new(130, 400, 80));
    let next = Shape::new(130, 256, 400);
    let made = series(&gemm, &square(&gemm, 1, THEIRS), &shape);
    for scales in [Scales::Blocks1d2d, Scales::Blocks1d1d] {
        let read = Variant::new(1).dtype(Dtype::E4M3).scales(scales);
        let read = series(&gemm, &read.set("tiles", (128, 128)), &next);
        let plane = |series: &Series, shape: &Shape, name: &str| {
            let kernel = series.kernel();
            let plan = series.plan(shape).unwrap_or_else(|error| panic!("{error}"));
            let mut buffers = kernel.buffers.iter().zip(0..);
            let (buffer, at) = buffers
                .find(|(buffer, _)| buffer.name == name)
                .expect("there");
            let id = counterflow_codegen::program::TensorId(at);
            let sides = [buffer.rows, buffer.columns].map(|dim| plan.geometry.size(dim));
            (sides, plan.pitch(kernel, id), plan.bytes(kernel, id))
        };
        let wrote = plane(&made, &shape, "y.scale");
        assert_eq!(wrote, ([4, 130], 132 * 4, 4 * 132 * 4));
        assert_eq!(plane(&read, &next, "x.scale"), wrote);
    }
}
