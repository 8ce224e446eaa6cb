//! Products whose columns the ranks divide: their shards lie side by side in a row of the result, and a tile that crosses the
//! end of one is clipped there.

use crate::fixtures::left_out::unnoticed;
use crate::fixtures::strangers;
use crate::fixtures::wide::{sampled, wide};
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::{Bf16, F32};
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Layout, Variant};
use counterflow_codegen::verify;
use counterflow_codegen::warp::{Expr, Node, Pipeline, View};

/// What is done with a tile's product.
#[derive(Clone, Copy, Debug)]
enum After {
    Nothing,
    /// A vector along the columns, and a stored tile.
    BiasAndResidual,
    /// It is added to f32.
    Added,
    /// Another product's function is multiplied with it.
    Gated,
}

/// y = x · all_gather(w)ᵀ, by CTAs that push or by copy engines that pull.
fn fsdp(push: bool, after: After, tile: (u32, u32), ping_pong: bool) -> Program {
    let mut s = ScheduleBuilder::new("fsdp");
    let (x, w) = (s.local("x", Bf16), s.gathered("w", Bf16));
    let y = match after {
        After::Added => s.accumulated("y", F32),
        After::Nothing | After::BiasAndResidual | After::Gated => s.out("y", Bf16),
    };
    let chunks = s.chunks("chunks", w, 128);
    let tiles = s.tiles("tiles", y, tile);
    let arrived = s.counters("arrived", [chunks.into()]);
    if push {
        s.comm(2, |s| {
            s.for_ranks("peer", ranks().before_me(), |s, peer| {
                s.for_items("c", chunks.of(me()), |s, c| {
                    s.copy(w.on(&peer).at(c), w.at(c));
                    s.signal(arrived.on(&peer).at(c), 1);
                });
            });
        });
    } else {
        s.copy_engine(|s| {
            s.for_ranks("peer", ranks().after_me(), |s, peer| {
                s.for_items("c", chunks.of(&peer), |s, c| {
                    s.copy(w.at(c), w.on(&peer).at(c));
                    s.signal(arrived.at(c), 1);
                });
            });
        });
    }
    let extra = match after {
        After::BiasAndResidual => Some((s.vector("bias", Bf16), s.local("z", Bf16))),
        After::Nothing | After::Added | After::Gated => None,
    };
    let up = matches!(after, After::Gated).then(|| s.local("up", Bf16));
    let options = GemmOptions {
        ping_pong: Some(u32::from(ping_pong).into()),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard).grouped(8), |s, t| {
                s.wait(arrived.at(t.columns()));
                let product = s.dot(x.at(t), w.at(t));
                match (extra, up) {
                    (Some((bias, z)), _) => {
                        let (bias, z) = (s.load(bias), s.load(z.at(t)));
                        s.store(y.at(t), product.bias(bias) + z);
                    }
                    (None, Some(up)) => {
                        let up = s.dot(x.at(t), up.at(t));
                        s.store(y.at(t), product.silu() * up);
                    }
                    (None, None) if matches!(after, After::Added) => {
                        s.store_add(y.at(t), product);
                    }
                    (None, None) => s.store(y.at(t), product),
                }
            });
        });
    });
    s.finish()
}

fn built(program: &Program, layout: Layout) -> Result<Pipeline, String> {
    let kernel = lower(program, &Variant::new(3).layout(layout)).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
    sm90::build(&kernel).map_err(|error| error.first().text(&|_| String::new()))
}

fn good() -> Pipeline {
    let program = fsdp(true, After::Nothing, (128, 128), false);
    built(&program, Layout::Nt).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn all_warps_agree_with_the_schedule() {
    let plain = [
        (128, 256),
        (256, 128),
        (128, 192),
        (128, 160),
        (128, 112),
        (64, 80),
        (160, 256),
        (80, 128),
    ];
    let mut cases: Vec<_> = plain.map(|tile| (true, After::Nothing, tile, false)).into();
    cases.extend([
        (true, After::Nothing, (128, 160), true),
        (true, After::BiasAndResidual, (128, 128), false),
        (true, After::BiasAndResidual, (80, 128), false),
        (true, After::Added, (128, 128), false),
        (true, After::Gated, (128, 128), false),
        (false, After::Nothing, (128, 256), false),
    ]);
    // The sample has each epilogue once, in ping-pong, in halves of a tile and by the host.
    let cases = cases.into_iter().enumerate();
    for (push, after, tile, ping_pong) in cases
        .filter(|(at, _)| wide() || *at > 7 && *at != 9)
        .map(|(_, case)| case)
    {
        let program = fsdp(push, after, tile, ping_pong);
        let pipeline = built(&program, Layout::Nt).unwrap_or_else(|error| {
            panic!("{after:?} {tile:?} {ping_pong}: {error}");
        });
        let checked = verify::pipeline(pipeline);
        checked.unwrap_or_else(|error| panic!("{after:?} {tile:?} {ping_pong}: {error}"));
    }
}

/// Where the weight's rows are contiguous every shard is a matrix of its own, which copy engines move.
#[test]
fn shards_may_have_contiguous_rows() {
    let tiles = [(128, 256), (128, 112), (256, 128)];
    let all = [Layout::Nn, Layout::Tn].map(|layout| tiles.map(|tile| (layout, tile)));
    for (layout, tile) in sampled(all.into_iter().flatten(), 2) {
        let program = fsdp(false, After::Nothing, tile, false);
        let pipeline = built(&program, layout).unwrap_or_else(|error| panic!("{error}"));
        let checked = verify::pipeline(pipeline);
        checked.unwrap_or_else(|error| panic!("{layout:?} {tile:?}: {error}"));
    }
    let program = fsdp(true, After::Nothing, (128, 128), false);
    insta::assert_snapshot!(built(&program, Layout::Nn).expect_err("refused"));
}

#[test]
fn nothing_of_it_can_be_left_out() {
    insta::assert_snapshot!(unnoticed(good));
}

fn verdict(mut change: impl FnMut(&mut Node) -> bool) -> String {
    let (mut pipeline, mut changed) = (good(), 0);
    pipeline
        .lists(&mut |list| changed += list.iter_mut().map(&mut change).filter(|it| *it).count());
    assert!(changed > 0, "nothing to change");
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

/// Without a map of its own for the short shard, its last tile spills into the first row's next columns.
#[test]
fn a_short_shard_without_a_map_of_its_own() {
    let mut pipeline = good();
    let maps = pipeline.maps.iter_mut();
    maps.for_each(|map| map.partial_shard = false);
    let found = verify::pipeline(pipeline).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()));
}

/// Every shard's columns are stored where mine are.
#[test]
fn columns_of_another_shard() {
    let pipeline = good();
    let by_columns = |map: usize| pipeline.maps[map].view == View::ColumnShards;
    insta::assert_snapshot!(verdict(|node| match node {
        Node::Store { map, at, .. } if by_columns(usize::from(map.0)) => {
            at.shard = Expr::me();
            true
        }
        _ => false,
    }));
}

/// The shard is loaded before it has come.
#[test]
fn a_wait_for_other_columns() {
    insta::assert_snapshot!(verdict(|node| match node {
        Node::CounterWait { cell, .. } if *cell == Expr::var("arrived_cell") => {
            *cell = 0.into();
            true
        }
        _ => false,
    }));
}

/// Two loops behind shards of a weight, the second of which reads what the first stored in scratch of so many slots.
fn hidden(slots: u32, tile: (u32, u32)) -> Program {
    let mut s = ScheduleBuilder::new("hidden");
    let (x, w, y) = (s.local("x", Bf16), s.gathered("w", Bf16), s.out("y", Bf16));
    let hidden = s.symmetric("hidden", Bf16, y.whole(), slots);
    let chunks = s.chunks("chunks", w, 128);
    let tiles = s.tiles("tiles", y, tile);
    let arrived = s.counters("arrived", [chunks.into()]);
    let ready = s.counters("ready", [tiles.into()]);
    s.comm(2, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(w.on(&peer).at(c), w.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait(arrived.at(t.columns()));
                let product = s.dot(x.at(t), w.at(t));
                let place = match slots {
                    1 => hidden.at(t),
                    _ => hidden.at(0).at(t),
                };
                s.store(place, product);
                s.signal(ready.at(t), 1);
            });
        });
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait(ready.at(t));
                let place = match slots {
                    1 => hidden.at(t),
                    _ => hidden.at(0).at(t),
                };
                let product = s.load(place);
                s.store(y.at(t), product);
            });
        });
    });
    s.finish()
}

/// Scratch that is this rank's alone is divided as an output is: a tile that crosses a shard's end is clipped there.
#[test]
fn scratch_of_a_rank_has_divided_columns() {
    for tile in sampled([(128, 128), (128, 256), (256, 96)], 2) {
        let pipeline =
            built(&hidden(1, tile), Layout::Nt).unwrap_or_else(|error| panic!("{error}"));
        let maps = pipeline.maps.iter().filter(|map| map.partial_shard);
        assert_eq!(maps.count(), 3, "`w`, `hidden` and `y`");
        let checked = verify::pipeline(pipeline);
        checked.unwrap_or_else(|error| panic!("{tile:?}: {error}"));
    }
    let mut pipeline = built(&hidden(1, (128, 128)), Layout::Nt).expect("a pipeline");
    let hidden = pipeline
        .maps
        .iter()
        .position(|map| map.name == "hidden")
        .expect("a map");
    pipeline.maps[hidden].partial_shard = false;
    let found = verify::pipeline(pipeline).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()));
}

/// Slots have no shards of columns.
#[test]
fn tiles_in_slots_are_not_divided_by_columns() {
    let found = built(&hidden(2, (128, 128)), Layout::Nt);
    insta::assert_snapshot!(found.expect_err("refused"));
}

/// A counter may have a cell for every tile: in the shards of columns, too.
#[test]
fn tiles_of_columns_have_cells() {
    let mut s = ScheduleBuilder::new("counted");
    let (x, w, y) = (s.local("x", Bf16), s.gathered("w", Bf16), s.out("y", Bf16));
    let z = s.out("z", Bf16);
    let chunks = s.chunks("chunks", w, 128);
    let tiles = s.tiles("tiles", y, (128, 128));
    let arrived = s.counters("arrived", [chunks.into()]);
    let ready = s.counters("ready", [tiles.into()]);
    s.comm(2, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(w.on(&peer).at(c), w.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait(arrived.at(t.columns()));
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
                s.signal(ready.at(t), 1);
            });
        });
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait(ready.at(t));
                let product = s.dot(x.at(t), w.at(t));
                let first = s.load(y.at(t));
                s.store(z.at(t), product + first);
            });
        });
    });
    let pipeline = built(&s.finish(), Layout::Nt).unwrap_or_else(|error| panic!("{error}"));
    verify::pipeline(pipeline).unwrap_or_else(|error| panic!("{error}"));
}

/// A second layer's depth is what the first one's columns were: all shards of them.
#[test]
fn a_layer_may_read_what_was_divided() {
    for layout in [Layout::Nt, Layout::Nn] {
        let pipeline = built(&strangers::shards_of_two_layers(), layout);
        if layout == Layout::Nn {
            assert!(pipeline.expect_err("refused").contains("MN-major"));
            continue;
        }
        let pipeline = pipeline.unwrap_or_else(|error| panic!("{error}"));
        verify::pipeline(pipeline).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Launches of one kernel may have other columns, and so another depth of the layer that reads all of them: where loops select
/// some columns, warps are tried with that.
#[test]
fn a_layer_is_as_deep_as_its_launch_has_columns() {
    let mut s = ScheduleBuilder::new("selected");
    let (x, w, down) = (
        s.local("x", Bf16),
        s.gathered("w", Bf16),
        s.local("down", Bf16),
    );
    let (hidden, y) = (s.out("hidden", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, (128, 128));
    let hidden_tiles = s.tiles_like("hidden_tiles", hidden, tiles);
    let (chunks, rows) = (s.chunks("chunks", w, 128), s.chunks("rows", x, 128));
    let arrived = s.counters("arrived", [chunks.into()]);
    let ready = s.counters("ready", [rows.into()]);
    s.comm(2, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(w.on(&peer).at(c), w.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            let [one, two] = [0; 2].map(|_| hidden_tiles.of(&shard));
            for half in [one.first_half(), two.second_half()] {
                s.for_items("t", half, |s, t| {
                    s.wait(arrived.at(t.columns()));
                    let product = s.dot(x.at(t), w.at(t));
                    s.store(hidden.at(t), product);
                    s.signal(ready.at(t.rows()), 1);
                });
            }
        });
        s.for_items("t", tiles.all(), |s, t| {
            s.wait(ready.at(t.rows()));
            let product = s.dot(hidden.at(t), down.at(t));
            s.store(y.at(t), product);
        });
    });
    let pipeline = built(&s.finish(), Layout::Nt).unwrap_or_else(|error| panic!("{error}"));
    verify::pipeline(pipeline).unwrap_or_else(|error| panic!("{error}"));
}

/// Where the rows of both operands are divided, a tile has rows of one shard and columns of all.
#[test]
fn a_tile_of_several_shards_has_no_kernel() {
    let mut s = ScheduleBuilder::new("both");
    let (x, w, y) = (
        s.gathered("x", Bf16),
        s.gathered("w", Bf16),
        s.out("y", Bf16),
    );
    let tiles = s.tiles("tiles", y, (128, 128));
    let shards = [
        (x, s.chunks("rows", x, 128)),
        (w, s.chunks("shards", w, 128)),
    ];
    let [here, there] = ["here", "there"].map(|name| s.counters(name, []));
    s.copy_engine(|s| {
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            for ((tensor, chunks), counter) in shards.into_iter().zip([here, there]) {
                s.for_items("c", chunks.of(&peer), |s, c| {
                    s.copy(tensor.at(c), tensor.on(&peer).at(c));
                    s.signal(counter, 1);
                });
            }
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait(here);
                s.wait(there);
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
            });
        });
    });
    insta::assert_snapshot!(built(&s.finish(), Layout::Nt).expect_err("refused"));
}
