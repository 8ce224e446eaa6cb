//! What CTAs that split the K of a tile do after their own: each sends the others its partials of their subtiles, adds
//! theirs to its own, and stores its subtiles.
//!
//! All of them send and all add, so that it takes one exchange whatever their number, and what comes after the product is
//! shared, too. The order of the sum is fixed: a launch gives the same bits every time.
//!
//! Partials and subtiles lie where the stages are: a CTA waits for the others at the end of each tile, its stages idle. From
//! the first partial that is sent to the last subtile that is read, all of that memory belongs to the tile (the ring
//! [`TILES`]); nothing is loaded ahead for the next one. Where warpgroups work in ping-pong, where stored tiles come
//! through the stages, and where stages are small, partials and subtiles lie beside them.

use super::cta::Mode;
use super::nodes::{count, why};
use super::rings::{PARTIALS, TILES};
use super::walk::Walk;
use crate::warp::{CONSUMERS, Expr, FragmentOp, Node, Phase, Slot, Symbol, Test, Unroll, cluster};

/// CTA of the cluster that a subtile belongs to.
fn owner(split: Expr) -> Expr {
    Expr::var("part") % split
}

impl Walk<'_, '_> {
    /// The end of a tile, for one of `tiles`.
    pub(super) fn end_of_tile(&self, tiles: Expr) -> Vec<Node> {
        let next = |ring| Node::Advance { ring, keep: false };
        if self.b.cta.aliased() {
            return vec![next(PARTIALS), next(TILES)];
        }
        let mut nodes = self.released(tiles);
        nodes.push(next(PARTIALS));
        nodes
    }

    /// The others may send again: what they sent was read. Unless this was the last of `tiles` for this warpgroup, and
    /// for those of its number in the others: nobody would wait for it, and it could arrive at a CTA that is gone.
    fn released(&self, tiles: Expr) -> Vec<Node> {
        let clusters = Expr::Blocks / cluster(self.b.cta);
        let next = Expr::Within
            + if self.b.cta.mode() == Mode::PingPong {
                Expr::symbol(Symbol::Consumers, CONSUMERS) * clusters
            } else {
                clusters
            };
        let arrive = Node::Arrive {
            barrier: PARTIALS.empty(),
            slot: Slot::Current,
        };
        vec![
            Node::SyncWarp,
            Node::If {
                test: Test::Less(next, tiles),
                body: vec![arrive],
            },
        ]
    }

    /// Before the loads of a tile: all subtiles of the one before were read. Each was full when every warp had added all
    /// partials.
    pub(super) fn stages_free(&self) -> Vec<Node> {
        if !self.b.cta.aliased() {
            return Vec::new();
        }
        vec![
            why("Partials and subtiles of the tile before lay where the stages are."),
            Node::Await {
                barrier: TILES.empty(),
                phase: Phase::PreviousPhase,
            },
            Node::Advance {
                ring: TILES,
                keep: false,
            },
        ]
    }

    /// The others' places for partials may be written: they released them, or all who share the tile are done with its
    /// steps.
    ///
    /// Done means that nothing of them is under way in anyone's stages. Every load has arrived, since each warp waited for
    /// it; every multiply has read, since each warp waited for its own. What the warp itself did there by ordinary
    /// accesses, for the tile before, has long been complete: the partials that it read went into subtiles, and stores read
    /// those before anything was loaded for this tile. So the arrivals have nothing to release, and the waits
    /// nothing to acquire.
    ///
    /// An arrival that comes before all of the tile before have landed counts for that one, and does no harm: a warp
    /// arrives for a tile when its own barrier has seen all warps' arrivals for the one before, each of which is one
    /// instruction for all CTAs. So as many arrivals as a tile has, after those of the tiles before, are not there
    /// before all are done with its steps.
    fn place_for_partials(&self) -> Vec<Node> {
        if !self.b.cta.aliased() {
            return vec![Node::Await {
                barrier: PARTIALS.empty(),
                phase: Phase::PreviousPhase,
            }];
        }
        vec![
            why(
                "Once all are done with its steps, partials and subtiles lie where the stages are.",
            ),
            Node::Arrive {
                barrier: TILES.full(),
                slot: Slot::Current,
            },
            Node::Await {
                barrier: TILES.full(),
                phase: Phase::ThisPhase,
            },
        ]
    }

    /// A loop of one thread over the subtiles of a tile that this CTA stores.
    pub(super) fn each_own_subtile(&self, body: Vec<Node>) -> Node {
        if self.b.cta.split() == 1 {
            return count("part", self.subtiles(), 1.into(), Unroll::Once, body);
        }
        Node::For {
            var: "part".into(),
            from: Expr::var("split_rank"),
            to: self.subtiles(),
            by: self.b.split_ctas(),
            unroll: Unroll::Once,
            body,
        }
    }

    /// A loop over the subtiles of the accumulators, with a test of the owner: this CTA's, or those of the others.
    pub(super) fn each_subtile_of(&self, which: fn(Expr, Expr) -> Test, body: Vec<Node>) -> Node {
        let body = if self.b.cta.split() == 1 {
            body
        } else {
            let test = which(owner(self.b.split_ctas()), Expr::var("split_rank"));
            vec![Node::If { test, body }]
        };
        count("part", self.subtiles(), 1.into(), Unroll::Fully, body)
    }

    /// Sends what the others add up, and adds up what they send.
    pub(super) fn exchange(&self) -> Vec<Node> {
        let tiling = self.tiling();
        let split = || self.b.split_ctas();
        let subtiles = tiling.subtiles();
        let each = Expr::symbol(Symbol::PartialSubtiles, subtiles.div_ceil(tiling.split()));
        let mine = if subtiles.is_multiple_of(tiling.split()) {
            each.clone()
        } else {
            (self.subtiles() + split() - 1 - Expr::var("split_rank")) / split()
        };
        let place = |from: Expr| from * each.clone() + Expr::var("part") / split();
        // A CTA has the others' partials in the order of their numbers, beginning after its own.
        let from = (Expr::var("split_rank") + split() - 1 - owner(split())) % split();
        let send = Node::Fragment(FragmentOp::SendPartial {
            ring: PARTIALS,
            to: owner(split()),
            index: place(from),
            part: Expr::var("part"),
        });
        let add = Node::Fragment(FragmentOp::AddPartial {
            ring: PARTIALS,
            index: place(Expr::var("from")),
            part: Expr::var("part"),
        });
        let adds = count("from", split() - 1, 1.into(), Unroll::Fully, vec![add]);
        let bytes = Expr::symbol(
            Symbol::PartialSubtileBytes,
            tiling.subtile().elements() * 4 / self.b.cta.mode().warpgroups(),
        );
        let mut nodes = vec![why(
            "This CTA had a part of the steps: it sends the others its partials of their subtiles, and adds theirs to its own.",
        )];
        nodes.extend(self.place_for_partials());
        nodes.extend([
            Node::Expect {
                barrier: PARTIALS.full(),
                bytes: mine * (split() - 1) * bytes,
            },
            self.each_subtile_of(Test::Differ, vec![send]),
            Node::Await {
                barrier: PARTIALS.full(),
                phase: Phase::ThisPhase,
            },
            // Ordinary reads, and the next writes are asynchronous: the fence of the subtiles comes between, too.
            self.each_subtile_of(Test::Equal, vec![adds]),
        ]);
        nodes
    }
}
