//! All-to-all, gathered results, several GEMM loops where the second reads what the first stored, and roles that sum beside a GEMM.

use super::Sizes;
use super::draw::{Draw, Part, shuffled};
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::Bf16;

/// Tiles of a product go straight to the owners of their rows, each in its sender's slot.
pub fn exchange(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, sizes: Sizes) {
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.all_to_all("y", Bf16);
    let tiles = s.tiles("tiles", y, sizes.tile);
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    let relu = draw.of(3) == 1;
    let product = move |s: &mut ScheduleBuilder, t: Item| {
        let product = s.dot(x.at(t), w.at(t));
        if relu { product.relu() } else { product }
    };
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("owner", draw.order(ranks().after_me()), |s, owner| {
            for some in draw.some(tiles.of(&owner)) {
                s.for_items("t", some, |s, t| {
                    let slot = draw.rank(me(), &owner);
                    let to = owner.clone();
                    let parts: Vec<Part<'_>> = vec![
                        Box::new(move |s| {
                            let value = product(s, t);
                            s.store(y.on(&to).at(slot.clone()).at(t), value);
                        }),
                        Box::new(|s| s.signal(landed.on(&owner).at(me()).at(t), 1)),
                    ];
                    shuffled(draw, parts).into_iter().for_each(|part| part(s));
                });
            }
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            let value = product(s, t);
            s.store(y.at(draw.rank(me(), &me())).at(t), value);
        });
        let who = draw.mostly(others(), &[everyone()]);
        s.for_items("t", tiles.of(me()), |s, t| s.wait(landed.at(who).at(t)));
    });
}

/// Every rank computes its rows of a product, and all ranks get them: by the product's own CTAs, tile by tile, or by CTAs
/// that move larger chunks. Whether they are a relu of it.
pub fn gather_results(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, sizes: Sizes) -> bool {
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.gathered_output("y", Bf16);
    let tiles = s.tiles("tiles", y, sizes.tile);
    let chunks = s.chunks("chunks", y, 2 * sizes.tile.0);
    let moved = draw.of(2) == 1;
    let ready = s.counters("ready", [chunks.into()]);
    let arrived = s.counters("arrived", [if moved { chunks } else { tiles }.into()]);
    let relu = draw.of(3) == 1;
    let peers = draw.order(ranks().after_me());
    s.gemm(GemmOptions::default(), |s| {
        let rows = draw.rank(me(), &((me() + 1) % world()));
        for some in draw.some(tiles.of(rows)) {
            s.for_items("t", some, |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                let value = if relu { product.relu() } else { product };
                s.store(y.at(t), value.clone());
                if moved {
                    s.signal(ready.at(t.rows()), 1);
                    return;
                }
                let value = if draw.wrong() { value.silu() } else { value };
                s.for_ranks("peer", peers.clone(), |s, peer| {
                    let value = value.clone();
                    let parts: Vec<Part<'_>> = vec![
                        Box::new(|s| s.store(y.on(&peer).at(t), value.clone())),
                        Box::new(|s| s.signal(arrived.on(&peer).at(t), 1)),
                    ];
                    shuffled(draw, parts).into_iter().for_each(|part| part(s));
                });
            });
        }
        if !moved {
            s.for_ranks("owner", draw.order(ranks().after_me()), |s, owner| {
                s.for_items("t", tiles.of(&owner), |s, t| s.wait(arrived.at(t)));
            });
        }
    });
    if moved {
        s.comm(2u32, |s| {
            s.for_items("c", chunks.of(me()), |s, c| {
                if !draw.wrong() {
                    s.wait(ready.at(c));
                }
                s.for_ranks("peer", peers.clone(), |s, peer| {
                    let parts: Vec<Part<'_>> = vec![
                        Box::new(|s| s.copy(y.on(&peer).at(c), y.at(c))),
                        Box::new(|s| s.signal(arrived.on(&peer).at(c), 1)),
                    ];
                    shuffled(draw, parts).into_iter().for_each(|part| part(s));
                });
            });
            s.for_ranks("owner", draw.order(ranks().after_me()), |s, owner| {
                s.for_items("c", chunks.of(&owner), |s, c| s.wait(arrived.at(c)));
            });
        });
    }
    relu
}

/// Two layers, of one product an item or two, on each rank alone or over the rows of all.
pub fn layers(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, sizes: Sizes) {
    let gathers = draw.of(2) == 1;
    let x = match gathers {
        true => s.gathered("x", Bf16),
        false => s.local("x", Bf16),
    };
    let chunks = s.chunks("chunks", x, sizes.chunk);
    let arrived = s.counters("arrived", [chunks.into()]);
    let products = [1 + draw.of(2), 1 + draw.of(2)];
    let weights = |s: &mut ScheduleBuilder, names: [&str; 2], count: usize| -> Vec<TensorRef> {
        names[..count]
            .iter()
            .map(|name| s.local(name, Bf16))
            .collect()
    };
    let first = weights(s, ["up", "gate"], products[0]);
    let second = weights(s, ["down", "side"], products[1]);
    let y = s.out("y", Bf16);
    let hidden = s.scratch("hidden", Bf16);
    let tiles = s.tiles("tiles", y, sizes.tile);
    // Of two products there is no room for larger tiles.
    let (height, width) = sizes.tile;
    let hidden_tiles = match (draw.of(5), products[0]) {
        (1, 1) => s.tiles("hidden_tiles", hidden, (height, 2 * width)),
        (2, _) => s.tiles("hidden_tiles", hidden, (height, width / 2)),
        (3, 1) => s.tiles("hidden_tiles", hidden, (2 * height, width)),
        (4, _) => s.tiles("hidden_tiles", hidden, (2 * height, width / 2)),
        _ => s.tiles_like("hidden_tiles", hidden, tiles),
    };
    let rows = s.chunks("rows", hidden, height);
    let ready = s.counters("ready", [rows.into()]);
    if gathers {
        s.comm(2u32, |s| {
            s.for_ranks("peer", draw.order(ranks().before_me()), |s, peer| {
                for some in draw.some(chunks.of(me())) {
                    s.for_items("c", some, |s, c| {
                        s.copy(x.on(&peer).at(c), x.at(c));
                        s.signal(arrived.on(&peer).at(c), 1);
                    });
                }
            });
        });
    }
    let of = |s: &mut ScheduleBuilder, x: TensorRef, weights: &[TensorRef], t: Item| {
        let mut products = weights.iter().map(|w| s.dot(x.at(t), w.at(t)));
        let first = products.next().unwrap_or(Value::from(0.0));
        products.fold(first.relu(), |all, one| all * one)
    };
    let each = |s: &mut ScheduleBuilder,
                order: Ranks,
                f: &mut dyn FnMut(&mut ScheduleBuilder, [ItemsRef; 2])| {
        match gathers {
            true => s.for_ranks("shard", order, |s, shard| {
                f(s, [hidden_tiles.of(&shard), tiles.of(&shard)]);
            }),
            false => f(s, [hidden_tiles.all(), tiles.all()]),
        }
    };
    s.gemm(GemmOptions::default(), |s| {
        let order = draw.everyone();
        each(s, order, &mut |s, [all, _]| {
            for some in draw.some(all) {
                s.for_items("t", some, |s, t| {
                    if gathers {
                        s.wait(arrived.at(t.rows()));
                    }
                    let parts: Vec<Part<'_>> = vec![
                        Box::new(|s| {
                            let value = of(s, x, &first, t);
                            s.store(hidden.at(t), value);
                        }),
                        Box::new(|s| s.signal(ready.at(t.rows()), 1)),
                    ];
                    shuffled(draw, parts).into_iter().for_each(|part| part(s));
                });
            }
        });
        let order = draw.everyone();
        each(s, order, &mut |s, [_, all]| {
            s.for_items("t", all.grouped(2u32), |s, t| {
                let parts: Vec<Part<'_>> = vec![
                    Box::new(|s| s.wait(ready.at(t.rows()))),
                    Box::new(|s| {
                        let value = of(s, hidden, &second, t);
                        s.store(y.at(t), value);
                    }),
                ];
                shuffled(draw, parts).into_iter().for_each(|part| part(s));
            });
        });
    });
}

/// A role that reduces and scatters `g`, beside a product that has nothing to do with it.
pub fn summed_beside(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, sizes: Sizes) {
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let (g, r) = (s.local("g", Bf16), s.reduce_scattered("r", Bf16));
    let tiles = s.tiles("tiles", y, sizes.tile);
    let sums = s.tiles_like("sums", r, tiles);
    let chunks = s.chunks("chunks", r, sizes.chunk);
    let copies = draw.of(2) == 1;
    let partial = s.symmetric("partial", Bf16, r.shard(), world());
    let landed = match copies {
        true => s.counters("landed", [world().into(), chunks.into()]),
        false => s.counters("landed", [world().into(), sums.into()]),
    };
    s.comm(2u32, |s| {
        s.for_ranks("owner", draw.order(ranks().after_me()), |s, owner| {
            let items = if copies {
                chunks.of(&owner)
            } else {
                sums.of(&owner)
            };
            for some in draw.some(items) {
                s.for_items("t", some, |s, t| {
                    let slot = draw.rank(me(), &owner);
                    let to = partial.on(&owner).at(slot).at(t);
                    match copies {
                        true => s.copy(to, g.at(t)),
                        false => {
                            let part = s.load(g.at(t));
                            s.store(to, part);
                        }
                    }
                    s.signal(landed.on(&owner).at(me()).at(t), 1);
                });
            }
        });
        let who = draw.mostly(others(), &[everyone()]);
        s.for_items("t", sums.of(me()), |s, t| {
            let mine = s.load(g.at(t));
            let cells = landed.at(who.clone());
            if !draw.wrong() {
                s.wait(if copies {
                    cells.at(t.rows())
                } else {
                    cells.at(t)
                });
            }
            let theirs = s.sum(partial.at(who.clone()).at(t));
            s.store(r.at(t), mine + theirs);
        });
    });
    let order = draw.of(2) as u32 + 1;
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(order), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
    });
}
