//! Scales that travel with the rows of their operand: the kernels that copy and read them, and kernels that lose one.

use crate::fixtures::library;
use crate::fixtures::wide::sampled;
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::{Bf16, E4M3};
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::{Program, Side, TensorId};
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_codegen::warp::{Along, FragmentOp, Node, Pipeline};
use counterflow_codegen::{sm90, verify};
use counterflow_emitter as cuda;

fn program(name: &str) -> Program {
    let mut all = library::all().into_iter();
    all.find(|program| program.name == name)
        .expect("a schedule")
}

fn variant() -> Variant {
    Variant::new(2).dtype(E4M3).scales(Scales::PerRow)
}

fn built(program: &Program, variant: &Variant) -> Pipeline {
    let kernel = lower(program, variant).and_then(verify::kernel);
    kernel
        .and_then(|kernel| sm90::build(&kernel))
        .unwrap_or_else(|error| panic!("{} {variant}: {error}", program.name))
}

fn refused(program: &Program, variant: &Variant) -> String {
    let kernel = lower(program, variant).and_then(verify::kernel);
    let found = kernel.and_then(|kernel| sm90::build(&kernel));
    found.expect_err("refused").first().text(&|_| String::new())
}

fn text(program: &Program, variant: &Variant) -> String {
    let checked = verify::pipeline(built(program, variant));
    let checked = checked.unwrap_or_else(|error| panic!("{} {variant}: {error}", program.name));
    cuda::emit(&checked).text
}

/// y = x · wᵀ, where `send` says how a chunk of `x` and its scales come to a peer.
fn gather(
    send: impl Fn(&mut ScheduleBuilder, &RankExpr, (TensorRef, PartitionRef, CountersRef)),
    wait: impl Fn(&mut ScheduleBuilder, CountersRef, Item),
) -> Program {
    let mut s = ScheduleBuilder::new("gather");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let chunks = s.chunks("chunks", x, 128);
    let tiles = s.tiles("tiles", y, (128, 128));
    let arrived = s.counters("arrived", [chunks.into()]);
    s.comm(2, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            send(s, &peer, (x, chunks, arrived));
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard).grouped(8), |s, t| {
                wait(s, arrived, t);
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
            });
        });
    });
    s.finish()
}

fn waits(s: &mut ScheduleBuilder, arrived: CountersRef, t: Item) {
    s.wait(arrived.at(t.rows()));
}

#[test]
fn every_way_to_gather_carries_scales() {
    let names = ["ag_gemm", "ag_gemm_pull", "ag_gemm_ring", "fsdp_gemm"];
    let tiles = [(128, 128), (128, 256), (16, 64)];
    let worlds = [1, 2, 3, 4].map(|world| tiles.map(|tile| (world, tile)));
    let all = names.map(|name| worlds.map(|each| each.map(|(world, tile)| (name, world, tile))));
    for (name, world, tile) in sampled(all.into_iter().flatten().flatten(), 7) {
        let variant = Variant { world, ..variant() }.set("tiles", tile);
        if name == "fsdp_gemm" && tile.0 == 16 {
            continue;
        }
        let text = text(&program(name), &variant);
        let copies = name != "ag_gemm_pull";
        assert_eq!(text.contains("scales_copy("), copies, "{name} {variant}");
    }
}

/// A copy of one plane by itself, in its own loop or beside the other, in any order.
#[test]
fn planes_one_by_one() {
    let apart = gather(
        |s, peer, (x, chunks, arrived)| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(peer).scales().at(c), x.scales().at(c));
                s.copy(x.on(peer).data().at(c), x.data().at(c));
                s.signal(arrived.on(peer).at(c), 1);
            });
        },
        waits,
    );
    let both = gather(
        |s, peer, (x, chunks, arrived)| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(peer).at(c), x.at(c));
                s.signal(arrived.on(peer).at(c), 1);
            });
        },
        waits,
    );
    // The same kernel but for its statements.
    let code = |program: &Program| {
        let text = text(program, &variant());
        let lines = text
            .lines()
            .map(|line| line.split("//").next().unwrap_or("").trim_end());
        lines
            .filter(|line| !line.is_empty())
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert_eq!(code(&apart), code(&both));
    assert!(code(&both).contains("scales_copy("));
    // Without scales there is only data.
    let plain = Variant::new(2);
    assert!(!text(&apart, &plain).contains("scales_copy("));
    assert_eq!(
        text(&apart, &plain).matches("tma_store").count(),
        text(&both, &plain).matches("tma_store").count()
    );
}

/// Scales with a counter of their own, in a loop of their own.
fn of_their_own() -> Program {
    let mut s = ScheduleBuilder::new("of_their_own");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let chunks = s.chunks("chunks", x, 128);
    let tiles = s.tiles("tiles", y, (128, 128));
    let arrived = s.counters("arrived", [chunks.into()]);
    let scaled = s.counters("scaled", [chunks.into()]);
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

#[test]
fn scales_in_a_loop_of_their_own() {
    for world in sampled([2, 1, 4, 3], 2) {
        let variant = Variant { world, ..variant() };
        assert!(text(&of_their_own(), &variant).contains("scales_copy("));
    }
    // Where no scale travels, the counter still counts.
    text(&of_their_own(), &Variant::new(2));
}

/// What the verifier says of a pipeline that is not what was lowered.
fn broken(name: &str, break_it: impl Fn(&mut Vec<Node>)) -> String {
    let mut pipeline = built(&program(name), &variant().set("tiles", (128, 128)));
    let before = format!("{pipeline:?}");
    pipeline.lists(&mut |list| break_it(list));
    assert_ne!(format!("{pipeline:?}"), before, "{name} is as it was");
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

fn copies_scales(node: &Node) -> bool {
    matches!(node, Node::CopyScales { .. })
}

/// A copy, with the branch that it is in.
fn copies(list: &[Node]) -> Option<usize> {
    list.iter()
        .position(|node| matches!(node, Node::If { body, .. } if body.iter().any(copies_scales)))
}

#[test]
fn kernels_that_lose_scales() {
    let mut found = Vec::new();
    let not_copied = |list: &mut Vec<Node>| list.retain(|node| !copies_scales(node));
    found.push(broken("ag_gemm", not_copied));
    let after_the_signal = |list: &mut Vec<Node>| {
        if let Some(at) = copies(list) {
            let copy = list.remove(at);
            list.push(copy);
        }
    };
    found.push(broken("ag_gemm_ring", after_the_signal));
    let of_the_first_rows = |list: &mut Vec<Node>| {
        for node in list {
            if let Node::CopyScales { row, .. } = node {
                *row = 0.into();
            }
        }
    };
    found.push(broken("ag_gemm", of_the_first_rows));
    let too_few = |list: &mut Vec<Node>| {
        for node in list {
            if let Node::CopyScales { rows, .. } = node {
                *rows = 1.into();
            }
        }
    };
    found.push(broken("ag_gemm", too_few));
    let to_nobody = |list: &mut Vec<Node>| {
        for node in list {
            if let Node::CopyScales { from, to, .. } = node {
                *to = from.clone();
            }
        }
    };
    found.push(broken("fsdp_gemm", to_nobody));
    let with_every_batch = |list: &mut Vec<Node>| {
        if let Some(at) = copies(list)
            && let Node::If { body, .. } = list.remove(at)
        {
            list.splice(at..at, body);
        }
    };
    found.push(broken("ag_gemm", with_every_batch));
    // Another tensor's scale, which nobody sends.
    let another = |list: &mut Vec<Node>| {
        for node in list {
            if let Node::Fragment(FragmentOp::Broadcast {
                tensor,
                along: Some(Along {
                    side: Side::Rows, ..
                }),
                ..
            }) = node
            {
                *tensor = TensorId(tensor.0 + 1);
            }
        }
    };
    found.push(broken("ag_gemm", another));
    // What comes from others is not read ahead: nobody waited for it yet.
    let ahead = |list: &mut Vec<Node>| {
        for node in list {
            if let Node::Fragment(FragmentOp::ReadAhead { tensor, .. }) = node {
                *tensor = TensorId(tensor.0 - 1);
            }
        }
    };
    found.push(broken("ag_gemm", ahead));
    insta::assert_snapshot!(found.join("\n"));
}

#[test]
fn what_cannot_travel() {
    let mut found = Vec::new();
    let one_counter = gather(
        |s, peer, (x, chunks, arrived)| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(peer).data().at(c), x.data().at(c));
                s.signal(arrived.on(peer).at(c), 1);
            });
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(peer).scales().at(c), x.scales().at(c));
                s.signal(arrived.on(peer).at(c), 1);
            });
        },
        waits,
    );
    found.push(refused(&one_counter, &variant()));
    let half_named = gather(
        |s, peer, (x, chunks, _)| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(peer).at(c), x.scales().at(c));
            });
        },
        |_, _, _| {},
    );
    found.push(refused(&half_named, &variant()));
    let mut s = ScheduleBuilder::new("multiplied");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, (128, 128));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.scales().at(t), w.at(t));
            s.store(y.at(t), product);
        });
    });
    found.push(refused(&s.finish(), &variant()));
    let mut s = ScheduleBuilder::new("elsewhere");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let copy = s.symmetric("copy", Bf16, x.whole(), 1);
    let (chunks, tiles) = (s.chunks("chunks", x, 128), s.tiles("tiles", y, (128, 128)));
    s.comm(2, |s| {
        s.for_items("c", chunks.of(me()), |s, c| s.copy(copy.at(c), x.at(c)));
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
    });
    found.push(refused(&s.finish(), &variant()));
    insta::assert_snapshot!(found.join("\n"));
}
