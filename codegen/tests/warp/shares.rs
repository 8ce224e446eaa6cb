//! Pieces that are promoted in shares: a thread has the scales of half of the columns at a time, so that a step of a tall tile
//! is multiplied in pieces that have all of them.

use crate::fixtures::library;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::{E4M3, F32};
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_codegen::warp::{FragmentOp, Node, Pipeline};
use counterflow_codegen::{sm90, verify};
use counterflow_emitter as cuda;

fn program(name: &str) -> Program {
    let mut all = library::all().into_iter();
    all.find(|program| program.name == name)
        .expect("a schedule")
}

fn variant(tile: (u32, u32)) -> Variant {
    let variant = Variant::new(2).dtype(E4M3).scales(Scales::Blocks1d1d);
    variant.set("tiles", tile)
}

fn built(name: &str, variant: &Variant) -> Result<Pipeline, Diagnostics> {
    sm90::build(&lower(&program(name), variant).and_then(verify::kernel)?)
}

/// What the text says of a step, from its accumulators on.
fn step(variant: &Variant) -> String {
    let pipeline = built("gemm", variant).and_then(verify::pipeline);
    let pipeline = pipeline.unwrap_or_else(|error| panic!("{variant}: {error}"));
    let text = cuda::emit(&pipeline).text;
    let from = text.find("float acc").unwrap_or_else(|| panic!("{text}"));
    let to = text[from..].find("            }\n").expect("a step's end");
    let lines = text[from..from + to].lines().map(str::trim);
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_scales_of_the_second_half_take_the_place_of_the_first() {
    insta::assert_snapshot!(step(&variant((256, 128))), @"
    float acc[BLOCKS][TILE_N / 2] = {};  // this thread's of each 64 rows
    float short_acc[TILE_N / 2];  // what tensor cores sum of a step, which keeps 13 fraction bits
    float x_scales[2];  // of one block at a time
    float w_scales[TILE_N / 2 / 4];  // of one share at a time
    #pragma unroll 1
    for (u32 step = 0; step < steps; ++step) {
    if (!stage.token) stage_full[stage.index].wait(stage.phase, watch, MULTIPLY);
    wgmma_fence();
    const u64 xs = wgmma_at<X_BYTES>(x_tile, stage.index), ws = wgmma_at<W_BYTES>(w_tile, stage.index);
    #pragma unroll
    for (u32 k = 0; k < TILE_K / 32; ++k)
    wgmma_m64k32<TILE_N>(short_acc, xs + k * WGMMA_K_STEP, ws + k * WGMMA_K_STEP, k != 0, e4m3(),
    e4m3());
    wgmma_commit();
    scales_on_m(x_scales, smem_x_scale[stage.index], first_row, lane);
    scales_on_n<TILE_N / 2>(w_scales, smem_w_scale[stage.index], lane);
    wgmma_wait<0>();
    #pragma unroll
    for (u32 i = 0; i < TILE_N / 2 / 2; ++i)
    add_scaled(acc[0][i], short_acc[i], x_scales[vector_index_transposed(i)],
    w_scales[vector_index(i)]);
    scales_on_n<TILE_N / 2>(w_scales, smem_w_scale[stage.index] + (TILE_N / 2 * SCALE_STRIDE), lane);
    #pragma unroll
    for (u32 i = 0; i < TILE_N / 2 / 2; ++i)
    add_scaled(acc[0][i + (TILE_N / 2 / 2)], short_acc[i + (TILE_N / 2 / 2)],
    x_scales[vector_index_transposed(i)], w_scales[vector_index(i)]);
    wgmma_fence();
    #pragma unroll
    for (u32 k = 0; k < TILE_K / 32; ++k)
    wgmma_m64k32<TILE_N>(short_acc, xs + k * WGMMA_K_STEP + WGMMA_64_ROWS, ws + k * WGMMA_K_STEP,
    k != 0, e4m3(), e4m3());
    wgmma_commit();
    scales_on_m(x_scales, smem_x_scale[stage.index], first_row + 64, lane);
    wgmma_wait<0>();
    #pragma unroll
    for (u32 i = 0; i < TILE_N / 2 / 2; ++i)
    add_scaled(acc[1][i + (TILE_N / 2 / 2)], short_acc[i + (TILE_N / 2 / 2)],
    x_scales[vector_index_transposed(i)], w_scales[vector_index(i)]);
    scales_on_n<TILE_N / 2>(w_scales, smem_w_scale[stage.index], lane);
    __syncwarp();
    if (lane == 0) stage_empty[stage.index].arrive();
    stage.advance();
    stage.token = stage_full[stage.index].test(stage.phase);  // meanwhile the last sums are added
    #pragma unroll
    for (u32 i = 0; i < TILE_N / 2 / 2; ++i)
    add_scaled(acc[1][i], short_acc[i], x_scales[vector_index_transposed(i)],
    w_scales[vector_index(i)]);
    ");
}

/// The pieces of the first loop's tiles: how many, how many columns each has, and in how many shares.
fn pieces(name: &str, variant: &Variant) -> Option<(u32, u32, u32)> {
    let pipeline = built(name, variant).and_then(verify::pipeline).ok()?;
    let promotion = pipeline.tiling().promotion().expect("promoted");
    Some((promotion.count(), promotion.n, promotion.shares))
}

#[test]
fn scales_are_halved_before_columns_are() {
    let alone = |tile| pieces("gemm", &variant(tile));
    assert_eq!(alone((128, 128)), Some((1, 128, 1)));
    assert_eq!(alone((128, 160)), Some((1, 160, 1)));
    assert_eq!(alone((128, 176)), Some((1, 176, 2)));
    assert_eq!(alone((128, 192)), Some((2, 96, 1)));
    assert_eq!(alone((256, 96)), Some((2, 96, 1)));
    assert_eq!(alone((256, 112)), Some((2, 112, 1)));
    assert_eq!(alone((256, 128)), Some((2, 128, 2)));
    assert_eq!(alone((256, 144)), None);
    // What is stored takes registers, too, where it is FP8.
    let stored = |dtype| pieces("gemm", &variant((256, 128)).output(dtype));
    assert_eq!(stored(F32), alone((256, 128)));
    assert_eq!(stored(E4M3), Some((4, 64, 1)));
    // Scales of columns in other places.
    let of_columns = variant((256, 128)).scales(Scales::Blocks2d1d);
    assert_eq!(pieces("gemm", &of_columns), Some((2, 128, 2)));
    let squares = variant((256, 128)).scales(Scales::Blocks1d2d);
    assert_eq!(pieces("gemm", &squares), Some((2, 128, 1)));
    // Signals leave threads fewer registers, and sums over ranks fewer still.
    assert_eq!(pieces("ag_gemm", &variant((256, 128))), Some((4, 64, 1)));
    assert_eq!(pieces("gemm_rs", &variant((256, 128))), None);
}

/// What the verifier says of a pipeline that is not what was lowered.
fn broken(break_it: impl Fn(&mut Vec<Node>)) -> String {
    let pipeline = built("gemm", &variant((256, 128)));
    let mut pipeline = pipeline.unwrap_or_else(|error| panic!("{error}"));
    pipeline.lists(&mut |list| break_it(list));
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

/// Where a list has promotions, those of a step in order.
fn promotions(list: &[Node]) -> Vec<usize> {
    let promotes = |at: &usize| matches!(list[*at], Node::Fragment(FragmentOp::Promote { .. }));
    (0..list.len()).filter(promotes).collect()
}

/// The last read of a step: that of the half which the second block begins without.
fn last_read(list: &[Node]) -> Option<usize> {
    let reads = |node: &Node| matches!(node, Node::Fragment(FragmentOp::ReadBlocks { .. }));
    list.iter().rposition(reads)
}

#[test]
fn a_share_that_is_lost() {
    insta::assert_snapshot!(broken(|list| {
        if let [_, second, ..] = promotions(list)[..] {
            list.remove(second);
        }
    }), @"
    error[coverage]: multiply of block 0 on rank 0 multiplies x of stage 0 by w of stage 0
      = what tensor cores summed before was not added to the promoted sums
    ");
    // The same one twice.
    insta::assert_snapshot!(broken(|list| {
        if let [first, second, ..] = promotions(list)[..] {
            list[second] = list[first].clone();
        }
    }), @"
    error[coverage]: multiply of block 0 on rank 0 promotes block 0 part 0 share 0
      = tensor cores summed nothing of that piece since the last one was promoted
    ");
}

#[test]
fn scales_of_another_share() {
    // Not read again for the second block.
    insta::assert_snapshot!(broken(|list| {
        if let Some(at) = last_read(list) {
            list.remove(at);
        }
    }), @"
    error[coverage]: multiply of block 0 on rank 0 promotes block 1 part 0 share 0
      = the scales that were read are of another share
    ");
    // Nor those of its rows.
    insta::assert_snapshot!(broken(|list| {
        let of_rows = |node: &Node| matches!(node, Node::Fragment(FragmentOp::ReadBlocks { scale: 0, share: 1, .. }));
        if let Some(at) = list.iter().position(of_rows) {
            list.remove(at);
        }
    }), @"
    error[coverage]: multiply of block 0 on rank 0 promotes block 1 part 0 share 1
      = the scales that were read are of another share
    ");
    // Read too early: before what had its registers is added.
    insta::assert_snapshot!(broken(|list| {
        if let Some(at) = last_read(list) {
            list.swap(at - 1, at);
        }
    }), @"
    error[coverage]: multiply of block 0 on rank 0 promotes block 1 part 0 share 1
      = the scales that were read are of another share
    ");
    // The half that is there, once more.
    insta::assert_snapshot!(broken(|list| {
        if let Some(at) = last_read(list)
            && let Node::Fragment(FragmentOp::ReadBlocks { share, .. }) = &mut list[at]
        {
            *share = 1;
        }
    }), @"
    error[coverage]: multiply of block 0 on rank 0 promotes block 1 part 0 share 0
      = the scales that were read are of another share
    ");
}

/// The stage is released behind the last multiply, before its scales are read for the last time.
#[test]
fn a_stage_that_is_released_before_its_last_read() {
    insta::assert_snapshot!(broken(|list| {
        if let Some(read) = last_read(list) {
            let arrives = |node: &Node| matches!(node, Node::Arrive { .. });
            let behind = list[read..].iter().position(arrives).expect("a release");
            let arrive = list.remove(read + behind);
            list.insert(read, arrive);
        }
    }), @"
    error[race]: load of block 0 on rank 0 loads rows 3..4, columns 0..128 of w.scale (shard or slot 0) on rank 0 into w_scale of stage 0 for tile (0, 0)
      = multiply of block 0 on rank 0 reads w_scale of stage 0
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}
