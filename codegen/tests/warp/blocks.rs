//! Scales of blocks: what a step becomes, that results are those of dequantised operands, what is refused, and what the verifier
//! says of a scale that is lost.

use crate::fixtures::library;
use crate::fixtures::wide::{in_turn, wide};
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::{Bf16, E4M3, E5M2};
use counterflow_codegen::encoding::{Along, Scaling};
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::{Program, ScaleBlock, Side};
use counterflow_codegen::shape::{Extent, Shape};
use counterflow_codegen::variant::{Asked, Scales, Tensors, Variant};
use counterflow_codegen::warp::{Expr, FragmentOp, Node, Pipeline};
use counterflow_codegen::{sm90, verify};
use counterflow_emitter as cuda;
use counterflow_emulator::{self as interp, Input, Options};
use ndarray::{Array2, s};
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
    const __grid_constant__ TensorMap x_scale,  // own memory, one matrix; boxes of 1x128
    const __grid_constant__ TensorMap w_scale,  // own memory, one matrix; boxes of 1x4
    const Buffer<X_SCALE_AT, X_SCALE_BYTES> smem_x_scale = {base};
    const Buffer<W_SCALE_AT, W_SCALE_BYTES> smem_w_scale = {base};
    tma_prefetch_map(x_scale);
    tma_prefetch_map(w_scale);
    fence_async_shared();
    tma_load(smem_x_scale[stage.index], x_scale, full.at, t.row * TILE_M, step);
    tma_load(smem_w_scale[stage.index], w_scale, full.at, step / 4 * 4,
    float x_scales[2];
    scales_on_m(x_scales, smem_x_scale[stage.index], first_row, lane);
    const float w_scales = scale_of_block(smem_w_scale[stage.index] + (step % 4) * SCALE_STRIDE);
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
    const __grid_constant__ TensorMap x_scale,  // own memory, one matrix; boxes of 1x256
    const __grid_constant__ TensorMap w_scale,  // own memory, one matrix; boxes of 1x4
    const Buffer<X_SCALE_AT, X_SCALE_BYTES> smem_x_scale = {base};
    const Buffer<W_SCALE_AT, W_SCALE_BYTES> smem_w_scale = {base};
    tma_prefetch_map(x_scale);
    tma_prefetch_map(w_scale);
    fence_async_shared();
    tma_load(smem_x_scale[stage.index], x_scale, full.at, t.row * TILE_M, step);
    tma_load(smem_w_scale[stage.index], w_scale, full.at, step / 4 * 4,
    float x_scales[BLOCKS][2];
    scales_on_m(x_scales[block], smem_x_scale[stage.index], first_row + block * 64, lane);
    const float w_scales = scale_of_block(smem_w_scale[stage.index] + (step % 4) * SCALE_STRIDE);
    add_scaled(acc[0][i], short_acc[i], x_scales[0][vector_index_transposed(i)], w_scales);
    add_scaled(acc[1][i], short_acc[i], x_scales[1][vector_index_transposed(i)], w_scales);
    fence_async_shared();
    ");
    insta::assert_snapshot!(lines(Scales::Blocks1d2d, (128, 256)), @"
    constexpr u32 STAGES = 3;  // stages of x and w and x_scale and w_scale in flight
    constexpr u32 SCALE_BLOCK = 128;  // elements of K, and rows of a square, that have one scale
    const __grid_constant__ TensorMap x_scale,  // own memory, one matrix; boxes of 1x128
    const __grid_constant__ TensorMap w_scale,  // own memory, one matrix; boxes of 2x4
    const Buffer<X_SCALE_AT, X_SCALE_BYTES> smem_x_scale = {base};
    const Buffer<W_SCALE_AT, W_SCALE_BYTES> smem_w_scale = {base};
    tma_prefetch_map(x_scale);
    tma_prefetch_map(w_scale);
    fence_async_shared();
    tma_load(smem_x_scale[stage.index], x_scale, full.at, t.row * TILE_M, step);
    tma_load(smem_w_scale[stage.index], w_scale, full.at, step / 4 * 4,
    float x_scales[2];
    scales_on_m(x_scales, smem_x_scale[stage.index], first_row, lane);
    float w_scales[TILE_N / SCALE_BLOCK];
    w_scales[i] =
    scale_of_block(smem_w_scale[stage.index] + (step % 4) * SCALE_STRIDE + i * SCALE_LINE_STRIDE);
    add_scaled(acc[i], short_acc[i], x_scales[vector_index_transposed(i)],
    w_scales[(i) / (SCALE_BLOCK / 2)]);
    add_scaled(acc[i + (TILE_N / 2 / 2)], short_acc[i], x_scales[vector_index_transposed(i)],
    w_scales[(i + (TILE_N / 2 / 2)) / (SCALE_BLOCK / 2)]);
    fence_async_shared();
    ");
    insta::assert_snapshot!(lines(Scales::Blocks1d1d, (128, 128)), @"
    constexpr u32 STAGES = 5;  // stages of x and w and x_scale and w_scale in flight
    const __grid_constant__ TensorMap x_scale,  // own memory, one matrix; boxes of 1x128
    const __grid_constant__ TensorMap w_scale,  // own memory, one matrix; boxes of 1x128
    const Buffer<X_SCALE_AT, X_SCALE_BYTES> smem_x_scale = {base};
    const Buffer<W_SCALE_AT, W_SCALE_BYTES> smem_w_scale = {base};
    tma_prefetch_map(x_scale);
    tma_prefetch_map(w_scale);
    fence_async_shared();
    tma_load(smem_x_scale[stage.index], x_scale, full.at, t.row * TILE_M, step);
    tma_load(smem_w_scale[stage.index], w_scale, full.at, t.column * TILE_N, step);
    float x_scales[2];
    scales_on_m(x_scales, smem_x_scale[stage.index], first_row, lane);
    float w_scales[TILE_N / 4];
    scales_on_n<TILE_N>(w_scales, smem_w_scale[stage.index], lane);
    add_scaled(acc[i], short_acc[i], x_scales[vector_index_transposed(i)], w_scales[vector_index(i)]);
    fence_async_shared();
    ");
    insta::assert_snapshot!(lines(Scales::Blocks1d2d, (16, 256)), @"
    constexpr u32 STAGES = 6;  // stages of x and w and x_scale and w_scale in flight
    constexpr u32 SCALE_BLOCK = 128;  // elements of K, and rows of a square, that have one scale
    const __grid_constant__ TensorMap x_scale,  // own memory, one matrix; boxes of 1x16
    const __grid_constant__ TensorMap w_scale,  // own memory, one matrix; boxes of 2x4
    const Buffer<X_SCALE_AT, X_SCALE_BYTES> smem_x_scale = {base};
    const Buffer<W_SCALE_AT, W_SCALE_BYTES> smem_w_scale = {base};
    tma_prefetch_map(x_scale);
    tma_prefetch_map(w_scale);
    fence_async_shared();
    tma_load(smem_x_scale[stage.index], x_scale, full.at, t.row * TILE_M, step);
    tma_load(smem_w_scale[stage.index], w_scale, full.at, step / 4 * 4,
    float x_scales[TILE_M / 4];
    scales_on_n<TILE_M>(x_scales, smem_x_scale[stage.index], lane);
    const float w_scales =
    scale_of_block(smem_w_scale[stage.index] + (step % 4) * SCALE_STRIDE
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
    let tiles = [(16, 64), (64, 128), (128, 128), (256, 64)];
    for (at, tile) in tiles.into_iter().enumerate() {
        for scales in in_turn([Scales::Blocks2d1d, Scales::Blocks1d1d], at) {
            text("gemm", &variant(scales, tile));
        }
    }
    let names = ["gemm_rs", "gemm_ar", "all_to_all"];
    for (at, name) in names.into_iter().enumerate() {
        for scales in in_turn([Scales::Blocks1d2d, Scales::Blocks1d1d], at) {
            text(name, &variant(scales, (128, 128)));
        }
    }
}

/// Every element, against products in f64 of what the operands stand for. All numbers are exact, and no two blocks have one
/// scale. No tile divides the shapes, nor does a step.
#[test]
fn results_are_those_of_dequantised_operands() {
    for (scales, name) in BLOCKS
        .iter()
        .flat_map(|scales| ["gemm", "gemm_rs", "gemm_ar"].map(|name| (*scales, name)))
        .enumerate()
        .filter(|(at, _)| wide() || at % 4 == 0)
        .map(|(_, one)| one)
    {
        let world = if name == "gemm" { 1 } else { 2 };
        let sizes = [(143, 200, 272), (7, 576, 144)];
        for (m, n, k) in &sizes[..if wide() { 2 } else { 1 }] {
            dequantised(name, world, scales, (*m, *n, *k));
        }
    }
    dequantised("gemm_ar", 2, Scales::Blocks1d2d, (7, 2112, 144));
    // The sample has each kind of scales once.
    for (at, scales) in BLOCKS.into_iter().enumerate() {
        if wide() || at != 1 {
            dequantised("ag_gemm", 3, scales, (299, 40, 272));
        }
        if wide() || at == 1 {
            dequantised("fsdp_gemm", 3, scales, (7, 320, 144));
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
    let mut given: HashMap<(String, u32), (Extent, u32, Vec<f32>)> = HashMap::new();
    let mut fill = interp::integers(3);
    let inputs = |input: Input<'_>, values: &mut [f32]| {
        let (rows, columns) = (input.rows, input.columns);
        let (name, rank) = (input.name.to_string(), input.rank);
        fill(input, values);
        if name.ends_with(".scale") {
            // Powers of two, so that sums are exact: of an exponent that is a block's own among its neighbours.
            let lines = values.chunks_mut(columns as usize).enumerate();
            for (row, line) in lines {
                for (column, value) in line.iter_mut().enumerate() {
                    let exponent = ((rows.start as usize + row) * 3 + column * 5) % 7;
                    *value = 2f32.powi(exponent as i32 - 3);
                }
            }
        }
        given.insert((name, rank), (rows, columns, values.to_vec()));
    };
    let ran = interp::run(&series, &[&plan], &Options::seed(1), inputs);
    let ran = ran.unwrap_or_else(|error| panic!("{name} {variant}: {error}"));
    // What a rank does not have of its own, another one sends. What none has stays no number.
    let whole = |tensor: &str, rank: u32| -> Array2<f64> {
        let of = |rank: u32| given.get(&(tensor.to_string(), rank));
        let others = (0..world).rev().filter(|other| *other != rank);
        let parts: Vec<_> = others.chain([rank]).filter_map(of).collect();
        let rows = parts.iter().map(|(rows, ..)| rows.end as usize).max();
        let columns = parts.first().expect("some rank has it").1 as usize;
        let mut all = Array2::from_elem((rows.unwrap_or(0), columns), f64::NAN);
        for (rows, _, values) in parts {
            let mut lines = all.slice_mut(s![rows.start as usize..rows.end as usize, ..]);
            let numbers = lines.iter_mut().zip(values);
            numbers.for_each(|(number, value)| *number = f64::from(*value));
        }
        all
    };
    // What an operand of a rank stands for.
    let operand = |operand: &str, rank: u32, block: ScaleBlock| -> Array2<f64> {
        let name = format!("{operand}.scale");
        let mut planes = kernel.buffers.iter().filter(|buffer| buffer.name == name);
        let kind = planes.next().expect("a scale").usage;
        let scales = whole(&name, rank);
        let scales = match kind.operand_rows() {
            Some(Side::Columns) => scales.reversed_axes(),
            Some(Side::Rows) | None => scales,
        };
        let mut numbers = whole(operand, rank);
        for ((row, at), number) in numbers.indexed_iter_mut() {
            *number *= scales[[row / block.rows as usize, at / block.columns as usize]];
        }
        numbers
    };
    let [of_x, of_w] = scales.blocks().expect("blocks");
    let products: Vec<Array2<f64>> = (0..world)
        .map(|rank| operand("x", rank, of_x).dot(&operand("w", rank, of_w).t()))
        .collect();
    let mut compared = 0;
    for output in ran.outputs.iter() {
        if kernel.buffers[output.tensor.index()].name != "y" {
            continue;
        }
        for (at, value) in output.values.iter().enumerate() {
            let (row, column) = (at / n as usize, at % n as usize);
            let row = output.rows.start as usize + row;
            let ranks = match name {
                "gemm_rs" | "gemm_ar" => 0..world,
                _ => output.rank..output.rank + 1,
            };
            // Sums are exact in f32. What is stored is bf16: the result, and what each rank sends of it.
            let parts: Vec<f64> = ranks
                .map(|rank| products[rank as usize][[row, column]])
                .collect();
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
    // Each rank has all of what is reduced, and multiplies all of what is gathered.
    let copies = if name == "gemm_rs" { 1 } else { world };
    assert_eq!(compared, m * n * copies, "{name}");
}

/// The reference knows the scales of blocks, and its bound tells them from others.
#[test]
fn the_reference_has_scales() {
    let all = BLOCKS.iter().enumerate().flat_map(|(at, scales)| {
        let names = in_turn(["gemm", "gemm_rs"], at);
        names.map(|name| (*scales, name))
    });
    for (scales, name) in all {
        let kernel = lower(&program(name), &variant(scales, (128, 128))).and_then(verify::kernel);
        let kernel = kernel.unwrap_or_else(|error| panic!("{name}: {error}"));
        let shape = Shape::new(263, 136, if wide() { 528 } else { 272 });
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
fn blocks_that_no_operand_has_are_refused() {
    let narrow = |columns| ScaleBlock {
        columns,
        ..ScaleBlock::F32_1X128
    };
    let asked = |blocks: [ScaleBlock; 2]| {
        let operands = [Tensors::Lhs, Tensors::Rhs];
        let each = operands.into_iter().zip(blocks);
        let variant = each.fold(Variant::new(1).dtype(E4M3), |variant, (operands, block)| {
            let scale = Some(Scaling::Given(Along::Blocks(block)));
            let asked = variant.asked(&operands);
            variant.encode(operands, Asked { scale, ..asked })
        });
        refused("gemm", &variant)
    };
    let told = asked([narrow(32); 2]);
    assert!(
        told.contains("scales of 1×32 for the operands of gemm"),
        "{told}"
    );
    assert!(
        told.contains("scales of one of these blocks: 1×128, 128×128"),
        "{told}"
    );
    let told = asked([narrow(32), narrow(128)]);
    assert!(told.contains("scales of 1×32 and of 1×128"), "{told}");
}

/// What a variant asks for by blocks is what it asks for by the kind of scales.
#[test]
fn scales_may_be_asked_for_by_their_blocks() {
    for scales in BLOCKS {
        let operands = [Tensors::Lhs, Tensors::Rhs];
        let each = operands.into_iter().zip(scales.blocks().expect("blocks"));
        let asked = each.fold(Variant::new(2).dtype(E4M3), |variant, (operands, block)| {
            let scale = Some(Scaling::Given(Along::Blocks(block)));
            let asked = variant.asked(&operands);
            variant.encode(operands, Asked { scale, ..asked })
        });
        assert_eq!(asked.set("tiles", (128, 128)), variant(scales, (128, 128)));
    }
}

#[test]
fn what_has_no_scales_of_blocks() {
    insta::assert_snapshot!(refused("gemm", &variant(Scales::Blocks1d1d, (256, 192))), @"
    error[resources]: tiles of 256x192 with promoted sums
      help: smaller tiles: a thread keeps 192 numbers; promoted sums are 192, scales 48, and the sums of the tensor cores at least 24
    ");
    // Sums and scales alone would fit.
    insta::assert_snapshot!(refused("gemm", &variant(Scales::Blocks1d1d, (256, 144))), @"
    error[resources]: tiles of 256x144 with promoted sums
      help: smaller tiles: a thread keeps 192 numbers; promoted sums are 144, scales 36, and the sums of the tensor cores at least 72
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

#[test]
fn a_scale_that_a_warp_loses() {
    // The stage is released before its scales are read.
    insta::assert_snapshot!(broken(|list| {
        if let Some(at) = list.iter().position(reads) {
            let read = list.remove(at);
            let next = |node: &Node| matches!(node, Node::Advance { .. });
            let to = list.iter().position(next).expect("the next stage");
            list.insert(to, read);
        }
    }), @"
    error[race]: load of block 0 on rank 0 loads rows 5..6, columns 0..128 of x.scale (shard or slot 0) on rank 0 into x_scale of stage 0 for tile (0, 0)
      = multiply of block 0 on rank 0 reads x_scale of stage 0
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    // Ordinary reads before TMA writes there again, without a fence.
    insta::assert_snapshot!(broken(|list| {
        if list.iter().any(|node| matches!(node, Node::Expect { .. })) {
            list.retain(|node| !matches!(node, Node::FenceShared));
        }
    }), @"
    error[race]: load of block 0 on rank 0 loads rows 5..6, columns 0..128 of x.scale (shard or slot 0) on rank 0 into x_scale of stage 0 for tile (0, 0)
      = multiply of block 0 on rank 0 reads x_scale of stage 0
      = a barrier or a counter orders them, but no proxy fence
      help: `fence_async_shared` after ordinary accesses, before the slot is released
    ");
    // Fenced before the reads are known to be over.
    insta::assert_snapshot!(broken(|list| {
        if list.iter().any(|node| matches!(node, Node::Expect { .. })) {
            list.swap(0, 1);
        }
    }), @"
    error[race]: load of block 0 on rank 0 loads rows 5..6, columns 0..128 of x.scale (shard or slot 0) on rank 0 into x_scale of stage 0 for tile (0, 0)
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
      = load of block 0 on rank 0 loads rows 0..1, columns 0..128 of x.scale (shard or slot 0) on rank 0 into x_scale of stage 0 for tile (0, 0)
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
    error[bounds]: load of block 0 on rank 0 loads rows 0..1, columns 1..5 of w.scale (shard or slot 0) on rank 0 into w_scale of stage 1 for tile (0, 0)
      = the box begins at a column that is no multiple of 16 bytes
    ");
}

/// Shards of rows with scales of 1×128 begin at multiples of 16 bytes, and those with scales of 128×128 at blocks.
#[test]
fn shards_of_rows_with_scales_of_blocks() {
    let shards = |scales: Scales, m: u32| {
        let kernel = lower(&program("gemm_rs"), &variant(scales, (128, 128)));
        let kernel = kernel.and_then(verify::kernel);
        let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
        let shape = Shape::new(m, 256, 512);
        let series = verify::series(&kernel, &shape, &Machine::h200());
        let series = series.unwrap_or_else(|error| panic!("{m}: {error}"));
        let plan = series.plan(&shape);
        let plan = plan.unwrap_or_else(|error| panic!("{m}: {error}"));
        let rows = kernel.buffers[0].rows;
        [0, 1].map(|shard| plan.geometry.shard(rows, shard).len())
    };
    assert_eq!(shards(Scales::Blocks1d2d, 512), [256, 256]);
    assert_eq!(shards(Scales::Blocks1d2d, 510), [256, 254]);
    assert_eq!(shards(Scales::Blocks1d1d, 3), [3, 0]);
    assert_eq!(shards(Scales::Blocks2d1d, 510), [256, 254]);
    assert_eq!(shards(Scales::Blocks2d1d, 300), [256, 44]);
    assert_eq!(shards(Scales::Blocks2d1d, 100), [100, 0]);
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
