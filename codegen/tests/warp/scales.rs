//! Scales of FP8 operands: what kernels become, that results are those of dequantised operands, and what is refused.

use crate::fixtures::library;
use crate::fixtures::wide::{in_turn, sampled};
use counterflow_codegen::builder::{GemmOptions, RankExpr, ScheduleBuilder, Value, me, world};
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::{Bf16, E4M3};
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::{Program, Side};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_codegen::warp::{Along, FragmentOp, Node, Pipeline};
use counterflow_codegen::{sm90, verify};
use counterflow_emitter as cuda;
use counterflow_emulator::{self as interp, Input, Options};
use std::collections::HashMap;

/// What products are multiplied by when all of K is summed.
const IN_EPILOGUES: [Scales; 2] = [Scales::PerTensor, Scales::PerRow];

fn program(name: &str) -> Program {
    let mut all = library::all().into_iter();
    all.find(|program| program.name == name)
        .expect("a schedule")
}

fn variant(scales: Scales) -> Variant {
    let variant = Variant::new(2).dtype(E4M3).scales(scales);
    variant.set("tiles", (128, 128))
}

fn built(program: &Program, variant: &Variant) -> Result<Pipeline, Diagnostics> {
    sm90::build(&lower(program, variant).and_then(verify::kernel)?)
}

fn refused(program: &Program, variant: &Variant) -> String {
    let found = built(program, variant).expect_err("refused");
    found.first().text(&|_| String::new())
}

#[test]
fn products_are_multiplied_by_the_scales_of_their_operands() {
    let names = ["gemm", "ag_gemm", "gemm_rs"].into_iter();
    for (name, scales) in names.flat_map(|name| IN_EPILOGUES.map(|scales| (name, scales))) {
        let pipeline = built(&program(name), &variant(scales)).and_then(verify::pipeline);
        let pipeline = pipeline.unwrap_or_else(|error| panic!("{name}: {error}"));
        // A sum over ranks as it is has them in its terms.
        for epilogue in pipeline.epilogues.iter().filter(|it| it.sum().is_none()) {
            let named = |acc| {
                let mut params = epilogue.params.iter();
                let found = params.find(|param| param.acc == acc);
                found.map_or_else(String::new, |param| param.name.clone())
            };
            let value = epilogue.value.text(&named);
            let begins = value.starts_with("product * x_scale * w_scale");
            assert!(begins, "{name}: {value}");
        }
        let text = cuda::emit(&pipeline).text;
        if (name, scales) == ("gemm", Scales::PerTensor) {
            let part = |first: &str, lines: usize| {
                let from = text.find(first).unwrap_or_else(|| panic!("{text}"));
                let lines = text[from..].lines().take(lines).map(str::trim);
                lines.collect::<Vec<&str>>().join("\n")
            };
            let (fields, stores) = ("struct Plan {", "const float x_scale");
            insta::assert_snapshot!(format!("{}\n…\n{}", part(fields, 4), part(stores, 9)), @"
            struct Plan {
            const float* x_scale;  // one number
            const float* w_scale;  // one number
            u32 m;  // rows of the product, over all shards
            …
            const float x_scale = *plan.x_scale;
            const float w_scale = *plan.w_scale;
            // y[t] = acc0 * x.scale * w.scale
            #pragma unroll
            for (u32 part = 0; part < TILE_N / SUBTILE_N; ++part) {
            subtile_empty[subtile.index].wait(subtile.phase ^ 1, watch, MULTIPLY);
            float y_values[SUBTILE_N / 2];
            #pragma unroll
            for (u32 i = 0; i < SUBTILE_N / 2; ++i)
            ");
        }
    }
}

/// In swapped tiles rows lie elsewhere in a thread's accumulators; shards begin at rows of their own.
#[test]
fn tiles_of_every_sort_read_scales() {
    let tiles = [(16, 64), (80, 128), (128, 64), (128, 256)];
    for (at, tile) in tiles.into_iter().enumerate() {
        for name in in_turn(["gemm", "ag_gemm"], at) {
            let variant = variant(Scales::PerRow).set("tiles", tile);
            let pipeline = built(&program(name), &variant).and_then(verify::pipeline);
            pipeline.unwrap_or_else(|error| panic!("{name} {variant}: {error}"));
        }
    }
}

/// Every element, against products in f64 of what the operands stand for. All numbers are exact.
#[test]
fn results_are_those_of_dequantised_operands() {
    IN_EPILOGUES.into_iter().for_each(dequantised);
}

fn dequantised(scales: Scales) {
    let (m, n, k) = (20, 16, 32);
    for (name, world) in [
        ("gemm", 1),
        ("ag_gemm", 2),
        ("gemm_rs", 2),
        ("ag_gemm_pull", 3),
    ] {
        let variant = Variant {
            world,
            ..variant(scales)
        };
        let kernel = lower(&program(name), &variant).and_then(verify::kernel);
        let kernel = kernel.unwrap_or_else(|error| panic!("{name}: {error}"));
        let shape = Shape::new(m, n, k);
        let series = verify::series(&kernel, &shape, &Machine::h200());
        let series = series.unwrap_or_else(|error| panic!("{name}: {error}"));
        let plan = series
            .plan(&shape)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut given: HashMap<(String, u32), Vec<f32>> = HashMap::new();
        let mut fill = interp::integers(3);
        let inputs = |input: Input<'_>, values: &mut [f32]| {
            fill(input, values);
            if input.name == "w.scale" {
                values.iter_mut().for_each(|value| *value *= 0.125);
            }
            given.insert((input.name.into(), input.rank), values.to_vec());
        };
        let ran = interp::run(&series, &[&plan], &Options::seed(1), inputs);
        let ran = ran.unwrap_or_else(|error| panic!("{name}: {error}"));
        let of = |tensor: &str, rank: u32| &given[&(tensor.to_string(), rank)];
        let (rows, depth) = (m as usize, k as usize);
        // Of what is gathered, every rank fills its own rows.
        let gathers = name.starts_with("ag");
        let x = |rank: u32| match gathers {
            true => (0..world).flat_map(|rank| of("x", rank).clone()).collect(),
            false => of("x", rank).clone(),
        };
        let product = |rank: u32, row: usize, column: usize| -> f64 {
            let (x, w): (Vec<f32>, _) = (x(rank), of("w", rank));
            // So they do of its scales.
            let all = |name: &str| -> Vec<f32> {
                match (scales, name.split_once('.')) {
                    (Scales::PerRow, Some(("x", _))) if gathers => {
                        (0..world).flat_map(|rank| of(name, rank).clone()).collect()
                    }
                    _ => of(name, rank).clone(),
                }
            };
            let scale = |name: &str, at: usize| {
                let whole = scales == Scales::PerTensor;
                f64::from(all(name)[if whole { 0 } else { at }])
            };
            let (x_scale, w_scale) = (scale("x.scale", row), scale("w.scale", column));
            let terms = (0..depth).map(|at| {
                let x = f64::from(x[row * depth + at]) * x_scale;
                x * f64::from(w[column * depth + at]) * w_scale
            });
            terms.sum()
        };
        let mut compared = 0;
        for output in ran.outputs.iter() {
            if kernel.buffers[output.tensor.index()].name != "y" {
                continue;
            }
            for (at, value) in output.values.iter().enumerate() {
                let (row, column) = (at / n as usize, at % n as usize);
                let row = output.rows.start as usize + row;
                assert!(row < rows);
                let wanted: f64 = match name {
                    "gemm_rs" => (0..world).map(|rank| product(rank, row, column)).sum(),
                    _ => product(output.rank, row, column),
                };
                assert_eq!(f64::from(*value), wanted, "{name}: {row}, {column}");
                compared += 1;
            }
        }
        let copies = if name == "gemm_rs" { 1 } else { world };
        assert_eq!(compared, m * n * copies, "{name}");
    }
}

/// The reference knows scales too, and its bound covers what they are multiplied by.
#[test]
fn the_reference_has_scales() {
    let names = ["gemm", "ag_gemm", "gemm_rs", "ag_gemm_pull"].into_iter();
    let all = names.flat_map(|name| IN_EPILOGUES.map(|scales| (name, scales)));
    for (name, scales) in sampled(all, 3) {
        let kernel = lower(&program(name), &variant(scales)).and_then(verify::kernel);
        let kernel = kernel.unwrap_or_else(|error| panic!("{name}: {error}"));
        let shape = Shape::new(260, 136, 272);
        let series = verify::series(&kernel, &shape, &Machine::h200());
        let series = series.unwrap_or_else(|error| panic!("{name}: {error}"));
        let plan = series
            .plan(&shape)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let inputs = || interp::uniform(5);
        let mut ran = interp::run(&series, &[&plan], &Options::seed(1), inputs())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let known = interp::reference(series.kernel(), &plan, 0, inputs());
        let known = known.unwrap_or_else(|error| panic!("{name}: {error}"));
        interp::compare(&ran, &known).unwrap_or_else(|error| panic!("{name}: {error}"));
        // Without a scale, it is another result.
        let y = ran.outputs.len() - 1;
        ran.outputs[y]
            .values
            .iter_mut()
            .for_each(|value| *value *= 2.0);
        assert!(interp::compare(&ran, &known).is_err(), "{name}");
    }
}

/// What the verifier says of a pipeline that is not what was lowered.
fn broken(scales: Scales, break_it: impl Fn(&mut Pipeline)) -> String {
    let mut pipeline =
        built(&program("gemm"), &variant(scales)).unwrap_or_else(|error| panic!("{error}"));
    break_it(&mut pipeline);
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

fn reads_scale(node: &Node) -> bool {
    matches!(
        node,
        Node::Fragment(FragmentOp::Broadcast { along: None, .. })
    )
}

#[test]
fn a_scale_that_a_kernel_loses() {
    let not_read = |pipeline: &mut Pipeline| {
        pipeline.lists(&mut |list| {
            if let Some(at) = list.iter().position(reads_scale) {
                list.remove(at);
            }
        });
    };
    insta::assert_snapshot!(broken(Scales::PerTensor, not_read), @"
    error[coverage]: multiply of block 0 on rank 0 applies y_value to subtile 0
      = `x_scale` was not read
    ");
    let another = |pipeline: &mut Pipeline| {
        let all = &pipeline.kernel.buffers;
        let x = all.iter().position(|buffer| buffer.name == "x.scale");
        let x = x.expect("a scale") as u16;
        pipeline.lists(&mut |list| {
            for node in list {
                if let Node::Fragment(FragmentOp::Broadcast {
                    tensor,
                    along: None,
                    ..
                }) = node
                {
                    tensor.0 = x;
                }
            }
        });
    };
    insta::assert_snapshot!(broken(Scales::PerTensor, another), @"
    error[coverage]: multiply of block 0 on rank 0 reads x.scale
      = the vector or scale is another one
    ");
    let not_multiplied = |pipeline: &mut Pipeline| {
        if let Value::Binary(_, product, _) = &pipeline.epilogues[0].value {
            pipeline.epilogues[0].value = (**product).clone();
        }
    };
    insta::assert_snapshot!(broken(Scales::PerTensor, not_multiplied), @"
    error[coverage]: store of block 0 on rank 0 stores subtile 0 to rows 0..128, columns 0..64 of y (shard or slot 0) on rank 0 for tile (0, 0)
      = the schedule stores another value there
    ");
}

#[test]
fn scales_of_other_rows() {
    let first = |pipeline: &mut Pipeline| {
        pipeline.lists(&mut |list| {
            for node in list {
                if let Node::Fragment(FragmentOp::Broadcast {
                    along:
                        Some(Along {
                            side: Side::Rows,
                            first: row,
                            ..
                        }),
                    ..
                }) = node
                {
                    *row = 0.into();
                }
            }
        });
    };
    insta::assert_snapshot!(broken(Scales::PerRow, first), @"
    error[coverage]: multiply of block 1 on rank 0 applies y_value to subtile 0 for tile (1, 0)
      = `x_scale` is not there for these rows
    ");
}

/// A value of two products, and an operand that was a result: which of them, as the second product is added.
fn two(computed: bool) -> Program {
    let mut s = ScheduleBuilder::new("two");
    let [x, w, v, u] = ["x", "w", "v", "u"].map(|name| s.local(name, E4M3));
    let (h, y) = (s.out("h", E4M3), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, (128, 128));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            let first = if computed { h } else { v };
            s.accumulate(&product, first.at(t), u.at(t));
            s.store(y.at(t), product);
        });
    });
    s.finish()
}

/// A product of `x` by `w`, and one of `v` by `x`.
fn of_itself() -> Program {
    let mut s = ScheduleBuilder::new("of_itself");
    let [x, w, v] = ["x", "w", "v"].map(|name| s.local(name, E4M3));
    let (y, z) = (s.out("y", Bf16), s.out("z", Bf16));
    let [of_y, of_z] = [("of_y", y), ("of_z", z)].map(|(name, of)| s.tiles(name, of, (128, 128)));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", of_y.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
        s.for_items("t", of_z.all(), |s, t| {
            let product = s.dot(v.at(t), x.at(t));
            s.store(z.at(t), product);
        });
    });
    s.finish()
}

/// Rows of an input of the rank's own that are copied to that rank's scratch, and multiplied there.
fn copied(to: impl Into<RankExpr>) -> Program {
    let to = to.into();
    let mut s = ScheduleBuilder::new("copied");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let copy = s.symmetric("copy", Bf16, x.whole(), 1);
    let (chunks, tiles) = (s.chunks("chunks", x, 128), s.tiles("tiles", y, (128, 128)));
    let arrived = s.counters("arrived", [chunks.into()]);
    s.comm(2, |s| {
        s.for_items("c", chunks.all(), |s, c| {
            s.copy(copy.on(&to).at(c), x.at(c));
            s.signal(arrived.on(&to).at(c), 1);
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            s.wait(arrived.at(t.rows()));
            let product = s.dot(copy.at(t), w.at(t));
            s.store(y.at(t), product);
        });
    });
    s.finish()
}

/// The scale of what a peer sent is the peer's: multiplied by this rank's, it would be another number, and nobody would know.
#[test]
fn what_a_peer_sends_has_the_scale_of_the_peer() {
    let next = || (me() + 1) % world();
    let said = IN_EPILOGUES
        .map(|scales| refused(&copied(next()), &Variant::new(2).dtype(E4M3).scales(scales)));
    insta::assert_snapshot!(said.join("\n"), @"
    error[language]: `copy` has what a peer sent of its `x`, which has a scale of that peer's own
      help: multiply `x` on its own rank, or make it `Gathered`: then its scales come with it, or all ranks have one

    error[language]: `copy` has what a peer sent of its `x`, which has a scale of that peer's own
      help: multiply `x` on its own rank, or make it `Gathered`: then its scales come with it, or all ranks have one
    ");
    // What stays on its rank has that rank's scale, and what has no scale may go anywhere.
    for scales in IN_EPILOGUES {
        let at_home = built(&copied(me()), &Variant::new(2).dtype(E4M3).scales(scales))
            .and_then(verify::pipeline);
        at_home.unwrap_or_else(|error| panic!("{error}"));
    }
    let unscaled = built(&copied(next()), &Variant::new(2).dtype(E4M3)).and_then(verify::pipeline);
    unscaled.unwrap_or_else(|error| panic!("{error}"));
}

/// A copy has no planes of blocks.
#[test]
fn scales_of_blocks_are_of_what_is_multiplied() {
    let blocks = Variant::new(2).dtype(E4M3).scales(Scales::Blocks1d2d);
    insta::assert_snapshot!(refused(&copied(me()), &blocks), @"
    error[language]: `copy` is a copy of `x`, which has scales of blocks
      help: multiply the input itself, or take scales of rows or of the whole: a copy has no scales of blocks
    ");
}

#[test]
fn what_has_no_scales() {
    let whole = Variant::new(1).scales(Scales::PerTensor);
    insta::assert_snapshot!(refused(&program("gemm"), &whole), @"
    error[shape]: scales for gemm, which multiplies nothing of FP8
      help: an element type with scales, e4m3, or no scales
    ");
    insta::assert_snapshot!(refused(&two(false), &whole), @"
    error[language]: one sum has products of operands with scales of their own
      help: a value for each product, and then their sum
    ");
    let both = Variant::new(1).dtype(E4M3).scales(Scales::PerRow);
    insta::assert_snapshot!(refused(&of_itself(), &both), @"
    error[language]: `x` is the first operand of a product and the second of one
      help: one of the two with scales of its rows: give the other as a tensor of its own
    ");
    insta::assert_snapshot!(refused(&two(true), &whole), @"
    error[language]: `h` is computed, and has no scale
      help: scales belong to inputs, one to each operand; a hidden layer may have one of its own: `Variant::hidden`
    ");
}
