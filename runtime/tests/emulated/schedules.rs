//! Schedules of every way to move data: CTAs, the copy engine, stores into a peer's memory, added stores.

use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, me, others, ranks, world};
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::program::Program;

pub fn gather(copies: bool) -> Program {
    let mut s = ScheduleBuilder::new(if copies { "gather_copied" } else { "gather" });
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let pieces = s.pieces("pieces", x, 256);
    let tiles = s.tiles("tiles", y, (128, 128));
    let arrived = s.counters("arrived", [pieces.into()]);
    let send = |s: &mut ScheduleBuilder| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("p", pieces.of(me()), |s, p| {
                s.copy(x.on(&peer).at(p), x.at(p));
                s.signal(arrived.on(&peer).at(p), 1);
            });
        });
    };
    match copies {
        true => s.copy_engine(send),
        false => s.comm(4, send),
    }
    s.gemm(GemmOptions::default(), |s| {
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

pub fn scatter() -> Program {
    let mut s = ScheduleBuilder::new("scatter");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.scattered("y", Bf16);
    let tiles = s.tiles("tiles", y, (128, 128));
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
