//! Every way in which rows travel between ranks: by CTAs or copy engines, pushed, pulled, passed on, relayed, through
//! scratch, with and without the schedule's own acknowledgement. All of them gather `x`, and a GEMM follows as it comes.
#![allow(dead_code, reason = "each test binary uses some of them")]

use super::codegen::builder::*;
use super::codegen::dtype::Dtype::Bf16;
use super::codegen::order::RankOrder;
use super::codegen::program::Program;

/// Rows of a piece.
const PIECE: u32 = 128;

/// Who moves the rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mover {
    /// CTAs.
    Ctas,
    /// The host's copies.
    Engine,
}

/// How they travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Local to remote.
    Push,
    /// Remote to local, from the ranks after this one.
    Pull,
    /// The same in the other order.
    PullBackwards,
    /// Local to remote, what arrived to the next rank.
    Ring,
    /// Remote to remote, from the rank after this one to all others.
    Relay,
    /// Local to scratch, and from there remote to local.
    Staged,
    /// Remote to local, of rows that their owner says are there.
    PullWhenTold,
    /// Local to remote, when the schedule's own acknowledgement has come.
    PushWhenAsked,
}

pub const WAYS: [Way; 8] = [
    Way::Push,
    Way::Pull,
    Way::PullBackwards,
    Way::Ring,
    Way::Relay,
    Way::Staged,
    Way::PullWhenTold,
    Way::PushWhenAsked,
];

/// All that have a kernel: a copy engine does not copy between two other ranks.
pub fn all() -> impl Iterator<Item = (Mover, Way)> {
    let of = |mover| WAYS.into_iter().map(move |way| (mover, way));
    let both = [Mover::Ctas, Mover::Engine].into_iter().flat_map(of);
    both.filter(|of| *of != (Mover::Engine, Way::Relay))
}

/// All but the rank after this one, this one last.
fn all_but_the_next() -> Ranks {
    Ranks(RankOrder::FromMe {
        start: 2,
        stride: 1,
        skipped: 1,
    })
}

/// The schedule, with so many CTAs that move.
pub fn gather(mover: Mover, way: Way, ctas: u32) -> Program {
    let mut s = ScheduleBuilder::new(&format!("{way:?}_by_{mover:?}").to_lowercase());
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let pieces = s.pieces("pieces", x, PIECE);
    let tiles = s.tiles("tiles", y, (128, 256));
    let arrived = s.counters("arrived", [pieces.into()]);
    let body = |s: &mut ScheduleBuilder| match way {
        Way::Push => s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("p", pieces.of(me()), |s, p| {
                s.copy(x.on(&peer).at(p), x.at(p));
                s.signal(arrived.on(&peer).at(p), 1);
            });
        }),
        Way::Pull | Way::PullBackwards => {
            let order = match way {
                Way::Pull => ranks().after_me(),
                _ => ranks().before_me(),
            };
            s.for_ranks("peer", order, |s, peer| {
                s.for_items("p", pieces.of(&peer), |s, p| {
                    s.copy(x.at(p), x.on(&peer).at(p));
                    s.signal(arrived.at(p), 1);
                });
            });
        }
        Way::Ring => s.for_ranks("chunk", ring(1).but_last(1), |s, chunk| {
            s.for_items("p", pieces.of(&chunk), |s, p| {
                let next = (me() + 1) % world();
                s.wait(arrived.at(p));
                s.copy(x.on(&next).at(p), x.at(p));
                s.signal(arrived.on(&next).at(p), 1);
            });
        }),
        Way::Relay => s.for_ranks("peer", all_but_the_next(), |s, peer| {
            let next = (me() + 1) % world();
            s.for_items("p", pieces.of(&next), |s, p| {
                s.copy(x.on(&peer).at(p), x.on(&next).at(p));
                s.signal(arrived.on(&peer).at(p), 1);
            });
        }),
        Way::Staged => {
            let stage = s.symmetric("stage", Bf16, x.chunk(), world());
            let staged = s.counters("staged", [pieces.into()]);
            s.for_ranks("peer", ranks().before_me(), |s, peer| {
                s.for_items("p", pieces.of(me()), |s, p| {
                    s.copy(stage.at(&peer).at(p), x.at(p));
                    s.signal(staged.on(&peer).at(p), 1);
                });
            });
            s.for_ranks("peer", ranks().after_me(), |s, peer| {
                s.for_items("p", pieces.of(&peer), |s, p| {
                    s.wait(staged.at(p));
                    s.copy(x.at(p), stage.on(&peer).at(me()).at(p));
                    s.signal(arrived.at(p), 1);
                });
            });
        }
        Way::PullWhenTold => {
            let told = s.counters("told", [pieces.into()]);
            s.for_ranks("peer", ranks().before_me(), |s, peer| {
                s.for_items("p", pieces.of(me()), |s, p| {
                    s.signal(told.on(&peer).at(p), 1)
                });
            });
            s.for_ranks("peer", ranks().after_me(), |s, peer| {
                s.for_items("p", pieces.of(&peer), |s, p| {
                    s.wait(told.at(p));
                    s.copy(x.at(p), x.on(&peer).at(p));
                    s.signal(arrived.at(p), 1);
                });
            });
        }
        Way::PushWhenAsked => {
            let asked = s.counters("asked", [world().into(), pieces.into()]);
            s.for_ranks("peer", ranks().after_me(), |s, peer| {
                s.for_items("p", pieces.of(&peer), |s, p| {
                    s.signal(asked.on(&peer).at(me()).at(p), 1)
                });
            });
            s.for_ranks("peer", ranks().before_me(), |s, peer| {
                s.for_items("p", pieces.of(me()), |s, p| {
                    s.wait(asked.at(&peer).at(p));
                    s.copy(x.on(&peer).at(p), x.at(p));
                    s.signal(arrived.on(&peer).at(p), 1);
                });
            });
        }
    };
    match mover {
        Mover::Ctas => s.comm(ctas, body),
        Mover::Engine => s.copy_engine(body),
    }
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
