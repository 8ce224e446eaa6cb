//! The library's schedules, by hand on the builder: codegen's own tests use no macro.
#![allow(dead_code, reason = "each test binary uses some of them")]

pub mod left_out;

use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::program::Program;

fn tiles() -> Tune {
    tune([(128, 256), (256, 128)])
}

pub fn gemm() -> Program {
    let mut s = ScheduleBuilder::new("gemm");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, tiles());
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    s.finish()
}

pub fn ag_gemm() -> Program {
    let mut s = ScheduleBuilder::new("ag_gemm");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let pieces = s.pieces("pieces", x, tune([128u32, 256]));
    let tiles = s.tiles("tiles", y, tiles());
    let arrived = s.counters("arrived", [pieces.into()]);
    s.comm(tune([2u32, 4, 8]), |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("p", pieces.of(me()), |s, p| {
                s.copy(x.on(&peer).at(p), x.at(p));
                s.signal(arrived.on(&peer).at(p), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("chunk", ranks().from_me(), |s, chunk| {
            s.for_items("t", tiles.of(&chunk).grouped(8), |s, t| {
                s.wait(arrived.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    s.finish()
}

pub fn ag_gemm_pull() -> Program {
    let mut s = ScheduleBuilder::new("ag_gemm_pull");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let pieces = s.pieces("pieces", x, tune([1024u32, 2048]));
    let tiles = s.tiles("tiles", y, tiles());
    let arrived = s.counters("arrived", [pieces.into()]);
    s.copy_engine(|s| {
        s.for_ranks("peer", ranks().after_me(), |s, peer| {
            s.for_items("p", pieces.of(&peer), |s, p| {
                s.copy(x.at(p), x.on(&peer).at(p));
                s.signal(arrived.at(p), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("chunk", ranks().from_me(), |s, chunk| {
            s.for_items("t", tiles.of(&chunk).grouped(8), |s, t| {
                s.wait(arrived.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    s.finish()
}

pub fn ag_gemm_ring() -> Program {
    let mut s = ScheduleBuilder::new("ag_gemm_ring");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let pieces = s.pieces("pieces", x, tune([128u32, 256]));
    let tiles = s.tiles("tiles", y, tiles());
    let arrived = s.counters("arrived", [pieces.into()]);
    s.comm(tune([2u32, 4, 8]), |s| {
        s.for_ranks("chunk", ring(1).but_last(1), |s, chunk| {
            s.for_items("p", pieces.of(&chunk), |s, p| {
                let next = (me() + 1) % world();
                s.wait(arrived.at(p));
                s.copy(x.on(&next).at(p), x.at(p));
                s.signal(arrived.on(&next).at(p), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("chunk", ring(1), |s, chunk| {
            s.for_items("t", tiles.of(&chunk).grouped(8), |s, t| {
                s.wait(arrived.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    s.finish()
}

pub fn gemm_rs() -> Program {
    let mut s = ScheduleBuilder::new("gemm_rs");
    let (x, w, y) = (
        s.local("x", Bf16),
        s.local("w", Bf16),
        s.scattered("y", Bf16),
    );
    let tiles = s.tiles("tiles", y, tiles());
    let partial = s.symmetric("partial", Bf16, y, world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let acc = s.dot(x.at(t), w.at(t));
                s.store(partial.on(&owner).at(me()).at(t), acc);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let mine = s.dot(x.at(t), w.at(t));
            s.wait(landed.at(others()).at(t));
            let theirs = s.sum(partial.at(others()).at(t));
            s.store(y.at(t), mine + theirs);
        });
    });
    s.finish()
}

pub fn gemm_rs_add() -> Program {
    let mut s = ScheduleBuilder::new("gemm_rs_add");
    let (x, w, y) = (
        s.local("x", Bf16),
        s.local("w", Bf16),
        s.scattered("y", Bf16),
    );
    let tiles = s.tiles("tiles", y, tiles());
    let begun = s.counters("begun", [tiles.into()]);
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
            s.for_ranks("peer", ranks().after_me(), |s, peer| {
                s.signal(begun.on(&peer).at(t), 1)
            });
        });
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let acc = s.dot(x.at(t), w.at(t));
                s.wait(begun.at(t));
                s.store_add(y.on(&owner).at(t), acc);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            s.wait(landed.at(others()).at(t))
        });
    });
    s.finish()
}

pub fn gemm_ar() -> Program {
    let mut s = ScheduleBuilder::new("gemm_ar");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.reduced("y", Bf16));
    let tiles = s.tiles("tiles", y, tiles());
    let partial = s.symmetric("partial", Bf16, y.chunk(), world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    let done = s.counters("done", [tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
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
            let all = mine + theirs;
            s.store(y.at(t), all.clone());
            s.for_ranks("peer", ranks().after_me(), |s, peer| {
                s.store(y.on(&peer).at(t), all);
                s.signal(done.on(&peer).at(t), 1);
            });
        });
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| s.wait(done.at(t)));
        });
    });
    s.finish()
}

pub fn bulk() -> Program {
    let mut s = ScheduleBuilder::new("bulk");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let z = s.gathered("z", Bf16);
    let pieces = s.pieces("pieces", z, tune([128u32, 256]));
    let tiles = s.tiles("tiles", y, tiles());
    let arrived = s.counters("arrived", [pieces.into()]);
    s.comm(tune([4u32, 8]), |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("p", pieces.of(me()), |s, p| {
                s.copy(z.on(&peer).at(p), z.at(p));
                s.signal(arrived.on(&peer).at(p), 1);
            });
        });
        s.for_ranks("chunk", ranks().after_me(), |s, chunk| {
            s.for_items("p", pieces.of(&chunk), |s, p| s.wait(arrived.at(p)));
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    s.finish()
}

/// Every one, with its name.
pub fn all() -> Vec<Program> {
    vec![
        gemm(),
        ag_gemm(),
        ag_gemm_pull(),
        ag_gemm_ring(),
        gemm_rs(),
        gemm_rs_add(),
        gemm_ar(),
        bulk(),
    ]
}
