//! Scales of 128×128 whose blocks cross the edges of tiles: what such a tile reads of them, what the verifier says where it reads
//! others, and which tiles are refused.

use crate::fixtures::library;
use crate::fixtures::wide::wide;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::E4M3;
use counterflow_codegen::lower::lower;
use counterflow_codegen::tiling::{StagedScale, Tiling};
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_codegen::warp::{FragmentOp, Node, Pipeline};
use counterflow_codegen::{sm90, verify};
use counterflow_emitter as cuda;

fn built(name: &str, scales: Scales, tile: (u32, u32)) -> Result<Pipeline, Diagnostics> {
    let mut all = library::all().into_iter();
    let program = all.find(|program| program.name == name);
    let variant = Variant::new(2).dtype(E4M3).scales(scales);
    let variant = variant.set("tiles", tile);
    sm90::build(&lower(&program.expect("a schedule"), &variant).and_then(verify::kernel)?)
}

/// The lines of its text that say which scales a tile has.
fn text(name: &str, scales: Scales, tile: (u32, u32)) -> String {
    let pipeline = built(name, scales, tile).and_then(verify::pipeline);
    let pipeline = pipeline.unwrap_or_else(|error| panic!("{name} {tile:?}: {error}"));
    let text = cuda::emit(&pipeline).text;
    let (_, kernel) = text.split_once("extern \"C\"").expect("a kernel");
    let named = |line: &&str| {
        let tells = ["boxes of", "_begin", "add_scaled", "SCALE_BLOCK"];
        line.contains("scale") && tells.iter().any(|it| line.contains(it))
    };
    let lines = kernel.lines().map(str::trim).filter(named);
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_tile_has_one_of_two_numbers_for_as_many_columns_as_begin_alike() {
    insta::assert_snapshot!(text("gemm", Scales::Blocks1d2d, (128, 192)), @"
    const __grid_constant__ TensorMap x_scale,  // own memory, one matrix; boxes of 1x128
    const __grid_constant__ TensorMap w_scale,  // own memory, one matrix; boxes of 2x4
    scales_across<64, SCALE_BLOCK>(w_scales, smem_w_scale[stage.index] + (step % 4) * SCALE_STRIDE,
    add_scaled(acc[i], short_acc[i], x_scales[vector_index_transposed(i)], w_scales[(i) / 32]);
    ");
    // Operands are swapped: rows are along the instruction's N side.
    insta::assert_snapshot!(text("gemm", Scales::Blocks2d1d, (144, 128)), @"
    const __grid_constant__ TensorMap x_scale,  // own memory, one matrix; boxes of 2x4
    const __grid_constant__ TensorMap w_scale,  // own memory, one matrix; boxes of 1x128
    tma_load(smem_x_scale[stage.index], x_scale, full.at, step / 4 * 4, t.row * TILE_M / SCALE_BLOCK);
    scales_across<16, SCALE_BLOCK>(x_scales, smem_x_scale[stage.index] + (step % 4) * SCALE_STRIDE,
    add_scaled(acc[i], short_acc[i], x_scales[(i) / 8], w_scales[vector_index_transposed(i)]);
    ");
}

/// Every schedule of the library that has a kernel in such a tile: some multiply in several places, some add stored tiles, in some
/// ranks divide the rows.
#[test]
fn every_schedule_has_them() {
    let mut found = Vec::new();
    for program in library::all() {
        for (scales, tile) in [
            (Scales::Blocks1d2d, (128, 192)),
            (Scales::Blocks1d2d, (128, 160)),
            (Scales::Blocks1d2d, (128, 112)),
            (Scales::Blocks2d1d, (144, 128)),
        ] {
            let Ok(pipeline) = built(&program.name, scales, tile) else {
                continue;
            };
            let crosses = |tiling: &Tiling| tiling.scales().iter().any(StagedScale::crosses);
            assert!(
                pipeline.cta.tilings().iter().any(crosses),
                "{}",
                program.name
            );
            // A third of them: each tile and each schedule is among those.
            if wide() || found.len() % 3 == 0 {
                let checked = verify::pipeline(pipeline);
                checked.unwrap_or_else(|error| panic!("{} {tile:?}: {error}", program.name));
            }
            found.push(format!("{} {}x{}", program.name, tile.0, tile.1));
        }
    }
    insta::assert_snapshot!(found.join("\n"), @"
    gemm 128x192
    gemm 128x160
    gemm 128x112
    gemm 144x128
    ag_gemm 128x192
    ag_gemm 128x160
    ag_gemm 128x112
    ag_gemm_pull 128x192
    ag_gemm_pull 128x160
    ag_gemm_pull 128x112
    ag_gemm_ring 128x192
    ag_gemm_ring 128x160
    ag_gemm_ring 128x112
    gemm_rs 128x192
    gemm_rs 128x160
    gemm_rs 128x112
    gemm_rs 144x128
    gemm_rs_add 128x192
    gemm_rs_add 128x160
    gemm_rs_add 128x112
    gemm_rs_add 144x128
    gemm_ar 128x192
    gemm_ar 128x160
    gemm_ar 128x112
    gemm_ar 144x128
    gemm_ag 128x192
    gemm_ag 128x160
    gemm_ag 128x112
    gemm_ag 144x128
    all_to_all 128x192
    all_to_all 128x160
    all_to_all 128x112
    all_to_all 144x128
    fsdp_gemm 144x128
    bulk 128x192
    bulk 128x160
    bulk 128x112
    bulk 144x128
    ");
}

#[test]
fn a_tile_that_takes_a_block_to_begin_elsewhere() {
    let broken = |name, scales, tile| {
        let mut pipeline = built(name, scales, tile).unwrap_or_else(|error| panic!("{error}"));
        pipeline.lists(&mut |list| {
            for node in list {
                if let Node::Fragment(FragmentOp::ReadBlocks { begin, .. }) = node {
                    *begin = 0.into();
                }
            }
        });
        let found = verify::pipeline(pipeline).expect_err("refused");
        found.first().text(&|_| String::new())
    };
    insta::assert_snapshot!(broken("gemm", Scales::Blocks1d2d, (128, 192)), @"
    error[coverage]: multiply of block 1 on rank 0 promotes block 0 part 0 for tile (0, 1)
      = the scales that were read are of a tile that begins elsewhere in a block
    ");
    // Ranks divide rows between blocks, so a tile of a shard begins where it would in all rows.
    insta::assert_snapshot!(broken("gemm_rs", Scales::Blocks2d1d, (144, 128)), @"
    error[coverage]: multiply of block 0 on rank 0 promotes block 0 part 0 for tile (1, 0)
      = the scales that were read are of a tile that begins elsewhere in a block
    ");
    insta::assert_snapshot!(broken("gemm", Scales::Blocks2d1d, (144, 128)), @"
    error[coverage]: multiply of block 1 on rank 0 promotes block 0 part 0 for tile (1, 0)
      = the scales that were read are of a tile that begins elsewhere in a block
    ");
}

/// A box of less than the tile needs, and bytes to match: what lay behind it would be read.
#[test]
fn a_tile_whose_scales_come_in_part() {
    let broken = |tile, plane: &str, [rows, columns]: [u32; 2], bytes: u32| {
        let pipeline = built("gemm", Scales::Blocks1d2d, tile);
        let mut pipeline = pipeline.unwrap_or_else(|error| panic!("{error}"));
        let mut maps = pipeline.maps.iter_mut();
        let map = maps.find(|map| map.name == plane).expect("a map");
        (map.box_rows, map.box_columns) = (rows, columns);
        pipeline.lists(&mut |list| {
            for node in list {
                if let Node::Expect { bytes: all, .. } = node {
                    *all = all.clone() - bytes;
                }
            }
        });
        let found = verify::pipeline(pipeline).expect_err("refused");
        found.first().text(&|_| String::new())
    };
    let first = broken((128, 192), "w_scale", [1, 4], 16);
    insta::assert_snapshot!(first, @"
    error[coverage]: multiply of block 0 on rank 0 reads w_scale of stage 0 for tile (0, 0)
      = the stage holds the scales of a part of the tile's rows or columns
    ");
    // No block crosses the edges of these.
    for (plane, one_box, bytes) in [("w_scale", [1, 4], 16), ("x_scale", [1, 64], 256)] {
        let said = broken((128, 256), plane, one_box, bytes);
        assert!(
            said.contains("a part of the tile's rows or columns"),
            "{said}"
        );
    }
}

#[test]
fn what_has_parts_of_more_blocks() {
    let refused = |name, scales, tile| {
        let found = built(name, scales, tile).expect_err("refused");
        found.first().text(&|_| String::new())
    };
    insta::assert_snapshot!(refused("gemm", Scales::Blocks1d2d, (128, 176)), @"
    error[resources]: tiles of 176 columns, across the blocks of 128 of `w.scale`
      help: a number of columns that divides 128, or a multiple of it, or one with parts of two blocks at most, such as 192
    ");
    // The second block's scale may be another chunk's, which has not come yet.
    insta::assert_snapshot!(refused("ag_gemm", Scales::Blocks2d1d, (144, 128)), @"
    error[resources]: tiles of 144 rows, across the blocks of 128 of `x.scale`
      help: a number of rows that divides 128, or a multiple of it
    ");
}
