//! The library's schedules made with the builder, and schedules that are wrong on purpose.
//!
//! What is absent here on purpose: the macro language. A schedule made at run time must reach the same verifier.

use crate::fixtures::library::{self, Sizes, real};
use counterflow::codegen::builder::*;
use counterflow::codegen::dtype::Dtype::Bf16;
use counterflow::codegen::program::Program;
use counterflow::codegen::value::Unary;

fn k64() -> GemmOptions {
    GemmOptions {
        k: Some(64.into()),
        ..GemmOptions::default()
    }
}

macro_rules! of_the_library {
    ($($name:ident),*) => {$(
        pub fn $name() -> Program {
            library::$name(&Sizes {
                ctas: tune([4, 2, 8]),
                k: Some(64.into()),
                ..real()
            })
        }
    )*};
}
of_the_library!(gemm, ag_gemm, ag_gemm_ring, gemm_rs, gemm_ar, bulk);

/// y = ln(x · wᵀ), of which half is not a number.
pub fn logarithm() -> Program {
    let mut s = ScheduleBuilder::new("logarithm");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, tune([(128, 256), (256, 128)]));
    s.gemm(k64(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc.apply(Unary::Ln));
        });
    });
    s.finish()
}

/// y = all_gather(x) · wᵀ beside a gather of z, where each rank looks at its own cells once more after it sent its rows.
pub fn waits_after_copies() -> Program {
    let mut s = ScheduleBuilder::new("waits_after_copies");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let z = s.gathered("z", Bf16);
    let (of_x, of_z) = (s.chunks("of_x", x, 128), s.chunks("of_z", z, 128));
    let tiles = s.tiles("tiles", y, (128, 256));
    let x_came = s.counters("x_came", [of_x.into()]);
    let z_came = s.counters("z_came", [of_z.into()]);
    s.comm(4, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("p", of_x.of(me()), |s, p| {
                s.copy(x.on(&peer).at(p), x.at(p));
                s.signal(x_came.on(&peer).at(p), 1);
                s.wait(x_came.at(p));
            });
            s.for_items("p", of_z.of(me()), |s, p| {
                s.copy(z.on(&peer).at(p), z.at(p));
                s.signal(z_came.on(&peer).at(p), 1);
                s.wait(z_came.at(p));
            });
        });
        s.for_ranks("shard", ranks().after_me(), |s, shard| {
            s.for_items("p", of_z.of(&shard), |s, p| s.wait(z_came.at(p)));
        });
    });
    s.gemm(k64(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard).grouped(8), |s, t| {
                s.wait(x_came.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    s.finish()
}

/// y = all_gather(x) · wᵀ beside a gather of z, each by a `#[comm]` loop: that of x stands behind the other.
pub fn two_gathers() -> Program {
    let mut s = ScheduleBuilder::new("two_gathers");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let z = s.gathered("z", Bf16);
    let of_x = s.chunks("of_x", x, tune([128, 256]));
    let of_z = s.chunks("of_z", z, tune([128, 256]));
    let tiles = s.tiles("tiles", y, tune([(128, 256), (256, 128)]));
    let x_arrived = s.counters("x_arrived", [of_x.into()]);
    let z_arrived = s.counters("z_arrived", [of_z.into()]);
    s.comm(4, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("p", of_z.of(me()), |s, p| {
                s.copy(z.on(&peer).at(p), z.at(p));
                s.signal(z_arrived.on(&peer).at(p), 1);
            });
        });
        s.for_ranks("shard", ranks().after_me(), |s, shard| {
            s.for_items("p", of_z.of(&shard), |s, p| s.wait(z_arrived.at(p)));
        });
    });
    s.comm(4, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("p", of_x.of(me()), |s, p| {
                s.copy(x.on(&peer).at(p), x.at(p));
                s.signal(x_arrived.on(&peer).at(p), 1);
            });
        });
    });
    s.gemm(k64(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard).grouped(8), |s, t| {
                s.wait(x_arrived.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    s.finish()
}

/// Wrong: [`ag_gemm`] whose comm loop forgets the last peer, so that somebody waits for ever.
pub fn forgets_one_peer() -> Program {
    let mut s = ScheduleBuilder::new("forgets_one_peer");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let chunks = s.chunks("chunks", x, 128);
    let tiles = s.tiles("tiles", y, (128, 256));
    let arrived = s.counters("arrived", [chunks.into()]);
    s.comm(4, |s| {
        s.for_ranks("peer", ranks().before_me().but_last(1), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(&peer).at(c), x.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        });
    });
    s.gemm(k64(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait_at_least(arrived.at(t.rows()), 1);
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    s.finish()
}

/// Wrong: reads what a peer writes without waiting for it.
pub fn does_not_wait() -> Program {
    let mut s = ScheduleBuilder::new("does_not_wait");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let chunks = s.chunks("chunks", x, 128);
    let tiles = s.tiles("tiles", y, (128, 256));
    s.comm(4, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(&peer).at(c), x.at(c));
            });
        });
    });
    s.gemm(k64(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    s.finish()
}

/// Wrong: a copy outside every loop over items, which lowering refuses.
pub fn copies_outside() -> Program {
    let mut s = ScheduleBuilder::new("copies_outside");
    let x = s.gathered("x", Bf16);
    s.comm(4, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.copy(x.on(&peer), x);
        });
    });
    s.finish()
}
