//! Scales of blocks that travel with their operand.

use crate::fixtures::library;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::E4M3;
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_codegen::warp::{At, Expr, MapId, Node, Pipeline};
use counterflow_codegen::{cuda, sm90, verify};

const BLOCKS: [Scales; 3] = [Scales::Blocks1d2d, Scales::Blocks2d1d, Scales::Blocks1d1d];

fn program(name: &str) -> Program {
    let mut all = library::all().into_iter();
    all.find(|program| program.name == name)
        .expect("a schedule")
}

fn variant(world: u32, scales: Scales) -> Variant {
    let variant = Variant::new(world).dtype(E4M3).scales(scales);
    variant.set("tiles", (128, 128))
}

fn built(program: &Program, variant: &Variant) -> Result<Pipeline, Diagnostics> {
    sm90::build(&lower(program, variant).and_then(verify::kernel)?)
}

fn text(program: &Program, variant: &Variant) -> String {
    let pipeline = built(program, variant).and_then(verify::pipeline);
    let pipeline = pipeline.unwrap_or_else(|error| panic!("{} {variant}: {error}", program.name));
    cuda::emit(&pipeline).text
}

#[test]
fn every_way_to_gather_carries_scales_of_blocks() {
    for name in ["ag_gemm", "ag_gemm_pull", "ag_gemm_ring", "fsdp_gemm"] {
        for world in [1, 2, 3, 4] {
            for scales in BLOCKS {
                let text = text(&program(name), &variant(world, scales));
                assert!(!text.contains("scales_copy("), "{name}: boxes carry them");
            }
        }
    }
}

/// What the verifier says of a pipeline that is not what was lowered.
fn broken(name: &str, scales: Scales, break_it: impl Fn(&Pipeline, &mut Vec<Node>)) -> String {
    let mut pipeline =
        built(&program(name), &variant(3, scales)).unwrap_or_else(|error| panic!("{error}"));
    let before = pipeline.clone();
    pipeline.lists(&mut |list| break_it(&before, list));
    assert_ne!(
        format!("{pipeline:?}"),
        format!("{before:?}"),
        "{name} is as it was"
    );
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

/// Whether a map is of scales that travel.
fn travels(pipeline: &Pipeline, map: MapId) -> bool {
    let tensor = pipeline.maps[usize::from(map.0)].tensor;
    let kind = pipeline.kernel.buffers[tensor.index()].kind;
    kind.is_scale() && kind.is_gathered()
}

/// Whether a node loads them into the stages: not the first ring's boxes of a piece.
fn is_load(pipeline: &Pipeline, node: &Node) -> bool {
    matches!(node, Node::Load { map, part, .. } if travels(pipeline, *map) && *part > 0)
}

/// The places of the boxes that carry them, where they are stored or where they are fetched.
fn carried<'n>(pipeline: &Pipeline, node: &'n mut Node, stored: bool) -> Option<&'n mut At> {
    match node {
        Node::Store { map, at, .. } if stored && travels(pipeline, *map) => Some(at),
        Node::Load {
            map, at, part: 0, ..
        } if !stored && travels(pipeline, *map) => Some(at),
        _ => None,
    }
}

#[test]
fn kernels_that_lose_scales_of_blocks() {
    let mut found = Vec::new();
    // Announced while their box may be on its way.
    let announced_early = |_: &Pipeline, list: &mut Vec<Node>| {
        for node in list {
            if let Node::AwaitStores { pending } = node
                && *pending != Expr::Const(0)
            {
                *pending = pending.clone() + 1;
            }
        }
    };
    found.push(broken("ag_gemm", Scales::Blocks1d2d, announced_early));
    // Read before what announces them.
    let read_early = |pipeline: &Pipeline, list: &mut Vec<Node>| {
        let waits = |node: &Node| matches!(node, Node::If { body, .. } if body.iter().any(|node| matches!(node, Node::CounterWait { .. })));
        if let Some(load) = list.iter().position(|node| is_load(pipeline, node))
            && let Some(wait) = list.iter().position(waits)
        {
            let load = list.remove(load);
            list.insert(wait, load);
        }
    };
    found.push(broken("ag_gemm", Scales::Blocks1d2d, read_early));
    found.push(broken("fsdp_gemm", Scales::Blocks1d2d, read_early));
    // The first batch's, in every batch.
    let of_the_first_batch = |pipeline: &Pipeline, list: &mut Vec<Node>| {
        for node in list {
            if let Some(at) = carried(pipeline, node, false) {
                at.column = 0.into();
            }
        }
    };
    found.push(broken(
        "ag_gemm_ring",
        Scales::Blocks1d2d,
        of_the_first_batch,
    ));
    let of_the_first_rows = |pipeline: &Pipeline, list: &mut Vec<Node>| {
        for node in list {
            for stored in [false, true] {
                if let Some(at) = carried(pipeline, node, stored) {
                    at.row = 0.into();
                }
            }
        }
    };
    found.push(broken("ag_gemm", Scales::Blocks2d1d, of_the_first_rows));
    let to_nobody = |pipeline: &Pipeline, list: &mut Vec<Node>| {
        for node in list {
            if let Some(at) = carried(pipeline, node, true) {
                at.rank = Expr::me();
            }
        }
    };
    found.push(broken("ag_gemm", Scales::Blocks1d1d, to_nobody));
    // Those of this rank's rows, for every chunk.
    let of_my_chunk = |pipeline: &Pipeline, list: &mut Vec<Node>| {
        for node in list {
            if is_load(pipeline, node)
                && let Node::Load { at, .. } = node
            {
                at.chunk = Expr::me();
            }
        }
    };
    found.push(broken("ag_gemm_pull", Scales::Blocks1d2d, of_my_chunk));
    found.push(broken("ag_gemm_pull", Scales::Blocks2d1d, of_my_chunk));
    insta::assert_snapshot!(found.join("\n"));
}

/// Pieces whose scales no box begins with, and those that end within a block.
#[test]
fn pieces_of_other_rows() {
    let refused = |scales: Scales, pieces: u32| {
        let variant = variant(2, scales).set("pieces", pieces);
        let found = built(&program("ag_gemm"), &variant).expect_err("refused");
        found.first().text(&|_| String::new())
    };
    insta::assert_snapshot!(refused(Scales::Blocks1d2d, 126), @"
    error[resources]: pieces of 126 rows, whose scales of 1×128 travel with them
      help: a multiple of 4 rows
    ");
    insta::assert_snapshot!(refused(Scales::Blocks2d1d, 64), @"
    error[language]: pieces of 64 rows, across the blocks of 128 of `x.scale`
      help: a multiple of 128 rows
    ");
}
