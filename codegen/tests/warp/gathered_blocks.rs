//! Scales of blocks that travel with their operand.

use crate::fixtures::copies::{self, Mover, Way};
use crate::fixtures::left_out::unnoticed;
use crate::fixtures::library;
use crate::fixtures::wide::{sampled, wide};
use counterflow_codegen::builder::*;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::{Bf16, E4M3};
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_codegen::warp::{At, Expr, MapId, Node, Pipeline};
use counterflow_codegen::{sm90, verify};
use counterflow_emitter as cuda;

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
    let names = ["ag_gemm", "ag_gemm_pull", "ag_gemm_ring", "fsdp_gemm"];
    let worlds = [1, 2, 3, 4].map(|world| BLOCKS.map(|scales| (world, scales)));
    let all =
        names.map(|name| worlds.map(|each| each.map(|(world, scales)| (name, world, scales))));
    for (name, world, scales) in sampled(all.into_iter().flatten().flatten(), 11) {
        let text = text(&program(name), &variant(world, scales));
        assert!(!text.contains("scales_copy("), "{name}: boxes carry them");
    }
}

/// Tiles of fewer rows than a block has: shards are rounded up to a block however few rows a launch has.
#[test]
fn tiles_of_fewer_rows_than_a_block() {
    let names = [
        "ag_gemm",
        "ag_gemm_pull",
        "ag_gemm_ring",
        "fsdp_gemm",
        "all_to_all",
        "gemm_ag",
    ];
    let kinds = [(64, 128), (16, 128)]
        .map(|tiles| [Scales::Blocks1d2d, Scales::Blocks2d1d].map(|scales| (tiles, scales)));
    let all = names.map(|name| kinds.map(|each| each.map(|(tiles, scales)| (name, tiles, scales))));
    for (name, tiles, scales) in sampled(all.into_iter().flatten().flatten(), 5) {
        text(&program(name), &variant(4, scales).set("tiles", tiles));
    }
}

/// Whoever moves them, and however: by CTAs or by copy engines, pushed, pulled, passed on. Only scratch has no room for them.
#[test]
fn every_mover_carries_scales_of_blocks() {
    let mut carried = 0;
    for (mover, way) in copies::all() {
        for world in [2, 3] {
            let program = copies::gather(mover, way, 2);
            let variant = Variant::new(world).dtype(E4M3).scales(Scales::Blocks1d2d);
            if way == Way::Staged {
                let found = built(&program, &variant)
                    .expect_err("refused")
                    .first()
                    .text(&|_| String::new());
                assert!(found.contains("has no room for them"), "{found}");
                continue;
            }
            carried += 1;
            // Each way once, by the one mover or the other, and each mover in both worlds.
            let own = match way as u32 % 4 {
                0 | 3 => Mover::Ctas,
                _ => Mover::Engine,
            };
            if wide() || mover == own && world == 2 + way as u32 / 2 % 2 {
                text(&program, &variant);
            }
        }
    }
    assert_eq!(carried, 26);
}

/// y = x · wᵀ, where chunks of `x` come as `moved` says, with a counter for their elements and one for their scales.
fn gather(
    moved: impl FnOnce(&mut ScheduleBuilder, (TensorRef, PartitionRef), [CountersRef; 2]),
) -> Program {
    let mut s = ScheduleBuilder::new("gather");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let chunks = s.chunks("chunks", x, 128);
    let tiles = s.tiles("tiles", y, (128, 128));
    let [arrived, scaled] = ["arrived", "scaled"].map(|name| s.counters(name, [chunks.into()]));
    moved(&mut s, (x, chunks), [arrived, scaled]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard).grouped(8), |s, t| {
                s.wait(arrived.at(t.rows()));
                s.wait(scaled.at(t.rows()));
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
            });
        });
    });
    s.finish()
}

/// Scales with a counter of their own: in a loop of their own, before the elements and behind them; by the idle warps of the CTAs
/// that compute, and by the host.
#[test]
fn scales_of_blocks_by_themselves() {
    type Moved = fn(&mut ScheduleBuilder, (TensorRef, PartitionRef), [CountersRef; 2]);
    let of_their_own: Moved = |s, (x, chunks), [arrived, scaled]| {
        s.comm(2, |s| {
            s.for_ranks("peer", ranks().before_me(), |s, peer| {
                s.for_items("c", chunks.of(me()), |s, c| {
                    s.copy(x.on(&peer).scales().at(c), x.scales().at(c));
                    s.signal(scaled.on(&peer).at(c), 1);
                });
                s.for_items("c", chunks.of(me()), |s, c| {
                    s.copy(x.on(&peer).data().at(c), x.data().at(c));
                    s.signal(arrived.on(&peer).at(c), 1);
                });
            });
        });
    };
    let behind: Moved = |s, (x, chunks), [arrived, scaled]| {
        s.comm(2, |s| {
            s.for_ranks("peer", ranks().before_me(), |s, peer| {
                s.for_items("c", chunks.of(me()), |s, c| {
                    s.copy(x.on(&peer).data().at(c), x.data().at(c));
                    s.signal(arrived.on(&peer).at(c), 1);
                    s.copy(x.on(&peer).scales().at(c), x.scales().at(c));
                    s.signal(scaled.on(&peer).at(c), 1);
                });
            });
        });
    };
    let pulled: Moved = |s, (x, chunks), [arrived, scaled]| {
        s.comm(2, |s| {
            s.for_ranks("peer", ranks().after_me(), |s, peer| {
                s.for_items("c", chunks.of(&peer), |s, c| {
                    s.copy(x.scales().at(c), x.on(&peer).scales().at(c));
                    s.signal(scaled.at(c), 1);
                });
                s.for_items("c", chunks.of(&peer), |s, c| {
                    s.copy(x.data().at(c), x.on(&peer).data().at(c));
                    s.signal(arrived.at(c), 1);
                });
            });
        });
    };
    let by_spare_warps: Moved = |s, (x, chunks), [arrived, scaled]| {
        s.spare_warps(|s| {
            s.for_ranks("peer", ranks().before_me(), |s, peer| {
                s.for_items("c", chunks.of(me()), |s, c| {
                    s.copy(x.on(&peer).at(c), x.at(c));
                    s.signal(arrived.on(&peer).at(c), 1);
                    s.signal(scaled.on(&peer).at(c), 1);
                });
            });
        });
    };
    let by_the_host: Moved = |s, (x, chunks), [arrived, scaled]| {
        s.copy_engine(|s| {
            s.for_ranks("peer", ranks().before_me(), |s, peer| {
                s.for_items("c", chunks.of(me()), |s, c| {
                    s.copy(x.on(&peer).scales().at(c), x.scales().at(c));
                    s.signal(scaled.on(&peer).at(c), 1);
                    s.copy(x.on(&peer).data().at(c), x.data().at(c));
                    s.signal(arrived.on(&peer).at(c), 1);
                });
            });
        });
    };
    let movers = [of_their_own, behind, pulled, by_spare_warps, by_the_host];
    let cases = movers.into_iter().flat_map(|moved| {
        let worlds = [1, 2, 3].into_iter();
        worlds.flat_map(move |world| BLOCKS.map(|scales| (moved, world, scales)))
    });
    for (moved, world, scales) in sampled(cases, 8) {
        let variant = Variant::new(world).dtype(E4M3).scales(scales);
        text(&gather(moved), &variant);
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
    let kind = pipeline.kernel.buffers[tensor.index()].usage;
    kind.is_scale() && kind.is_gathered()
}

/// Whether a node loads them into the stages: not the first ring's boxes of a chunk.
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
                at.whose = Expr::me().into();
            }
        }
    };
    found.push(broken("ag_gemm", Scales::Blocks1d1d, to_nobody));
    // Those of this rank's rows, for every shard.
    let of_my_shard = |pipeline: &Pipeline, list: &mut Vec<Node>| {
        for node in list {
            if is_load(pipeline, node)
                && let Node::Load { at, .. } = node
            {
                at.shard = Expr::me();
            }
        }
    };
    found.push(broken("ag_gemm_pull", Scales::Blocks1d2d, of_my_shard));
    found.push(broken("ag_gemm_pull", Scales::Blocks2d1d, of_my_shard));
    insta::assert_snapshot!(found.join("\n"));
}

/// Whatever step of a kernel is left out is missed, but for a test, which only saves time, and what the end of a kernel, or the
/// release of a later box, sees to as well.
#[test]
fn no_step_can_be_left_out() {
    let kinds = [
        ("ag_gemm", Scales::Blocks1d2d),
        ("ag_gemm_pull", Scales::Blocks2d1d),
    ];
    let verdict = |(name, scales): (&str, Scales)| {
        let new =
            || built(&program(name), &variant(2, scales)).unwrap_or_else(|error| panic!("{error}"));
        format!("{name} {}: {}\n", scales.name(), unnoticed(new))
    };
    let verdict: String = kinds.map(verdict).concat();
    insta::assert_snapshot!(verdict);
}

/// Chunks whose scales no box begins with, and those that end within a block.
#[test]
fn chunks_of_other_rows() {
    let refused = |scales: Scales, chunks: u32| {
        let variant = variant(2, scales).set("chunks", chunks);
        let found = built(&program("ag_gemm"), &variant).expect_err("refused");
        found.first().text(&|_| String::new())
    };
    insta::assert_snapshot!(refused(Scales::Blocks1d2d, 126), @"
    error[resources]: chunks of 126 rows, whose scales of 1×128 travel with them
      help: a multiple of 4 rows
    ");
    insta::assert_snapshot!(refused(Scales::Blocks2d1d, 64), @"
    error[language]: chunks of 64 rows, across the blocks of 128 of `x.scale`
      help: a multiple of 128 rows
    ");
}
