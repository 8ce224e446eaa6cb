//! Every rank's memory at once: copies, stores, adds and sums that reach it, with their signals, and now and then one that is in
//! the wrong place, missing, or for one rank alone.

use super::draw::{Draw, Part, shuffled};
use super::{Addend, Meant, Sizes, Summed};
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::Bf16;

/// What is to be there, if it is a sum over ranks.
pub fn reaching(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, sizes: Sizes) -> Option<Meant> {
    let way = draw.of(4);
    match way {
        0 => gathered(draw, s, sizes),
        1 => computed(draw, s, sizes),
        2 => summed(draw, s, sizes),
        _ => added(draw, s, sizes),
    }
    (way > 1).then_some(Meant {
        of: Summed::Products,
        addend: Addend::Nothing,
        minus: false,
        relu: false,
    })
}

/// A place on every rank, or now and then on one.
fn place(draw: &mut Draw<'_>, tensor: TensorRef) -> PlaceRef {
    let one = draw.mostly(None, &[Some(me()), Some((me() + 1) % world())]);
    one.map_or_else(|| tensor.everywhere(), |rank| tensor.on(rank))
}

fn cells(draw: &mut Draw<'_>, counters: CountersRef) -> CellsRef {
    let one = draw.mostly(None, &[Some(me()), Some((me() + 1) % world())]);
    one.map_or_else(|| counters.everywhere(), |rank| counters.on(rank))
}

fn put(s: &mut ScheduleBuilder, draw: &mut Draw<'_>, parts: Vec<Part<'_>>) {
    shuffled(draw, parts).into_iter().for_each(|part| part(s));
}

/// Chunks of my rows, by whoever copies.
fn gathered(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, sizes: Sizes) {
    let (x, w) = (s.gathered("x", Bf16), s.local("w", Bf16));
    let y = s.out("y", Bf16);
    let chunks = s.chunks("chunks", x, sizes.chunk);
    let tiles = s.tiles("tiles", y, sizes.tile);
    let arrived = s.counters("arrived", [chunks.into()]);
    let copies = |s: &mut ScheduleBuilder, draw: &mut Draw<'_>| {
        let (to, of) = (place(draw, x), cells(draw, arrived));
        let rows = draw.rank(me(), &((me() + 1) % world()));
        for some in draw.some(chunks.of(rows)) {
            s.for_items("c", some, |s, c| {
                let parts: Vec<Part<'_>> = vec![
                    Box::new(|s| s.copy(to.clone().at(c), x.at(c))),
                    Box::new(|s| s.signal(of.clone().at(c), 1)),
                ];
                put(s, draw, parts);
            });
        }
    };
    match draw.of(3) {
        1 => s.spare_warps(|s| copies(s, draw)),
        2 => s.copy_engine(|s| copies(s, draw)),
        _ => s.comm(2u32, |s| copies(s, draw)),
    }
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", draw.everyone(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                if !draw.wrong() {
                    s.wait(arrived.at(t.rows()));
                }
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
            });
        });
    });
}

/// Tiles of my rows, as they are computed.
fn computed(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, sizes: Sizes) {
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.gathered_output("y", Bf16);
    let tiles = s.tiles("tiles", y, sizes.tile);
    let done = s.counters("done", [tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        let (to, of) = (place(draw, y), cells(draw, done));
        s.for_items("t", tiles.of(me()), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            let parts: Vec<Part<'_>> = vec![
                Box::new(|s| s.store(to.clone().at(t), product.clone())),
                Box::new(|s| s.signal(of.clone().at(t), 1)),
            ];
            put(s, draw, parts);
        });
        s.for_ranks("owner", draw.order(ranks().after_me()), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| s.wait(done.at(t)));
        });
    });
}

/// Partials that the switch adds up.
fn summed(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, sizes: Sizes) {
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.all_reduced("y", Bf16);
    let tiles = s.tiles("tiles", y, sizes.tile);
    let partial = s.symmetric("partial", Bf16, y.whole(), 1);
    let ready = s.counters("ready", [world().into(), tiles.into()]);
    let done = s.counters("done", [tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("owner", draw.everyone(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                let cell = draw.rank(me(), &owner);
                let parts: Vec<Part<'_>> = vec![
                    Box::new(|s| s.store(partial.at(t), product.clone())),
                    Box::new(|s| s.signal(ready.on(&owner).at(cell.clone()).at(t), 1)),
                ];
                put(s, draw, parts);
            });
        });
        let (to, of) = (place(draw, y), cells(draw, done));
        s.for_items("t", tiles.of(me()), |s, t| {
            if !draw.wrong() {
                let who = draw.mostly(everyone(), &[others()]);
                s.wait(ready.at(who).at(t));
            }
            let sum = s.sum(partial.everywhere().at(t));
            let parts: Vec<Part<'_>> = vec![
                Box::new(|s| s.store(to.clone().at(t), sum.clone())),
                Box::new(|s| s.signal(of.clone().at(t), 1)),
            ];
            put(s, draw, parts);
        });
        s.for_ranks("owner", draw.order(ranks().after_me()), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| s.wait(done.at(t)));
        });
    });
}

/// Parts that are added to every rank's copy, behind the owner's.
fn added(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, sizes: Sizes) {
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.all_reduced("y", Bf16);
    let tiles = s.tiles("tiles", y, sizes.tile);
    let begun = s.counters("begun", [tiles.into()]);
    let done = s.counters("done", [world().into(), tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        let (to, of) = (place(draw, y), cells(draw, begun));
        s.for_items("t", tiles.of(me()), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            let parts: Vec<Part<'_>> = vec![
                Box::new(|s| s.store(to.clone().at(t), product.clone())),
                Box::new(|s| s.signal(of.clone().at(t), 1)),
            ];
            put(s, draw, parts);
        });
        let (to, of) = (place(draw, y), cells(draw, done));
        s.for_ranks("owner", draw.order(ranks().after_me()), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                if !draw.wrong() {
                    s.wait(begun.at(t));
                }
                let parts: Vec<Part<'_>> = vec![
                    Box::new(|s| s.store_add(to.clone().at(t), product.clone())),
                    Box::new(|s| s.signal(of.clone().at(me()).at(t), 1)),
                ];
                put(s, draw, parts);
            });
        });
        s.for_ranks("owner", ranks().from_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                s.wait(done.at(everyone()).at(t));
            });
        });
    });
}
