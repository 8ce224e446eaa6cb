//! The schedules that the emulator's tests run, made with the builder.

use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::Program;

pub const TILE: (u32, u32) = (4, 8);
pub const PIECE: u32 = 3;
const TYPE: Dtype = Dtype::Bf16;

pub type Schedule = fn() -> Program;

/// Every schedule that the verifier accepts.
pub const ALL: [(&str, Schedule); 9] = [
    ("gemm", gemm),
    ("gated", gated),
    ("ag_gemm", ag_gemm),
    ("ring", ring_gemm),
    ("pull", pull),
    ("gemm_rs", gemm_rs),
    ("gemm_rs_add", gemm_rs_add),
    ("gemm_ar", gemm_ar),
    ("gemm_ar_switch", gemm_ar_switch),
];

fn options() -> GemmOptions {
    GemmOptions {
        k: Some(4.into()),
        ..GemmOptions::default()
    }
}

/// y = x · wᵀ on each rank.
pub fn gemm() -> Program {
    let mut s = ScheduleBuilder::new("gemm");
    let (x, w) = (s.local("x", TYPE), s.local("w", TYPE));
    let y = s.out("y", TYPE);
    let tiles = s.tiles("tiles", y, TILE);
    s.gemm(options(), |s| {
        s.for_items("t", tiles.grouped(3), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    s.finish()
}

/// y = silu(x · gᵀ + bias) * (x · uᵀ), with a vector and two products an item.
pub fn gated() -> Program {
    let mut s = ScheduleBuilder::new("gated");
    let x = s.local("x", TYPE);
    let (g, u) = (s.local("g", TYPE), s.local("u", TYPE));
    let bias = s.vector("bias", Dtype::F32);
    let y = s.out("y", TYPE);
    let tiles = s.tiles("tiles", y, TILE);
    s.gemm(options(), |s| {
        s.for_items("t", tiles.all().column_major(), |s, t| {
            let gate = s.dot(x.at(t), g.at(t));
            let up = s.dot(x.at(t), u.at(t));
            let bias = s.load(bias);
            s.store(y.at(t), gate.bias(bias).silu() * up);
        });
    });
    s.finish()
}

/// Push my rows to my peers, and multiply what is here.
pub fn ag_gemm() -> Program {
    let mut s = ScheduleBuilder::new("ag_gemm");
    let x = s.gathered("x", TYPE);
    let w = s.local("w", TYPE);
    let y = s.out("y", TYPE);
    let pieces = s.pieces("pieces", x, PIECE);
    let tiles = s.tiles("tiles", y, TILE);
    let arrived = s.counters("arrived", [pieces.into()]);
    s.comm(2, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("p", pieces.of(me()), |s, p| {
                s.copy(x.on(&peer).at(p), x.at(p));
                s.signal(arrived.on(&peer).at(p), 1);
            });
        });
    });
    s.gemm(options(), |s| {
        s.for_ranks("chunk", ranks().from_me(), |s, chunk| {
            s.for_items("t", tiles.of(&chunk).grouped(2), |s, t| {
                s.wait(arrived.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    s.finish()
}

/// Pass on what I have to the next rank.
pub fn ring_gemm() -> Program {
    let mut s = ScheduleBuilder::new("ring_gemm");
    let x = s.gathered("x", TYPE);
    let w = s.local("w", TYPE);
    let y = s.out("y", TYPE);
    let pieces = s.pieces("pieces", x, PIECE);
    let tiles = s.tiles("tiles", y, TILE);
    let arrived = s.counters("arrived", [pieces.into()]);
    let next = || (me() + 1) % world();
    s.comm(2, |s| {
        s.for_ranks("chunk", ring(1).but_last(1), |s, chunk| {
            s.for_items("p", pieces.of(&chunk), |s, p| {
                s.wait(arrived.at(p));
                s.copy(x.on(next()).at(p), x.at(p));
                s.signal(arrived.on(next()).at(p), 1);
            });
        });
    });
    s.gemm(options(), |s| {
        s.for_ranks("chunk", ring(1), |s, chunk| {
            s.for_items("t", tiles.of(&chunk), |s, t| {
                s.wait(arrived.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc.gelu());
            });
        });
    });
    s.finish()
}

/// Copy engines fetch the other ranks' rows.
pub fn pull() -> Program {
    let mut s = ScheduleBuilder::new("pull");
    let x = s.gathered("x", TYPE);
    let w = s.local("w", TYPE);
    let y = s.out("y", TYPE);
    let pieces = s.pieces("pieces", x, PIECE);
    let tiles = s.tiles("tiles", y, TILE);
    let arrived = s.counters("arrived", [pieces.into()]);
    s.copy_engine(|s| {
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            s.for_items("p", pieces.of(&peer), |s, p| {
                s.copy(x.at(p), x.on(&peer).at(p));
                s.signal(arrived.at(p), 1);
            });
        });
    });
    s.gemm(options(), |s| {
        s.for_ranks("chunk", ranks().from_me(), |s, chunk| {
            s.for_items("t", tiles.of(&chunk), |s, t| {
                s.wait(arrived.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    s.finish()
}

/// My rows to everybody at once.
pub fn multicast() -> Program {
    let mut s = ScheduleBuilder::new("multicast");
    let x = s.gathered("x", TYPE);
    let w = s.local("w", TYPE);
    let y = s.out("y", TYPE);
    let pieces = s.pieces("pieces", x, PIECE);
    let tiles = s.tiles("tiles", y, TILE);
    let arrived = s.counters("arrived", [pieces.into()]);
    s.comm(1, |s| {
        s.for_items("p", pieces.of(me()), |s, p| {
            s.copy(x.everywhere().at(p), x.at(p));
            s.signal(arrived.everywhere().at(p), 1);
        });
    });
    s.gemm(options(), |s| {
        s.for_ranks("chunk", ranks().from_me(), |s, chunk| {
            s.for_items("t", tiles.of(&chunk), |s, t| {
                s.wait(arrived.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    s.finish()
}

/// Partial tiles go to their owner's slots, who adds them up.
pub fn gemm_rs() -> Program {
    let mut s = ScheduleBuilder::new("gemm_rs");
    let (x, w) = (s.local("x", TYPE), s.local("w", TYPE));
    let bias = s.vector("bias", TYPE);
    let y = s.scattered("y", TYPE);
    let tiles = s.tiles("tiles", y, TILE);
    let partial = s.symmetric("partial", TYPE, y, world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    s.gemm(options(), |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let acc = s.dot(x.at(t), w.at(t));
                s.store(partial.on(&owner).at(me()).at(t), acc);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.wait(landed.at(others()).at(t));
            let rest = s.sum(partial.at(others()).at(t));
            let bias = s.load(bias);
            s.store(y.at(t), (acc + rest).bias(bias));
        });
    });
    s.finish()
}

/// Owners write first, then everybody adds.
pub fn gemm_rs_add() -> Program {
    let mut s = ScheduleBuilder::new("gemm_rs_add");
    let (x, w) = (s.local("x", TYPE), s.local("w", TYPE));
    let y = s.scattered("y", TYPE);
    let tiles = s.tiles("tiles", y, TILE);
    let begun = s.counters("begun", [tiles.into()]);
    let landed = s.counters("landed", [tiles.into()]);
    s.gemm(options(), |s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
            s.for_ranks("peer", ranks().after_me(), |s, peer| {
                s.signal(begun.on(&peer).at(t), 1);
            });
        });
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let acc = s.dot(x.at(t), w.at(t));
                s.wait(begun.at(t));
                s.store_add(y.on(&owner).at(t), acc);
                s.signal(landed.on(&owner).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            s.wait(landed.at(t));
        });
    });
    s.finish()
}

/// Reduce at the owner, then send the sum to everybody.
pub fn gemm_ar() -> Program {
    let mut s = ScheduleBuilder::new("gemm_ar");
    let (x, w) = (s.local("x", TYPE), s.local("w", TYPE));
    let y = s.reduced("y", TYPE);
    let tiles = s.tiles("tiles", y, TILE);
    let partial = s.symmetric("partial", TYPE, y.chunk(), world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    let done = s.counters("done", [tiles.into()]);
    s.gemm(options(), |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let acc = s.dot(x.at(t), w.at(t));
                s.store(partial.on(&owner).at(me()).at(t), acc);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.wait(landed.at(others()).at(t));
            let rest = s.sum(partial.at(others()).at(t));
            s.for_ranks("peer", ranks().from_me(), |s, peer| {
                s.store(y.on(&peer).at(t), acc.clone() + rest.clone());
                s.signal(done.on(&peer).at(t), 1);
            });
        });
        s.for_items("t", tiles.all(), |s, t| s.wait(done.at(t)));
    });
    s.finish()
}

/// Every rank keeps its partial sums at home; the owner has the switch add them up, and store the sum everywhere.
pub fn gemm_ar_switch() -> Program {
    let mut s = ScheduleBuilder::new("gemm_ar_switch");
    let (x, w) = (s.local("x", TYPE), s.local("w", TYPE));
    let y = s.reduced("y", TYPE);
    let tiles = s.tiles("tiles", y, TILE);
    let partial = s.symmetric("partial", TYPE, y.whole(), 1);
    let ready = s.counters("computed", [world().into(), tiles.into()]);
    let done = s.counters("done", [tiles.into()]);
    s.gemm(options(), |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let acc = s.dot(x.at(t), w.at(t));
                s.store(partial.at(t), acc);
                s.signal(ready.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(partial.at(t), acc);
            s.wait(ready.at(others()).at(t));
            let sum = s.sum(partial.everywhere().at(t));
            s.store(y.everywhere().at(t), sum);
            s.signal(done.everywhere().at(t), 1);
        });
        s.for_items("t", tiles.all(), |s, t| s.wait(done.at(t)));
    });
    s.finish()
}

/// No product at all: inputs are sent to their owners and summed.
pub fn reduce_scatter() -> Program {
    let mut s = ScheduleBuilder::new("reduce_scatter");
    let x = s.local("x", TYPE);
    let y = s.scattered("y", TYPE);
    let pieces = s.pieces("pieces", y, PIECE);
    let slots = s.symmetric("slots", TYPE, y, world());
    let landed = s.counters("landed", [world().into(), pieces.into()]);
    s.comm(2, |s| {
        s.for_ranks("owner", ranks().from_me(), |s, owner| {
            s.for_items("p", pieces.of(&owner), |s, p| {
                s.copy(slots.on(&owner).at(me()).at(p), x.at(p));
                s.signal(landed.on(&owner).at(me()).at(p), 1);
            });
        });
    });
    s.spare_warps(|s| {
        s.for_items("p", pieces.of(me()), |s, p| {
            s.wait(landed.at(everyone()).at(p));
            let sum = s.sum(slots.at(everyone()).at(p));
            s.store(y.at(p), sum);
        });
    });
    s.finish()
}
