//! Scales of blocks in clusters: each CTA loads its own, beside the operands that it shares with the others.

use crate::fixtures::wide::in_turn;
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::{Bf16, E4M3};
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_codegen::warp::{Expr, Node, Pipeline, Scope, SlotKind, Test};
use counterflow_codegen::{sm90, verify};
use counterflow_emitter as cuda;

fn gemm(tile: (u32, u32), cluster: (u32, u32)) -> Program {
    let mut s = ScheduleBuilder::new("gemm");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, tile);
    let options = GemmOptions {
        cluster: Some(cluster.into()),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    s.finish()
}

fn built(scales: Scales, tile: (u32, u32), cluster: (u32, u32)) -> Result<Pipeline, Diagnostics> {
    let variant = Variant::new(1).dtype(E4M3).scales(scales);
    sm90::build(&lower(&gemm(tile, cluster), &variant).and_then(verify::kernel)?)
}

#[test]
fn every_kind_has_clusters() {
    let kinds = [Scales::Blocks1d2d, Scales::Blocks2d1d, Scales::Blocks1d1d];
    for (at, scales) in kinds.into_iter().enumerate() {
        for (nth, cluster) in [(2, 1), (1, 2)].into_iter().enumerate() {
            for tile in in_turn([(128, 128), (256, 128), (16, 64)], at + nth) {
                let pipeline = built(scales, tile, cluster).and_then(verify::pipeline);
                pipeline.unwrap_or_else(|error| panic!("{scales:?} {tile:?} {cluster:?}: {error}"));
            }
        }
    }
}

/// Half of x comes from the other CTA; scales, as tiles of w, are each CTA's own.
#[test]
fn a_step_of_a_cluster() {
    let pipeline = built(Scales::Blocks1d2d, (256, 128), (1, 2)).and_then(verify::pipeline);
    let pipeline = pipeline.unwrap_or_else(|error| panic!("{error}"));
    let text = cuda::emit(&pipeline).text;
    let named = |line: &&str| {
        ["tma_load", "stage_empty[", "scale, full.at"]
            .iter()
            .any(|it| line.contains(it))
            && !line.contains("__device__")
    };
    let kernel = &text[text.find("__global__").expect("a kernel")..];
    let lines: Vec<&str> = kernel.lines().map(str::trim).filter(named).collect();
    insta::assert_snapshot!(lines.join("\n"), @"
    stage_empty[stage.index].wait(stage.phase ^ 1, watch, LOAD);
    tma_load_multicast_partial<PARTIAL_BOX_ROWS, TILE_M / CLUSTER>(smem_x[stage.index]
    tma_load_partial<PARTIAL_BOX_ROWS, TILE_N>(smem_w[stage.index], w, w_partial_box, w_rows, full.at,
    tma_load(smem_x_scale[stage.index], x_scale, full.at, t.row * TILE_M, step);
    tma_load(smem_w_scale[stage.index], w_scale, full.at, step / 4 * 4,
    stage_empty[stage.index].wait(stage.phase ^ 1, watch, LOAD);
    if (lane < CLUSTER) stage_empty[stage.index].arrive_on(lane);
    ");
    assert!(text.contains("Scope::Own> stage_empty"), "{text}");
    let plain = built(Scales::Blocks1d2d, (256, 128), (1, 1)).and_then(verify::pipeline);
    let plain = cuda::emit(&plain.unwrap_or_else(|error| panic!("{error}"))).text;
    assert!(!plain.contains("Scope::Own> stage_empty"));
}

/// What the verifier says of a pipeline that is not what was lowered.
fn broken(break_it: impl FnOnce(&mut Pipeline)) -> String {
    let pipeline = built(Scales::Blocks1d2d, (128, 128), (2, 1));
    let mut pipeline = pipeline.unwrap_or_else(|error| panic!("{error}"));
    break_it(&mut pipeline);
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

#[test]
fn scales_that_others_might_overwrite() {
    // An arrival that orders no ordinary reads.
    insta::assert_snapshot!(broken(|pipeline| {
        let stages = pipeline.rings.iter_mut().find(|ring| ring.of == SlotKind::Stage);
        let empty = stages.and_then(|ring| ring.empty.as_mut());
        let empty = empty.expect("a barrier of empty stages");
        assert_eq!(empty.scope, Scope::Own);
        empty.scope = Scope::Relaxed;
    }), @"
    error[race]: load of block 1 on rank 0 loads rows 5..6, columns 128..256 of x.scale (shard or slot 0) on rank 0 into x_scale of stage 0 for tile (0, 0)
      = multiply of block 1 on rank 0 reads x_scale of stage 0
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    // One CTA loads what both need: the other's arrival orders no ordinary reads for it.
    insta::assert_snapshot!(broken(|pipeline| {
        let kernel = pipeline.kernel.clone();
        let of_w = |tensor: usize| kernel.buffers[tensor].name == "w.scale";
        let maps: Vec<bool> = (pipeline.maps.iter())
            .map(|map| of_w(map.tensor.index()))
            .collect();
        pipeline.lists(&mut |list| {
            for node in list {
                if let Node::Load { map, multicast, .. } = node
                    && maps[usize::from(map.0)]
                    && !*multicast
                {
                    *multicast = true;
                    let test = Test::Equal(Expr::var("multicast_rank"), 0.into());
                    let body = vec![node.clone()];
                    *node = Node::If { test, body };
                }
            }
        });
    }), @"
    error[race]: load of block 0 on rank 0 loads rows 0..1, columns 4..6 of w.scale (shard or slot 0) on rank 0 into w_scale of stage 0 for tile (0, 0)
      = multiply of block 1 on rank 0 reads w_scale of stage 0
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    // Without a fence between those reads and the next load.
    insta::assert_snapshot!(broken(|pipeline| {
        pipeline.lists(&mut |list| {
            if list.iter().any(|node| matches!(node, Node::Expect { .. })) {
                list.retain(|node| !matches!(node, Node::FenceShared));
            }
        });
    }), @"
    error[race]: load of block 1 on rank 0 loads rows 5..6, columns 128..256 of x.scale (shard or slot 0) on rank 0 into x_scale of stage 0 for tile (0, 0)
      = multiply of block 1 on rank 0 reads x_scale of stage 0
      = a barrier or a counter orders them, but no proxy fence
      help: `fence_async_shared` after ordinary accesses, before the slot is released
    ");
}
