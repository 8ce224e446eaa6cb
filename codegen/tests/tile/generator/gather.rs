//! All-gathers before a product: who moves the rows, along which way, from which tensor.

use super::Sizes;
use super::draw::{Draw, Part, shuffled};
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::{Bf16, F32};
use counterflow_codegen::shape::Shape;

/// What a gather moves, and with what.
#[derive(Clone, Copy)]
pub struct Moved {
    pub x: TensorRef,
    /// What is copied: the gathered tensor, or now and then another of the same shape.
    pub from: TensorRef,
    pub chunks: PartitionRef,
    pub arrived: CountersRef,
    /// Whether that counts all slabs of some rows in one cell.
    pub by_rows: bool,
    /// Whether it has scales that travel with it.
    pub scaled: bool,
}

impl Moved {
    /// The cell of a rank that counts a chunk.
    fn cell(self, rank: &RankExpr, p: Item) -> CellsRef {
        let home = self.arrived.on(rank);
        match self.by_rows {
            true => home.at(p.rows()),
            false => home.at(p),
        }
    }

    /// The same of this rank.
    fn own_cell(self, p: Item) -> CellsRef {
        match self.by_rows {
            true => self.arrived.at(p.rows()),
            false => self.arrived.at(p),
        }
    }

    /// What brings a chunk of one to the other: a copy of all, or one of each plane, in any order; and now and then not all
    /// of it, or some of it twice.
    fn copies<'a>(
        self,
        draw: &mut Draw<'_>,
        dst: PlaceRef,
        src: PlaceRef,
        p: Item,
    ) -> Vec<Part<'a>> {
        let copy = |of: fn(PlaceRef) -> PlaceRef| -> Part<'a> {
            let (dst, src) = (of(dst.clone()).at(p), of(src.clone()).at(p));
            Box::new(move |s| s.copy(dst.clone(), src.clone()))
        };
        let [all, data, scales]: [fn(PlaceRef) -> PlaceRef; 3] =
            [|place| place, PlaceRef::data, PlaceRef::scales];
        if !self.scaled {
            return vec![copy(all)];
        }
        let right = [vec![all], vec![data, scales], vec![scales, data]][draw.of(3)].clone();
        let others = [vec![data], vec![scales], vec![all, scales], vec![data, all]];
        draw.mostly(right, &others).into_iter().map(copy).collect()
    }
}

/// Which way the rows go, and who moves them.
#[derive(Clone, Copy)]
pub struct Moves {
    moved: Moved,
    way: usize,
    who: usize,
    relay: TensorRef,
}

impl Moves {
    /// Whether the product comes first is the other answer.
    pub fn draw(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, moved: Moved) -> (Moves, bool) {
        let (way, who, last) = (draw.of(8), draw.of(3), draw.of(4) == 1);
        let relay = (way == 5).then(|| s.symmetric("relay", Bf16, moved.x.whole(), world()));
        let relay = relay.unwrap_or(moved.x);
        let moves = Moves {
            moved,
            way,
            who,
            relay,
        };
        (moves, last)
    }

    pub fn put(self, s: &mut ScheduleBuilder, draw: &mut Draw<'_>) {
        match (self.way, self.who) {
            (6.., _) => side_by_side(draw, s, self.moved, self.way == 7),
            (_, 1) => s.spare_warps(|s| self.copies(s, draw)),
            (_, 2) => s.copy_engine(|s| self.copies(s, draw)),
            (_, _) => s.comm(2u32, |s| self.copies(s, draw)),
        }
    }

    fn copies(self, s: &mut ScheduleBuilder, draw: &mut Draw<'_>) {
        match self.way {
            0 | 1 => push(draw, s, self.moved, ranks().before_me()),
            2 => pull(draw, s, self.moved, ranks().after_me()),
            3 => {
                // The last rank that a shard comes to has nobody to pass it to, however that is written.
                let last = [RankExpr::from(1), world() / world()][draw.of(2)].clone();
                let order = ring(1).but_last(last);
                ring_on(draw, s, self.moved, order, (me() + 1) % world());
            }
            4 => two_steps(draw, s, self.moved),
            _ => relayed(draw, s, self.moved, self.relay),
        }
    }
}

/// The gathered tensor itself, or now and then another one of the same shape.
pub fn source(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, gathered: TensorRef) -> TensorRef {
    match draw.mostly(0, &[1, 2]) {
        1 => s.local("z", Bf16),
        2 => s.gathered("v", Bf16),
        _ => gathered,
    }
}

pub fn all_gather(
    draw: &mut Draw<'_>,
    s: &mut ScheduleBuilder,
    sizes: Sizes,
    scaled: bool,
    launches: &mut [Shape],
) {
    let x = s.gathered("x", Bf16);
    let drawn = draw.of(64);
    // Tiles of all ranks' rows at once.
    let across = drawn / 16 == 3 && !scaled;
    let drawn = drawn % 16;
    // Without it nothing is multiplied.
    let w = (drawn % 4 != 1 || scaled).then(|| s.local("w", Bf16));
    let (slabs, by_rows) = match drawn / 4 {
        2 if !scaled => (true, true),
        3 if !scaled => (true, false),
        _ => (false, false),
    };
    let accumulated = draw.of(3) == 1;
    let y = if accumulated {
        s.accumulated("y", Bf16)
    } else {
        s.out("y", Bf16)
    };
    let from = source(draw, s, x);
    let chunks = match slabs {
        true => s.tiles("slabs", x, (sizes.chunk, 6 * sizes.times.1)),
        false => s.chunks("chunks", x, sizes.chunk),
    };
    let tiles = match across {
        true => s.tiles_across("tiles", y, sizes.tile),
        false => s.tiles("tiles", y, sizes.tile),
    };
    let counted = match by_rows {
        true => s.chunks("rows", x, sizes.chunk),
        false => chunks,
    };
    let arrived = s.counters("arrived", [counted.into()]);
    if slabs && !by_rows {
        // A slab has a cell in every launch.
        for launch in launches.iter_mut() {
            launch.k = 16 * sizes.times.1;
            launch.dims.insert("x.columns".into(), launch.k);
            if w.is_none() {
                launch.n = launch.k;
            }
        }
    }
    let moved = Moved {
        x,
        from,
        chunks,
        arrived,
        by_rows,
        scaled,
    };
    let (moves, moves_last) = Moves::draw(draw, s, moved);
    if !moves_last {
        moves.put(s, draw);
    }
    // The product waits for a slab when it comes to it.
    let within = slabs && !by_rows && w.is_some() && draw.of(2) == 1;
    let addend = draw.of(4);
    let bias = (addend == 1).then(|| s.vector("b", F32));
    let residual = (addend == 2).then(|| s.local("r", Bf16));
    s.gemm(GemmOptions::default(), |s| {
        let everyone = draw.everyone();
        let mut items = |s: &mut ScheduleBuilder, items: ItemsRef| {
            s.for_items("t", items, |s, t| {
                let target = draw.mostly(None, &[Some(1), Some(2)]);
                let wait = move |s: &mut ScheduleBuilder| match target {
                    _ if within => {}
                    None => s.wait(arrived.at(t.rows())),
                    Some(n) => s.wait_at_least(arrived.at(t.rows()), n),
                };
                let adds = draw.mostly(accumulated, &[true, false]);
                let times = draw.mostly(1, &[1, 2]);
                // Whatever a local output's expression is, it is that.
                let (minus, relu) = (draw.of(3) == 1, draw.of(4) == 1);
                let of_itself = draw.of(6);
                let multiply = move |s: &mut ScheduleBuilder| {
                    if within {
                        s.wait_by_slab(arrived.at(t.rows()));
                    }
                    let mut value = match w {
                        Some(w) => s.dot(x.at(t), w.at(t)),
                        None => s.load(x.at(t)),
                    };
                    let bias = bias.map(|bias| s.load(bias));
                    let residual = residual.map(|residual| s.load(residual.at(t)));
                    for addend in bias.into_iter().chain(residual) {
                        value = if minus {
                            value - addend
                        } else {
                            value + addend
                        };
                    }
                    value = match of_itself {
                        1 => value.clone() + value,
                        2 => value.clone() - value.scale(0.5),
                        3 => value.clone() - value,
                        _ => value,
                    };
                    if relu {
                        value = value.relu();
                    }
                    for _ in 0..times {
                        if adds {
                            s.store_add(y.at(t), value.clone());
                        } else {
                            s.store(y.at(t), value.clone());
                        }
                    }
                };
                let parts: Vec<Part<'_>> = vec![Box::new(wait), Box::new(multiply)];
                shuffled(draw, parts).into_iter().for_each(|part| part(s));
            });
        };
        match across {
            true => items(s, tiles.grouped(2)),
            false => s.for_ranks("shard", everyone, |s, shard| {
                items(s, tiles.of(&shard).grouped(2))
            }),
        }
    });
    if moves_last {
        moves.put(s, draw);
    }
}

/// Two roles at the same time, now and then under one name: each moves the rows of the ranks on one side of me, or passes on
/// what goes around one way.
fn side_by_side(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, moved: Moved, rings: bool) {
    let one_name = draw.of(4) == 1;
    let ctas = [1 + draw.of(2) as u32, 1 + draw.of(2) as u32];
    for side in [0, 1] {
        let (name, ctas) = match one_name {
            true => ("both", ctas[0]),
            false => (["after", "before"][side], ctas[side]),
        };
        let pulls = draw.of(2) == 1;
        s.comm_named(name, ctas, |s| {
            if rings {
                let goes = [world() / 2, (world() - 1) / 2][side].clone();
                let (step, to) = [(1, me() + 1), (-1, me() - 1)][side].clone();
                let order = ring(step).but_last(world() - goes);
                return ring_on(draw, s, moved, order, to % world());
            }
            let less = [(world() - 1) / 2, world() / 2][side].clone();
            let upwards = pulls == (side == 0);
            let peers = match upwards {
                true => ranks().after_me(),
                false => ranks().before_me(),
            };
            match pulls {
                true => pull(draw, s, moved, peers.but_last(less)),
                false => push(draw, s, moved, peers.but_last(less)),
            }
        });
    }
}

/// Copies to the peer, perhaps under a condition.
fn hand_off(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, peer: &RankExpr, parts: Vec<Part<'_>>) {
    let parts = shuffled(draw, parts);
    draw.perhaps(s, peer, |s| parts.iter().for_each(|part| part(s)));
}

fn push(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, moved: Moved, peers: Ranks) {
    let Moved { x, from, .. } = moved;
    s.for_ranks("peer", draw.order(peers), |s, peer| {
        let shard = draw.rank(me(), &peer);
        for some in draw.some(moved.chunks.of(shard)) {
            s.for_items("c", some, |s, c| {
                let to = draw.rank(peer.clone(), &peer);
                let whom = draw.rank(peer.clone(), &peer);
                let mut parts = moved.copies(draw, x.on(&to), from.into(), c);
                parts.push(Box::new(move |s| s.signal(moved.cell(&whom, c), 1)));
                hand_off(draw, s, &peer, parts);
            });
        }
    });
}

fn pull(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, moved: Moved, peers: Ranks) {
    let Moved { x, from, .. } = moved;
    s.for_ranks("peer", draw.order(peers), |s, peer| {
        let shard = draw.rank(peer.clone(), &peer);
        s.for_items("c", moved.chunks.of(shard), |s, c| {
            let source = draw.rank(peer.clone(), &peer);
            let whom = draw.rank(me(), &peer);
            let mut parts = moved.copies(draw, x.into(), from.on(&source), c);
            parts.push(Box::new(move |s| s.signal(moved.cell(&whom, c), 1)));
            hand_off(draw, s, &peer, parts);
        });
    });
}

/// Pass along a ring.
fn ring_on(
    draw: &mut Draw<'_>,
    s: &mut ScheduleBuilder,
    moved: Moved,
    shards: Ranks,
    next: RankExpr,
) {
    let Moved { x, from, .. } = moved;
    s.for_ranks("shard", draw.order(shards), |s, shard| {
        s.for_items("c", moved.chunks.of(&shard), |s, c| {
            let to = draw.rank(next.clone(), &shard);
            let whom = draw.rank(next.clone(), &shard);
            let mut parts: Vec<Part<'_>> = vec![Box::new(move |s| s.wait(moved.own_cell(c)))];
            parts.extend(moved.copies(draw, x.on(&to), from.into(), c));
            parts.push(Box::new(move |s| s.signal(moved.cell(&whom, c), 1)));
            let parts = shuffled(draw, parts);
            parts.iter().for_each(|part| part(s));
        });
    });
}

/// Two steps: to my neighbour, who passes it to the rest.
fn two_steps(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, moved: Moved) {
    let Moved {
        x, from, chunks, ..
    } = moved;
    let next = (me() + 1) % world();
    s.for_items("c", chunks.of(me()), |s, c| {
        s.when(Cond::compare(Comparison::Gt, world(), 1), |s| {
            let parts: Vec<Part<'_>> = vec![
                Box::new(|s| s.copy(x.on(&next).at(c), from.at(c))),
                Box::new(|s| s.signal(moved.cell(&next, c), 1)),
            ];
            let parts = shuffled(draw, parts);
            parts.iter().for_each(|part| part(s));
        });
    });
    let origin = (me() - 1) % world();
    s.for_items("c", chunks.of(&origin), |s, c| {
        if !draw.wrong() {
            s.wait(moved.own_cell(c));
        }
        s.for_ranks("peer", draw.order(ranks().after_me()), |s, peer| {
            s.when(Cond::compare(Comparison::Ne, &peer, &origin), |s| {
                let parts: Vec<Part<'_>> = vec![
                    Box::new(|s| s.copy(x.on(&peer).at(c), x.at(c))),
                    Box::new(|s| s.signal(moved.cell(&peer, c), 1)),
                ];
                let parts = shuffled(draw, parts);
                parts.iter().for_each(|part| part(s));
            });
        });
    });
}

/// By way of scratch of my own, a slot a peer.
fn relayed(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, moved: Moved, relay: TensorRef) {
    let Moved { x, from, .. } = moved;
    s.for_ranks("peer", draw.order(ranks().after_me()), |s, peer| {
        s.for_items("c", moved.chunks.of(me()), |s, c| {
            let slot = draw.rank(peer.clone(), &peer);
            let (there, to) = (slot.clone(), peer.clone());
            let whom = draw.rank(peer.clone(), &peer);
            let parts: Vec<Part<'_>> = vec![
                Box::new(move |s| s.copy(relay.at(slot.clone()).at(c), from.at(c))),
                Box::new(move |s| s.copy(x.on(&to).at(c), relay.at(there.clone()).at(c))),
                Box::new(move |s| s.signal(moved.cell(&whom, c), 1)),
            ];
            hand_off(draw, s, &peer, parts);
        });
    });
}
