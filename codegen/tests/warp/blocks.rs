//! Scales of blocks: what a step becomes, that results are those of dequantised operands, what is refused, and what the verifier
//! says of a scale that is lost.

use crate::fixtures::library;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::{Bf16, E4M3, E5M2};
use counterflow_codegen::interp::{self, Input, Options};
use counterflow_codegen::lower::lower;
use counterflow_codegen::model::Machine;
use counterflow_codegen::program::{Program, ScaleBlock};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_codegen::warp::{Expr, FragmentOp, Node, Pipeline};
use counterflow_codegen::{cuda, sm90, verify};
use std::collections::HashMap;

const BLOCKS: [Scales; 3] = [Scales::Blocks1d2d, Scales::Blocks2d1d, Scales::Blocks1d1d];

fn program(name: &str) -> Program {
    let mut all = library::all().into_iter();
    all.find(|program| program.name == name)
        .expect("a schedule")
}

fn variant(scales: Scales, tile: (u32, u32)) -> Variant {
    let variant = Variant::new(2).dtype(E4M3).scales(scales);
    variant.set("tiles", tile)
}

fn built(program: &Program, variant: &Variant) -> Result<Pipeline, Diagnostics> {
    sm90::build(&lower(program, variant).and_then(verify::kernel)?)
}

fn text(name: &str, variant: &Variant) -> String {
    let pipeline = built(&program(name), variant).and_then(verify::pipeline);
    let pipeline = pipeline.unwrap_or_else(|error| panic!("{name} {variant}: {error}"));
    cuda::emit(&pipeline).text
}

/// The lines of a text that name scales.
fn of_scales(text: &str) -> String {
    let named = |line: &&str| {
        ["scale", "fence_async_shared"]
            .iter()
            .any(|it| line.contains(it))
    };
    let lines = text.lines().map(str::trim).filter(named);
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_step_reads_its_scales_from_its_stage() {
    insta::assert_snapshot!(of_scales(&text("gemm", &variant(Scales::Blocks1d2d, (128, 128)))), @"
    constexpr u32 STAGES = 5;  // stages of x and w and x_scale and w_scale in flight
    constexpr u32 SCALE_BLOCK = 128;  // elements of K, and rows of a square, that have one scale
    const __grid_constant__ TensorMap x_scale,  // mine, in one piece; boxes of 1x128
    const __grid_constant__ TensorMap w_scale,  // mine, in one piece; boxes of 1x4
    const Buffer<X_SCALE_AT, X_SCALE_BYTES> smem_x_scale = {base};
    const Buffer<W_SCALE_AT, W_SCALE_BYTES> smem_w_scale = {base};
    tma_prefetch_map(x_scale);
    tma_prefetch_map(w_scale);
    tma_load(smem_x_scale[stage.index], x_scale, full.at, t.row * TILE_M, step, 0, 0);
    tma_load(smem_w_scale[stage.index], w_scale, full.at, step / 4 * 4,
    float x_scales[2];
    scales_on_m(x_scales, smem_x_scale[stage.index], first_row, lane);
    const float w_scales = scale_of_block(smem_w_scale[stage.index] + (step % 4) * 4);
    fence_async_shared();
    add_scaled(acc[i], short_acc[i], x_scales[vector_index_transposed(i)], w_scales);
    fence_async_shared();
    ");
}

/// Scales along the instruction's N side; several on it; tiles whose columns are on the M side.
#[test]
fn every_side_has_its_scales() {
    let lines = |scales, tile| of_scales(&text("gemm", &variant(scales, tile)));
    insta::assert_snapshot!(lines(Scales::Blocks1d2d, (256, 128)), @"
    constexpr u32 STAGES = 3;  // stages of x and w and x_scale and w_scale in flight
    constexpr u32 SCALE_BLOCK = 128;  // elements of K, and rows of a square, that have one scale
    const __grid_constant__ TensorMap x_scale,  // mine, in one piece; boxes of 1x256
    const __grid_constant__ TensorMap w_scale,  // mine, in one piece; boxes of 1x4
    const Buffer<X_SCALE_AT, X_SCALE_BYTES> smem_x_scale = {base};
    const Buffer<W_SCALE_AT, W_SCALE_BYTES> smem_w_scale = {base};
    tma_prefetch_map(x_scale);
    tma_prefetch_map(w_scale);
    tma_load(smem_x_scale[stage.index], x_scale, full.at, t.row * TILE_M, step, 0, 0);
    tma_load(smem_w_scale[stage.index], w_scale, full.at, step / 4 * 4,
    float x_scales[BLOCKS][2];
    scales_on_m(x_scales[block], smem_x_scale[stage.index], first_row + block * 64, lane);
    const float w_scales = scale_of_block(smem_w_scale[stage.index] + (step % 4) * 4);
    add_scaled(acc[0][i], short_acc[i], x_scales[0][vector_index_transposed(i)], w_scales);
    fence_async_shared();
    add_scaled(acc[1][i], short_acc[i], x_scales[1][vector_index_transposed(i)], w_scales);
    fence_async_shared();
    ");
    insta::assert_snapshot!(lines(Scales::Blocks1d2d, (128, 256)), @"
    constexpr u32 STAGES = 3;  // stages of x and w and x_scale and w_scale in flight
    constexpr u32 SCALE_BLOCK = 128;  // elements of K, and rows of a square, that have one scale
    const __grid_constant__ TensorMap x_scale,  // mine, in one piece; boxes of 1x128
    const __grid_constant__ TensorMap w_scale,  // mine, in one piece; boxes of 2x4
    const Buffer<X_SCALE_AT, X_SCALE_BYTES> smem_x_scale = {base};
    const Buffer<W_SCALE_AT, W_SCALE_BYTES> smem_w_scale = {base};
    tma_prefetch_map(x_scale);
    tma_prefetch_map(w_scale);
    tma_load(smem_x_scale[stage.index], x_scale, full.at, t.row * TILE_M, step, 0, 0);
    tma_load(smem_w_scale[stage.index], w_scale, full.at, step / 4 * 4,
    float x_scales[2];
    scales_on_m(x_scales, smem_x_scale[stage.index], first_row, lane);
    float w_scales[TILE_N / SCALE_BLOCK];
    w_scales[i] = scale_of_block(smem_w_scale[stage.index] + (step % 4) * 4 + i * 16);
    add_scaled(acc[i], short_acc[i], x_scales[vector_index_transposed(i)],
    w_scales[(i) / (SCALE_BLOCK / 2)]);
    fence_async_shared();
    add_scaled(acc[i + (TILE_N / 2 / 2)], short_acc[i], x_scales[vector_index_transposed(i)],
    w_scales[(i + (TILE_N / 2 / 2)) / (SCALE_BLOCK / 2)]);
    fence_async_shared();
    ");
    insta::assert_snapshot!(lines(Scales::Blocks1d1d, (128, 128)), @"
    constexpr u32 STAGES = 5;  // stages of x and w and x_scale and w_scale in flight
    const __grid_constant__ TensorMap x_scale,  // mine, in one piece; boxes of 1x128
    const __grid_constant__ TensorMap w_scale,  // mine, in one piece; boxes of 1x128
    const Buffer<X_SCALE_AT, X_SCALE_BYTES> smem_x_scale = {base};
    const Buffer<W_SCALE_AT, W_SCALE_BYTES> smem_w_scale = {base};
    tma_prefetch_map(x_scale);
    tma_prefetch_map(w_scale);
    tma_load(smem_x_scale[stage.index], x_scale, full.at, t.row * TILE_M, step, 0, 0);
    tma_load(smem_w_scale[stage.index], w_scale, full.at, t.column * TILE_N, step, 0, 0);
    float x_scales[2];
    scales_on_m(x_scales, smem_x_scale[stage.index], first_row, lane);
    float w_scales[TILE_N / 4];
    scales_on_n<TILE_N>(w_scales, smem_w_scale[stage.index], lane);
    fence_async_shared();
    add_scaled(acc[i], short_acc[i], x_scales[vector_index_transposed(i)], w_scales[vector_index(i)]);
    fence_async_shared();
    ");
    insta::assert_snapshot!(lines(Scales::Blocks1d2d, (16, 256)), @"
    constexpr u32 STAGES = 6;  // stages of x and w and x_scale and w_scale in flight
    constexpr u32 SCALE_BLOCK = 128;  // elements of K, and rows of a square, that have one scale
    const __grid_constant__ TensorMap x_scale,  // mine, in one piece; boxes of 1x16
    const __grid_constant__ TensorMap w_scale,  // mine, in one piece; boxes of 2x4
    const Buffer<X_SCALE_AT, X_SCALE_BYTES> smem_x_scale = {base};
    const Buffer<W_SCALE_AT, W_SCALE_BYTES> smem_w_scale = {base};
    tma_prefetch_map(x_scale);
    tma_prefetch_map(w_scale);
    tma_load(smem_x_scale[stage.index], x_scale, full.at, t.row * TILE_M, step, 0, 0);
    tma_load(smem_w_scale[stage.index], w_scale, full.at, step / 4 * 4,
    float x_scales[TILE_M / 4];
    scales_on_n<TILE_M>(x_scales, smem_x_scale[stage.index], lane);
    const float w_scales =
    scale_of_block(smem_w_scale[stage.index] + (step % 4) * 4 + first_column / SCALE_BLOCK * 16);
    fence_async_shared();
    add_scaled(acc[block][i], short_acc[block][i], x_scales[vector_index(i)], w_scales);
    fence_async_shared();
    ");
}

#[test]
fn every_tile_that_fits_is_accepted() {
    let tiles = [
        (16, 64),
        (80, 128),
        (64, 256),
        (128, 64),
        (256, 128),
        (128, 256),
    ];
    for tile in tiles {
        text("gemm", &variant(Scales::Blocks1d2d, tile));
    }
    for tile in [(16, 64), (64, 128), (128, 128), (256, 64)] {
        text("gemm", &variant(Scales::Blocks2d1d, tile));
        text("gemm", &variant(Scales::Blocks1d1d, tile));
    }
    for name in ["gemm_rs", "gemm_ar", "all_to_all"] {
        text(name, &variant(Scales::Blocks1d2d, (128, 128)));
        text(name, &variant(Scales::Blocks1d1d, (128, 128)));
    }
}

/// Every element, against products in f64 of what the operands stand for. All numbers are exact, and no two blocks have one
/// scale. No tile divides the shapes, nor does a step.
#[test]
fn results_are_those_of_dequantised_operands() {
    for (scales, name) in BLOCKS
        .iter()
        .flat_map(|scales| ["gemm", "gemm_rs"].map(|name| (*scales, name)))
    {
        let world = if name == "gemm" { 1 } else { 2 };
        let rows_divided = name != "gemm" && scales == Scales::Blocks2d1d;
        if !rows_divided {
            for (m, n, k) in [(143, 200, 272), (7, 576, 144)] {
                dequantised(name, world, scales, (m, n, k));
            }
        }
    }
}

fn dequantised(name: &str, world: u32, scales: Scales, (m, n, k): (u32, u32, u32)) {
    let variant = Variant {
        world,
        ..variant(scales, (128, 128))
    };
    let kernel = lower(&program(name), &variant).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{name} {variant}: {error}"));
    let shape = Shape::new(m, n, k);
    let series = verify::series(&kernel, &shape, &Machine::h200());
    let series = series.unwrap_or_else(|error| panic!("{name} {variant}: {error}"));
    let plan = series.plan(&shape);
    let plan = plan.unwrap_or_else(|error| panic!("{name} {variant}: {error}"));
    let mut given: HashMap<(String, u32), Vec<f32>> = HashMap::new();
    let mut fill = interp::integers(3);
    let inputs = |input: Input<'_>, values: &mut [f32]| {
        fill(input, values);
        if input.name.ends_with(".scale") {
            // Powers of two, so that sums are exact: of an exponent that is a block's own among its neighbours.
            let lines = values.chunks_mut(input.columns as usize).enumerate();
            for (row, line) in lines {
                for (column, value) in line.iter_mut().enumerate() {
                    let exponent = (row * 3 + column * 5) % 7;
                    *value = 2f32.powi(exponent as i32 - 3);
                }
            }
        }
        given.insert((input.name.into(), input.rank), values.to_vec());
    };
    let ran = interp::run(&series, &[&plan], &Options::seed(1), inputs);
    let ran = ran.unwrap_or_else(|error| panic!("{name} {variant}: {error}"));
    let [of_x, of_w] = scales.blocks().expect("blocks");
    let scale =
        |tensor: &str, rank: u32, block: ScaleBlock, (row, rows): (usize, u32), at: usize| {
            let plane = &given[&(tensor.to_string(), rank)];
            let step = at / 128;
            f64::from(match block {
                ScaleBlock::Line => plane[step * rows as usize + row],
                ScaleBlock::Square => plane[row / 128 * (k as usize).div_ceil(128) + step],
            })
        };
    let product = |rank: u32, row: usize, column: usize| -> f64 {
        let [x, w] = ["x", "w"].map(|name| &given[&(name.to_string(), rank)]);
        let terms = (0..k as usize).map(|at| {
            let x =
                f64::from(x[row * k as usize + at]) * scale("x.scale", rank, of_x, (row, m), at);
            let w = f64::from(w[column * k as usize + at])
                * scale("w.scale", rank, of_w, (column, n), at);
            x * w
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
            let ranks = match name {
                "gemm_rs" => 0..world,
                _ => output.rank..output.rank + 1,
            };
            // Sums are exact in f32. What is stored is bf16: the result, and what each rank sends of it.
            let parts: Vec<f64> = ranks.map(|rank| product(rank, row, column)).collect();
            let wanted: f64 = parts.iter().sum();
            let size: f64 = parts.iter().map(|part| part.abs()).sum();
            let off = match parts.len() {
                1 => (f64::from(Bf16.round(wanted as f32)) - wanted).abs(),
                _ => size / 128.0,
            };
            let near = (f64::from(*value) - wanted).abs() <= off;
            assert!(
                near,
                "{name} {variant}: {row}, {column}: {value}, not {wanted}"
            );
            compared += 1;
        }
    }
    assert_eq!(compared, m * n, "{name}");
}

/// The reference knows the scales of blocks, and its bound tells them from others.
#[test]
fn the_reference_has_scales() {
    for (scales, name) in BLOCKS
        .iter()
        .flat_map(|scales| ["gemm", "gemm_rs"].map(|name| (*scales, name)))
    {
        let kernel = lower(&program(name), &variant(scales, (128, 128))).and_then(verify::kernel);
        let kernel = kernel.unwrap_or_else(|error| panic!("{name}: {error}"));
        let shape = Shape::new(263, 136, 528);
        let series = verify::series(&kernel, &shape, &Machine::h200());
        let series = series.unwrap_or_else(|error| panic!("{name}: {error}"));
        let plan = series.plan(&shape);
        let plan = plan.unwrap_or_else(|error| panic!("{name}: {error}"));
        let known = interp::reference(series.kernel(), &plan, 0, interp::uniform(5));
        let known = known.unwrap_or_else(|error| panic!("{name}: {error}"));
        let right = interp::run(&series, &[&plan], &Options::seed(1), interp::uniform(5));
        let right = right.unwrap_or_else(|error| panic!("{name}: {error}"));
        interp::compare(&right, &known).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut wrong = right;
        let y = wrong.outputs.len() - 1;
        wrong.outputs[y]
            .values
            .iter_mut()
            .for_each(|value| *value *= 1.5);
        assert!(interp::compare(&wrong, &known).is_err(), "{name}");
    }
}

fn refused(name: &str, variant: &Variant) -> String {
    let found = built(&program(name), variant).expect_err("refused");
    found.first().text(&|_| String::new())
}

#[test]
fn what_has_no_scales_of_blocks() {
    insta::assert_snapshot!(refused("ag_gemm", &variant(Scales::Blocks1d2d, (128, 128))), @"
    error[language]: scales of blocks of `x`, which travels between ranks
      help: a Local operand, or scales of rows or of the whole: this version moves no scales of blocks
    ");
    insta::assert_snapshot!(refused("gemm", &variant(Scales::Blocks1d2d, (128, 192))), @"
    error[resources]: tiles of 192 columns, across the blocks of 128 of `w.scale`
      help: a number of columns that divides 128, or a multiple of it
    ");
    insta::assert_snapshot!(refused("gemm_rs", &variant(Scales::Blocks2d1d, (128, 128))), @"
    error[resources]: blocks of 128 rows in `x.scale`, where ranks divide the rows
      help: scales of 1×128 for that operand: the rows of a rank may end within a block
    ");
    insta::assert_snapshot!(refused("gemm", &variant(Scales::Blocks1d1d, (256, 192))), @"
    error[resources]: tiles of 256x192 with promoted sums
      help: 256x128 and 128x256 at most: promoted sums are in registers beside those of tensor cores
    ");
    insta::assert_snapshot!(refused("gemm", &variant(Scales::Blocks1d1d, (128, 128)).dtype(E5M2)), @"
    error[resources]: a product of e5m2
      help: make one of the two e4m3: 3 bits of precision in both are too few
    ");
    insta::assert_snapshot!(refused("gemm", &Variant::new(1).scales(Scales::Blocks1d1d)), @"
    error[shape]: scales for gemm, which multiplies nothing of FP8
      help: an element type with scales, e4m3, or no scales
    ");
}

/// What the verifier says of a pipeline that is not what was lowered.
fn broken(break_it: impl Fn(&mut Vec<Node>)) -> String {
    let pipeline = built(&program("gemm"), &variant(Scales::Blocks1d2d, (128, 128)));
    let mut pipeline = pipeline.unwrap_or_else(|error| panic!("{error}"));
    pipeline.lists(&mut |list| break_it(list));
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

fn reads(node: &Node) -> bool {
    matches!(node, Node::Fragment(FragmentOp::ReadBlocks { .. }))
}

fn promotes(node: &Node) -> bool {
    matches!(node, Node::Fragment(FragmentOp::Promote { .. }))
}

#[test]
fn a_scale_that_a_warp_loses() {
    // The stage is released before its scales are read.
    insta::assert_snapshot!(broken(|list| {
        if let Some(at) = list.iter().position(reads) {
            let read = list.remove(at);
            let to = list.iter().position(promotes).expect("promoted");
            list.insert(to, read);
        }
    }), @"
    error[race]: load of block 0 on rank 0 loads rows 5..6, columns 0..128 of x.scale (chunk or slot 0) on rank 0 into x_scale of stage 0 for tile (0, 0)
      = multiply of block 0 on rank 0 reads x_scale of stage 0
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    // Ordinary reads before TMA writes there again, without a fence.
    insta::assert_snapshot!(broken(|list| {
        if list.iter().any(reads) {
            list.retain(|node| !matches!(node, Node::FenceShared));
        }
    }), @"
    error[race]: load of block 0 on rank 0 loads rows 5..6, columns 0..128 of x.scale (chunk or slot 0) on rank 0 into x_scale of stage 0 for tile (0, 0)
      = multiply of block 0 on rank 0 reads x_scale of stage 0
      = a barrier or a counter orders them, but no proxy fence
      help: `fence_async_shared` after ordinary accesses, before the slot is released
    ");
    // Not read at all.
    insta::assert_snapshot!(broken(|list| {
        if let Some(at) = list.iter().position(reads) {
            list.remove(at);
        }
    }), @"
    error[coverage]: multiply of block 0 on rank 0 promotes block 0 part 0
      = the scales of its blocks were not read
    ");
    // Before the stage has come.
    insta::assert_snapshot!(broken(|list| {
        if let Some(at) = list.iter().position(reads) {
            let read = list.remove(at);
            list.insert(0, read);
        }
    }), @"
    error[race]: multiply of block 0 on rank 0 reads x_scale of stage 0
      = load of block 0 on rank 0 loads rows 0..1, columns 0..128 of x.scale (chunk or slot 0) on rank 0 into x_scale of stage 0 for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    // One scale twice, and the other never.
    insta::assert_snapshot!(broken(|list| {
        for node in list {
            if let Node::Fragment(FragmentOp::ReadBlocks { scale, .. }) = node {
                *scale = 1;
            }
        }
    }), @"
    error[coverage]: multiply of block 0 on rank 0 promotes block 0 part 0
      = the scales of its blocks were not read
    ");
}

/// TMA takes no box that begins within 16 bytes: each step's own number, in the place of four that hold it.
#[test]
fn a_box_that_begins_within_16_bytes() {
    let pipeline = built(&program("gemm"), &variant(Scales::Blocks1d2d, (128, 128)));
    let mut pipeline = pipeline.unwrap_or_else(|error| panic!("{error}"));
    let kernel = pipeline.kernel.clone();
    let of_w = |tensor: usize| kernel.buffers[tensor].name == "w.scale";
    let maps: Vec<bool> = (pipeline.maps.iter())
        .map(|map| of_w(map.tensor.index()))
        .collect();
    pipeline.lists(&mut |list| {
        for node in list {
            if let Node::Load { map, at, .. } = node
                && maps[usize::from(map.0)]
            {
                at.column = Expr::var("step");
            } else if let Node::Fragment(FragmentOp::ReadBlocks { number, .. }) = node {
                *number = 0.into();
            }
        }
    });
    let found = verify::pipeline(pipeline).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[coverage]: load of block 0 on rank 0 loads rows 0..1, columns 1..5 of w.scale (chunk or slot 0) on rank 0 into w_scale of stage 1 for tile (0, 0)
      = the box begins at a column that is no multiple of 16 bytes
    ");
}

/// Chunks of rows with scales of 1×128 begin at multiples of 16 bytes.
#[test]
fn chunks_of_rows_with_scales_of_lines() {
    let kernel = lower(
        &program("gemm_rs"),
        &variant(Scales::Blocks1d2d, (128, 128)),
    );
    let kernel = kernel.and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
    let refused = |m: u32| {
        let series = verify::series(&kernel, &Shape::new(m, 256, 512), &Machine::h200());
        series
            .err()
            .map(|found| found.first().text(&|_| String::new()))
    };
    for m in [512, 511, 504, 503] {
        assert_eq!(refused(m), None, "{m}");
    }
    insta::assert_snapshot!(refused(510).expect("refused"), @"
    error[resources]: scales of 1×128 for chunks of 255 rows of `x`
      help: chunks of a multiple of 4 rows: TMA begins at 16 bytes
    ");
}

/// Scales of the step's neighbour, and of another tile: all bytes come, and nothing races.
#[test]
fn scales_of_another_block() {
    let moved = |by_column: bool| {
        let pipeline = built(&program("gemm"), &variant(Scales::Blocks1d2d, (128, 128)));
        let mut pipeline = pipeline.unwrap_or_else(|error| panic!("{error}"));
        let kernel = pipeline.kernel.clone();
        let of_x = |tensor: usize| kernel.buffers[tensor].name == "x.scale";
        let maps: Vec<bool> = pipeline
            .maps
            .iter()
            .map(|map| of_x(map.tensor.index()))
            .collect();
        pipeline.lists(&mut |list| {
            for node in list {
                if let Node::Load { map, at, .. } = node
                    && maps[usize::from(map.0)]
                {
                    match by_column {
                        true => at.column = 0.into(),
                        false => at.row = at.row.clone() + 1,
                    }
                }
            }
        });
        let found = verify::pipeline(pipeline).expect_err("refused");
        found.first().text(&|_| String::new())
    };
    insta::assert_snapshot!(moved(false), @"
    error[coverage]: multiply of block 0 on rank 0 promotes block 0 part 0
      = the scales that were read are of another block of K
    ");
    insta::assert_snapshot!(moved(true), @"
    error[coverage]: multiply of block 1 on rank 0 promotes block 0 part 0
      = the scales that were read are of other rows or columns
    ");
}
