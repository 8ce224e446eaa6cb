//! Small schedules, one feature each, shared by the tests.
#![allow(dead_code, reason = "each test file uses some of them")]

use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::{Bf16, F32};
use counterflow_codegen::program::Program;

fn k64() -> GemmOptions {
    GemmOptions {
        k: Some(64.into()),
        ..GemmOptions::default()
    }
}

/// y = x · wᵀ on each rank alone.
pub fn gemm() -> Program {
    let mut s = ScheduleBuilder::new("gemm");
    let x = s.local("x", Bf16);
    let w = s.local("w", Bf16);
    let y = s.out("y", Bf16);
    let tiles = s.tiles("tiles", y, tune([(128, 256), (256, 128)]));
    s.gemm(k64(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    s.finish()
}

/// The same with tiles of one shape.
pub fn gemm_tiles(shape: (u32, u32)) -> Program {
    let mut s = ScheduleBuilder::new("gemm");
    let x = s.local("x", Bf16);
    let w = s.local("w", Bf16);
    let y = s.out("y", Bf16);
    let tiles = s.tiles("tiles", y, shape);
    s.gemm(k64(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    s.finish()
}

/// All-gather by comm CTAs that push, beside a GEMM that waits piece by piece.
pub fn push_all_gather() -> Program {
    let mut s = ScheduleBuilder::new("push_all_gather");
    let x = s.gathered("x", Bf16);
    let w = s.local("w", Bf16);
    let y = s.out("y", Bf16);
    let pieces = s.pieces("pieces", x, tune([128, 256]));
    let tiles = s.tiles("tiles", y, tune([(128, 256), (256, 128)]));
    let arrived = s.counters("arrived", [pieces.into()]);
    s.comm(tune([4, 2, 8]), |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("p", pieces.of(me()), |s, p| {
                s.copy(x.on(&peer).at(p), x.at(p));
                s.signal(arrived.on(&peer).at(p), 1);
            });
        });
    });
    s.gemm(k64(), |s| {
        s.for_ranks("chunk", ranks().from_me(), |s, chunk| {
            s.for_items("t", tiles.of(chunk).grouped(8), |s, t| {
                s.wait(arrived.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    s.finish()
}

/// All-gather by copy engine: each rank fetches its peers' chunks whole.
pub fn pull() -> Program {
    let mut s = ScheduleBuilder::new("pull");
    let x = s.gathered("x", Bf16);
    let w = s.local("w", Bf16);
    let y = s.out("y", Bf16);
    let chunks = s.pieces("chunks", x, 65536);
    let tiles = s.tiles("tiles", y, (128, 256));
    let arrived = s.counters("arrived", [chunks.into()]);
    s.copy_engine(|s| {
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            s.for_items("c", chunks.of(&peer), |s, c| {
                s.copy(x.at(c), x.on(&peer).at(c));
                s.signal(arrived.at(c), 1);
            });
        });
    });
    s.gemm(k64(), |s| {
        s.for_ranks("chunk", ranks().from_me(), |s, chunk| {
            s.for_items("t", tiles.of(chunk).grouped(8), |s, t| {
                s.wait(arrived.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    s.finish()
}

/// All-gather around a ring: each rank passes on what it has to the next.
pub fn ring_all_gather() -> Program {
    let mut s = ScheduleBuilder::new("ring");
    let x = s.gathered("x", Bf16);
    let w = s.local("w", Bf16);
    let y = s.out("y", Bf16);
    let pieces = s.pieces("pieces", x, 128);
    let tiles = s.tiles("tiles", y, (128, 256));
    let arrived = s.counters("arrived", [pieces.into()]);
    let next = (me() + 1) % world();
    s.comm(4, |s| {
        s.for_ranks("chunk", ring(1).but_last(1), |s, chunk| {
            s.for_items("p", pieces.of(chunk), |s, p| {
                s.wait(arrived.at(p));
                s.copy(x.on(&next).at(p), x.at(p));
                s.signal(arrived.on(&next).at(p), 1);
            });
        });
    });
    s.gemm(k64(), |s| {
        s.for_ranks("chunk", ring(1), |s, chunk| {
            s.for_items("t", tiles.of(chunk), |s, t| {
                s.wait(arrived.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    s.finish()
}

/// Reduce-scatter by slots: partial tiles go to their owner, which adds them in rank order.
pub fn slots_sum() -> Program {
    let mut s = ScheduleBuilder::new("slots_sum");
    let x = s.local("x", Bf16);
    let w = s.local("w", Bf16);
    let bias = s.vector("bias", Bf16);
    let y = s.scattered("y", Bf16);
    let tiles = s.tiles("tiles", y, (128, 256));
    let partial = s.symmetric("partial", Bf16, y, world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    s.gemm(k64(), |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let acc = s.dot(x.at(t), w.at(t));
                s.store(partial.on(&owner).at(me()).at(t), acc);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
    });
    s.gemm(k64(), |s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let mine = s.dot(x.at(t), w.at(t));
            s.wait(landed.at(others()).at(t));
            let theirs = s.sum(partial.at(others()).at(t));
            let bias = s.load(bias);
            s.store(y.at(t), (mine + theirs).bias(bias).gelu());
        });
    });
    s.finish()
}

/// Reduce-scatter by atomic adds to the owner, which writes its own part first.
pub fn reduce_add() -> Program {
    let mut s = ScheduleBuilder::new("reduce_add");
    let x = s.local("x", Bf16);
    let w = s.local("w", Bf16);
    let y = s.scattered("y", Bf16);
    let tiles = s.tiles("tiles", y, (128, 256));
    let begun = s.counters("begun", [world().into(), tiles.into()]);
    let added = s.counters("added", [world().into(), tiles.into()]);
    s.gemm(k64(), |s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
            s.for_ranks("peer", ranks().after_me(), |s, peer| {
                s.signal(begun.on(&peer).at(me()).at(t), 1);
            });
        });
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let acc = s.dot(x.at(t), w.at(t));
                s.wait(begun.at(&owner).at(t));
                s.store_add(y.on(&owner).at(t), acc);
                s.signal(added.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            s.wait(added.at(others()).at(t));
        });
    });
    s.finish()
}

/// All-reduce in two shots: partial tiles to their owner, the sum back to everyone.
pub fn two_shot() -> Program {
    let mut s = ScheduleBuilder::new("two_shot");
    let x = s.local("x", Bf16);
    let w = s.local("w", Bf16);
    let y = s.reduced("y", Bf16);
    let tiles = s.tiles("tiles", y, (128, 256));
    let partial = s.symmetric("partial", Bf16, y.chunk(), world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    let done = s.counters("done", [tiles.into()]);
    s.gemm(k64(), |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let acc = s.dot(x.at(t), w.at(t));
                s.store(partial.on(&owner).at(me()).at(t), acc);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            let mine = s.dot(x.at(t), w.at(t));
            s.wait(landed.at(others()).at(t));
            let theirs = s.sum(partial.at(others()).at(t));
            s.store(y.at(t), mine.clone() + theirs.clone());
            s.for_ranks("peer", ranks().after_me(), |s, peer| {
                s.store(y.on(&peer).at(t), mine.clone() + theirs.clone());
                s.signal(done.on(&peer).at(t), 1);
            });
        });
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(owner), |s, t| s.wait(done.at(t)));
        });
    });
    s.finish()
}

/// Two products an item, one gating the other.
pub fn gated_pair() -> Program {
    let mut s = ScheduleBuilder::new("gated_pair");
    let x = s.local("x", Bf16);
    let gate = s.local("gate", Bf16);
    let up = s.local("up", Bf16);
    let y = s.out("y", Bf16);
    let tiles = s.tiles("tiles", y, (128, 128));
    s.gemm(k64(), |s| {
        s.for_items("t", tiles.grouped(tune([4, 8])), |s, t| {
            let (g, u) = (s.accumulator("g"), s.accumulator("u"));
            s.accumulate(&g, x.at(t), gate.at(t));
            s.accumulate(&u, x.at(t), up.at(t));
            s.store(y.at(t), g.silu() * u);
        });
    });
    s.finish()
}

/// An all-gather in two hops: a neighbour's chunk, then what the pair holds to the other pair.
pub fn rank_if() -> Program {
    let mut s = ScheduleBuilder::new("rank_if");
    let x = s.gathered("x", Bf16);
    let pieces = s.pieces("pieces", x, 128);
    let arrived = s.counters("arrived", [pieces.into()]);
    let mate = me() ^ 1;
    s.comm(2, |s| {
        s.for_items("p", pieces.of(me()), |s, p| {
            s.copy(x.on(&mate).at(p), x.at(p));
            s.signal(arrived.on(&mate).at(p), 1);
        });
        s.for_ranks("chunk", ranks().by(pair_first), |s, chunk| {
            let mine = Cond::compare(Comparison::Eq, &chunk / 2, me() / 2);
            let across = (me() + 2) % world();
            s.when_else(
                mine,
                |s| {
                    s.for_items("p", pieces.of(&chunk), |s, p| {
                        s.wait(arrived.at(p));
                        s.copy(x.on(&across).at(p), x.at(p));
                        s.signal(arrived.on(&across).at(p), 1);
                    });
                },
                |s| s.for_items("p", pieces.of(&chunk), |s, p| s.wait(arrived.at(p))),
            );
        });
    });
    s.finish()
}

/// An all-gather that pushes everything twice.
pub fn twice() -> Program {
    let mut s = ScheduleBuilder::new("twice");
    let x = s.gathered("x", Bf16);
    let pieces = s.pieces("pieces", x, 128);
    let arrived = s.counters("arrived", [pieces.into()]);
    s.comm(2, |s| {
        for _ in 0..2 {
            s.for_ranks("peer", ranks().before_me(), |s, peer| {
                s.for_items("p", pieces.of(me()), |s, p| {
                    s.copy(x.on(&peer).at(p), x.at(p));
                    s.signal(arrived.on(&peer).at(p), 1);
                });
            });
        }
    });
    s.finish()
}

fn pair_first(me: u32, step: u32, world: u32) -> u32 {
    (me / 2 * 2 + step) % world
}

/// All-reduce in one shot: every rank sends all of its partial result to every other.
pub fn one_shot() -> Program {
    let mut s = ScheduleBuilder::new("one_shot");
    let x = s.local("x", Bf16);
    let w = s.local("w", Bf16);
    let y = s.reduced("y", Bf16);
    let tiles = s.tiles("tiles", y, (128, 256));
    let partial = s.symmetric("partial", F32, y, world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    s.gemm(k64(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(partial.at(me()).at(t), acc.clone());
            s.for_ranks("peer", ranks().after_me(), |s, peer| {
                s.store(partial.on(&peer).at(me()).at(t), acc.clone());
                s.signal(landed.on(&peer).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.all(), |s, t| {
            s.wait(landed.at(others()).at(t));
            let sum = s.sum(partial.at(everyone()).at(t));
            s.store(y.at(t), sum);
        });
    });
    s.finish()
}

/// A wait for one more than is signalled.
pub fn stuck() -> Program {
    let mut s = ScheduleBuilder::new("stuck");
    let x = s.local("x", Bf16);
    let w = s.local("w", Bf16);
    let y = s.out("y", Bf16);
    let tiles = s.tiles("tiles", y, (128, 256));
    let done = s.counters("done", []);
    s.gemm(k64(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            s.wait_at_least(done, 1);
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
            s.signal(done.on(me()), 1);
        });
    });
    s.finish()
}

/// Pushes alone, by so many CTAs.
pub fn push(ctas: u32) -> Program {
    let mut s = ScheduleBuilder::new("push");
    let x = s.gathered("x", Bf16);
    let pieces = s.pieces("pieces", x, 64);
    let arrived = s.counters("arrived", [pieces.into()]);
    s.comm(ctas, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("p", pieces.of(me()), |s, p| {
                s.copy(x.on(&peer).at(p), x.at(p));
                s.signal(arrived.on(&peer).at(p), 1);
            });
        });
    });
    s.finish()
}

/// Copies alone, of so many rows each, by copy engine.
pub fn fetch(rows: u32) -> Program {
    let mut s = ScheduleBuilder::new("fetch");
    let x = s.gathered("x", Bf16);
    let pieces = s.pieces("pieces", x, rows);
    s.copy_engine(|s| {
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            s.for_items("p", pieces.of(&peer), |s, p| {
                s.copy(x.at(p), x.on(&peer).at(p))
            });
        });
    });
    s.finish()
}
