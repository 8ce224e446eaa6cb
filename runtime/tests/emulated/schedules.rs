//! Schedules of every way to move data: CTAs, the copy engine, stores into a peer's memory, added stores. Unit tests of
//! the crate have this file too.

use counterflow_codegen::builder::{
    GemmOptions, Ranks, ScheduleBuilder, Tune, me, others, ranks, tune, world,
};
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::program::Program;

/// What sends a rank's rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sender {
    /// So many CTAs.
    Ctas(u32),
    CopyEngine,
}

/// y = all_gather(x) · wᵀ.
pub fn gather(sender: Sender) -> Program {
    let name = match sender {
        Sender::Ctas(_) => "gather",
        Sender::CopyEngine => "gather_copied",
    };
    gather_by(name, sender, tune([(128, 128)]))
}

/// The same with other tiles.
pub fn gather_by(name: &str, sender: Sender, tile: Tune) -> Program {
    gather_in(ranks().from_me(), name, sender, tile)
}

/// The same with shards multiplied in that order.
pub fn gather_in(order: Ranks, name: &str, sender: Sender, tile: Tune) -> Program {
    let mut s = ScheduleBuilder::new(name);
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let chunks = s.chunks("chunks", x, 256);
    let tiles = s.tiles("tiles", y, tile);
    let arrived = s.counters("arrived", [chunks.into()]);
    let send = |s: &mut ScheduleBuilder| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(&peer).at(c), x.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        });
    };
    match sender {
        Sender::Ctas(ctas) => s.comm(ctas, send),
        Sender::CopyEngine => s.copy_engine(send),
    }
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", order, |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait(arrived.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    s.finish()
}

/// x = all_gather(x).
#[allow(dead_code, reason = "unit tests of the crate use it")]
pub fn gathered() -> Program {
    let mut s = ScheduleBuilder::new("gathered");
    let x = s.gathered("x", Bf16);
    let chunks = s.chunks("chunks", x, 64);
    let arrived = s.counters("arrived", [chunks.into()]);
    s.comm(4, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(&peer).at(c), x.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        });
        s.for_ranks("shard", ranks().after_me(), |s, shard| {
            s.for_items("c", chunks.of(&shard), |s, c| s.wait(arrived.at(c)));
        });
    });
    s.finish()
}

/// y = x · wᵀ on every rank by itself.
pub fn product(tile: (u32, u32)) -> Program {
    let mut s = ScheduleBuilder::new("product");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.out("y", Bf16);
    let tiles = s.tiles("tiles", y, tile);
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    s.finish()
}

/// y = reduce_scatter(x · wᵀ), through scratch. Two of these share it.
pub fn scatter(name: &str) -> Program {
    let mut s = ScheduleBuilder::new(name);
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.reduce_scattered("y", Bf16);
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

/// y = all_gather(x) · wᵀ with choices: three tiles, two ways to share them, three numbers of CTAs that send. `w` may come first.
pub fn gather_of_choices(w_first: bool) -> Program {
    let mut s = ScheduleBuilder::new(match w_first {
        true => "gather_of_choices_by_w",
        false => "gather_of_choices",
    });
    let first = w_first.then(|| s.local("w", Bf16));
    let x = s.gathered("x", Bf16);
    let w = first.unwrap_or_else(|| s.local("w", Bf16));
    let y = s.out("y", Bf16);
    let chunks = s.chunks("chunks", x, 256);
    let tiles = s.tiles("tiles", y, tune([(128, 256), (128, 128), (128, 64)]));
    let arrived = s.counters("arrived", [chunks.into()]);
    s.comm(tune([4, 8, 16]), |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(&peer).at(c), x.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        });
    });
    let options = GemmOptions {
        ping_pong: Some(tune([false, true])),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait(arrived.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    s.finish()
}

/// y = x · wᵀ with choices for few rows: tiles, clusters, parts of K, and whether warpgroups share a tile.
#[allow(dead_code, reason = "unit tests of the crate use it")]
pub fn product_of_choices() -> Program {
    let mut s = ScheduleBuilder::new("product_of_choices");
    let (x, w) = (s.local("x", Bf16), s.local("w", Bf16));
    let y = s.out("y", Bf16);
    let tiles = tune([(128, 64), (128, 80), (128, 96), (64, 64), (16, 64)]);
    let tiles = s.tiles("tiles", y, tiles);
    let options = GemmOptions {
        cluster: Some(tune([(1, 1), (1, 2)])),
        split: Some(tune([1, 2, 4])),
        ping_pong: Some(tune([false, true])),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    s.finish()
}
