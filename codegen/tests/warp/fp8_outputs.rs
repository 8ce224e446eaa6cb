//! Results in FP8: what kernels become, that results are what was computed by its scale and saturated, and what is refused.

use crate::fixtures::library;
use crate::fixtures::wide::sampled;
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, Value, tune};
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::{self, Bf16, E4M3, E5M2, F32};
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Scales, Tensors, Variant};
use counterflow_codegen::warp::Pipeline;
use counterflow_codegen::{sm90, verify};
use counterflow_emitter as cuda;
use counterflow_emulator::{self as interp, Input, Options};
use std::collections::HashMap;

fn program(name: &str) -> Program {
    let mut all = library::all().into_iter();
    all.find(|program| program.name == name)
        .expect("a schedule")
}

fn variant(output: Dtype) -> Variant {
    let variant = Variant::new(2).output(output);
    variant.set("tiles", (128, 128))
}

fn built(program: &Program, variant: &Variant) -> Result<Pipeline, Diagnostics> {
    sm90::build(&lower(program, variant).and_then(verify::kernel)?)
}

fn refused(program: &Program, variant: &Variant) -> String {
    let found = built(program, variant).map(|_| ());
    found.expect_err("refused").first().text(&|_| String::new())
}

/// A product to which stored tiles are added.
fn of_stored_tiles(names: &[&str]) -> Program {
    let mut s = ScheduleBuilder::new("of_stored_tiles");
    let [x, w] = ["x", "w"].map(|name| s.local(name, Bf16));
    let stored: Vec<_> = names.iter().map(|name| s.local(name, Bf16)).collect();
    let y = s.out("y", Bf16);
    let tiles = s.tiles("tiles", y, tune([(128, 256), (256, 128)]));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            let others = stored.iter().map(|other| s.load(other.at(t)));
            let sum = others.fold(product, |sum, other| sum + other);
            s.store(y.at(t), sum);
        });
    });
    s.finish()
}

/// A product whose value is what `value` makes of it.
fn product(y: Dtype, value: impl Fn(Value) -> Value) -> Program {
    let mut s = ScheduleBuilder::new("product");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", y));
    let tiles = s.tiles("tiles", y, (128, 128));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), value(product));
        });
    });
    s.finish()
}

/// Of operands of every type, with and without scales of their own, in tiles of every sort, alone and behind a gather.
#[test]
fn outputs_are_multiplied_by_their_scale_and_rounded_to_bytes() {
    let tiles = [
        (128, 128),
        (128, 256),
        (256, 128),
        (128, 192),
        (80, 128),
        (16, 256),
    ];
    let operands = [
        variant(E4M3),
        variant(E5M2).dtype(E4M3),
        variant(E4M3).dtype(E4M3).scales(Scales::PerTensor),
        variant(E4M3).dtype(E4M3).scales(Scales::PerRow),
    ];
    let all = operands.iter().flat_map(|variant| {
        let tiles = tiles.map(|tile| variant.clone().set("tiles", tile));
        ["gemm", "ag_gemm"].map(|name| tiles.clone().map(|variant| (name, variant)))
    });
    for (name, variant) in sampled(all.flatten(), 7) {
        let pipeline = built(&program(name), &variant).and_then(verify::pipeline);
        let pipeline = pipeline.unwrap_or_else(|error| panic!("{name} {variant}: {error}"));
        let output = variant.asked(&Tensors::Outputs).element.expect("a type");
        let mut buffers = pipeline.kernel.buffers.iter();
        let y = buffers.find(|buffer| buffer.name == "y");
        assert_eq!(y.map(|buffer| buffer.dtype), Some(output), "{name}");
        for epilogue in &pipeline.epilogues {
            let named = |acc| {
                let mut params = epilogue.params.iter();
                let found = params.find(|param| param.acc == acc);
                found.map_or_else(String::new, |param| param.name.clone())
            };
            let value = epilogue.value.text(&named);
            assert!(value.ends_with(" * y_scale"), "{name}: {value}");
        }
        let text = cuda::emit(&pipeline).text;
        let element = match pipeline.dtype() == output {
            true => "T",
            false => output.name(),
        };
        let stores = ["", "_transposed"].map(|how| format!("subtile_store{how}<{element}, "));
        assert!(stores.iter().any(|store| text.contains(store)), "{text}");
        assert!(
            text.contains("const float y_scale = *plan.y_scale;"),
            "{text}"
        );
    }
}

#[test]
fn a_schedule_may_say_fp8_itself() {
    for y in [E4M3, E5M2] {
        let pipeline = built(&product(y, |acc| acc), &Variant::new(1)).and_then(verify::pipeline);
        let pipeline = pipeline.unwrap_or_else(|error| panic!("{error}"));
        // Then nothing is multiplied by anything.
        assert!(pipeline.epilogues.is_empty());
        let cast = product(F32, |acc| acc.cast(y));
        let pipeline = built(&cast, &Variant::new(1)).and_then(verify::pipeline);
        let pipeline = pipeline.unwrap_or_else(|error| panic!("{error}"));
        let text = cuda::emit(&pipeline).text;
        assert!(text.contains(&format!("rounded(product, {y}())")), "{text}");
    }
}

/// To the bit, with numbers on both sides of the largest, beside products of integers.
#[test]
fn results_are_scaled_then_saturated() {
    let (m, n, k) = (20, 32, 32);
    for (output, dtype) in [(E4M3, Bf16), (E5M2, Bf16), (E4M3, E4M3)] {
        let variant = Variant::new(1).output(output).set("tiles", (128, 128));
        let variant = variant.dtype(dtype);
        let kernel = lower(&program("gemm"), &variant).and_then(verify::kernel);
        let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
        let shape = Shape::new(m, n, k);
        let series = verify::series(&kernel, &shape, &Machine::h200());
        let series = series.unwrap_or_else(|error| panic!("{error}"));
        let plan = series
            .plan(&shape)
            .unwrap_or_else(|error| panic!("{error}"));
        let mut given: HashMap<String, Vec<f32>> = HashMap::new();
        let mut fill = interp::integers(7);
        let mut inputs = |input: Input<'_>, values: &mut [f32]| {
            fill(input, values);
            if input.name == "y.scale" {
                values[0] = if output == E5M2 { 32768.0 } else { 256.0 };
            }
            given.insert(input.name.into(), values.to_vec());
        };
        let ran = interp::run(&series, &[&plan], &Options::seed(1), &mut inputs);
        let ran = ran.unwrap_or_else(|error| panic!("{error}"));
        let known = interp::reference(series.kernel(), &plan, 0, &mut inputs);
        let known = known.unwrap_or_else(|error| panic!("{error}"));
        interp::compare_exactly(&ran, &known).unwrap_or_else(|error| panic!("{error}"));
        interp::compare(&ran, &known).unwrap_or_else(|error| panic!("{error}"));
        let (depth, columns) = (k as usize, n as usize);
        let y = ran.outputs.last().expect("an output");
        let (mut large, mut small) = (0, 0);
        for (at, value) in y.values.iter().enumerate() {
            let row = &given["x"][at / columns * depth..][..depth];
            let column = &given["w"][at % columns * depth..][..depth];
            let sum: f32 = row.iter().zip(column).map(|(a, b)| a * b).sum();
            let wanted = output.round(sum * given["y.scale"][0]);
            assert_eq!(*value, wanted, "{output}: {at}");
            match wanted.abs() == output.round(f32::MAX) {
                true => large += 1,
                false => small += 1,
            }
        }
        assert!(
            large > 20 && small > 20,
            "{output}: {large} saturated, {small} not"
        );
    }
}

/// The bound covers what is rounded to 4 or 3 bits, and tells wrong from right.
#[test]
fn the_reference_has_scales_of_outputs() {
    for (name, output) in [("gemm", E4M3), ("ag_gemm", E5M2)] {
        for variant in [
            variant(output),
            variant(output).dtype(E4M3).scales(Scales::PerRow),
        ] {
            let kernel = lower(&program(name), &variant).and_then(verify::kernel);
            let kernel = kernel.unwrap_or_else(|error| panic!("{name}: {error}"));
            let shape = Shape::new(260, 144, 272);
            let series = verify::series(&kernel, &shape, &Machine::h200());
            let series = series.unwrap_or_else(|error| panic!("{name}: {error}"));
            let plan = series.plan(&shape);
            let plan = plan.unwrap_or_else(|error| panic!("{name}: {error}"));
            let inputs = || interp::uniform(5);
            let ran = interp::run(&series, &[&plan], &Options::seed(1), inputs());
            let mut ran = ran.unwrap_or_else(|error| panic!("{name}: {error}"));
            let known = interp::reference(series.kernel(), &plan, 0, inputs());
            let known = known.unwrap_or_else(|error| panic!("{name}: {error}"));
            interp::compare(&ran, &known).unwrap_or_else(|error| panic!("{name}: {error}"));
            let y = ran.outputs.len() - 1;
            let values = &mut ran.outputs[y].values;
            values.iter_mut().for_each(|value| *value *= 2.0);
            assert!(interp::compare(&ran, &known).is_err(), "{name}");
        }
    }
}

#[test]
fn what_has_no_fp8() {
    let gemm = program("gemm");
    insta::assert_snapshot!(refused(&gemm, &variant(E4M3).set("tiles", (128, 144))), @"
    error[resources]: tiles of 128x144 that are stored in FP8
      help: a multiple of 32 columns: lines of the swizzle are whole
    ");
    insta::assert_snapshot!(refused(&gemm, &variant(E4M3).set("tiles", (80, 64))), @"
    error[resources]: tiles of 80x64 that are stored in FP8
      help: a multiple of 128 columns: lines of the swizzle are whole
    ");
    insta::assert_snapshot!(refused(&program("gemm_rs"), &variant(E4M3)), @"
    error[shape]: outputs of e4m3 for gemm_rs, which has none of its first type
      help: an `Out` of the type of the first parameter, or no type for outputs
    ");
    // Codes are exchanged beside two stored tiles.
    let two = of_stored_tiles(&["u", "v"]);
    for tile in [(128, 256), (256, 96)] {
        let built = built(&two, &variant(E4M3).set("tiles", tile));
        let pipeline = built.and_then(verify::pipeline);
        pipeline.unwrap_or_else(|error| panic!("{tile:?}: {error}"));
    }
    insta::assert_snapshot!(refused(&two, &variant(E4M3).set("tiles", (256, 128))), @"
    error[resources]: FP8 made of 2 stored tiles, in tiles of 256x128
      help: 128 rows by up to 256 columns, or 256 rows by up to 96 columns, or one stored tile an item: FP8 results and stored tiles share the room of a thread
    ");
    insta::assert_snapshot!(refused(&two, &variant(E4M3).set("tiles", (80, 256))), @"
    error[resources]: FP8 made of 2 stored tiles, in tiles of 80x256
      help: 128 rows by up to 256 columns, or 256 rows by up to 96 columns, or one stored tile an item: FP8 results and stored tiles share the room of a thread
    ");
    // Of three, which a stage has room for in 128 rows only.
    let three = of_stored_tiles(&["u", "v", "z"]);
    for (amax, tile) in [(false, (128, 256)), (true, (128, 224))] {
        let built = built(&three, &variant(E4M3).amax(amax).set("tiles", tile));
        let pipeline = built.and_then(verify::pipeline);
        pipeline.unwrap_or_else(|error| panic!("{tile:?}: {error}"));
    }
    insta::assert_snapshot!(refused(&three, &variant(E4M3).set("tiles", (256, 96))), @"
    error[resources]: FP8 made of 3 stored tiles, in tiles of 256x96
      help: 128 rows by up to 256 columns, or one stored tile an item: FP8 results and stored tiles share the room of a thread
    ");
    let measured = variant(E4M3).amax(true).set("tiles", (128, 256));
    insta::assert_snapshot!(refused(&three, &measured), @"
    error[resources]: FP8 made of 3 stored tiles, in tiles of 128x256
      help: 128 rows by up to 224 columns, or one stored tile an item: FP8 results and stored tiles share the room of a thread
    ");
    // Tiles that are read, or added to.
    let mut s = ScheduleBuilder::new("read");
    let (x, w, z, y) = (
        s.local("x", Bf16),
        s.local("w", Bf16),
        s.local("z", E4M3),
        s.out("y", Bf16),
    );
    let tiles = s.tiles("tiles", y, (128, 128));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            let other = s.load(z.at(t));
            s.store(y.at(t), product + other);
        });
    });
    insta::assert_snapshot!(refused(&s.finish(), &Variant::new(1)), @"
    error[resources]: `z` of e4m3, which a tile is added to or read from
      help: bf16, f16 or f32: FP8 is multiplied, copied and stored
    ");
    let mut s = ScheduleBuilder::new("added");
    let (x, w, y) = (
        s.local("x", Bf16),
        s.local("w", Bf16),
        s.accumulated("y", E4M3),
    );
    let tiles = s.tiles("tiles", y, (128, 128));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store_add(y.at(t), product);
        });
    });
    insta::assert_snapshot!(refused(&s.finish(), &Variant::new(1)), @"
    error[resources]: `y` of e4m3, which a tile is added to or read from
      help: bf16, f16 or f32: FP8 is multiplied, copied and stored
    ");
}
