//! What CTAs that share the K steps of a tile do after their own: each sends the others its sums of their panels, adds
//! theirs to its own, and stores its panels.
//!
//! All of them send and all add, so that it takes one hop whatever their number, and what comes after the product is
//! shared, too. The order of the sum is fixed: a launch gives the same bits every time.
//!
//! Sums and panels lie where the stages are: a CTA waits for the others at the end of each tile, its stages idle. From
//! the first sum that is sent to the last panel that is read, all of that memory belongs to the tile (the ring
//! [`TILES`]); nothing is loaded ahead for the next one. Where warpgroups take tiles in turn, where stored tiles come
//! through the stages, and where stages are small, sums and panels lie beside them.

use super::cta::Mode;
use super::nodes::{count, why};
use super::rings::{SUMS, TILES};
use super::walk::Walk;
use crate::warp::{CONSUMERS, Expr, FragmentOp, Node, Phase, Slot, Test, cluster};

/// Which of them a panel belongs to.
fn owner(shares: Expr) -> Expr {
    Expr::var("part") % shares
}

impl Walk<'_, '_> {
    /// The end of a tile, for one of `tiles`.
    pub(super) fn handed_on(&self, tiles: Expr) -> Vec<Node> {
        let next = |ring| Node::Advance { ring, keep: false };
        if self.b.cta.aliased() {
            return vec![next(SUMS), next(TILES)];
        }
        let mut nodes = self.given_back(tiles);
        nodes.push(next(SUMS));
        nodes
    }

    /// The others may send again: what they sent was read. Unless this was the last of `tiles` for this warpgroup, and
    /// for those of its number in the others: nobody would wait for it, and it could arrive at a CTA that is gone.
    fn given_back(&self, tiles: Expr) -> Vec<Node> {
        let clusters = Expr::Blocks / cluster(self.b.cta.beside(), self.b.cta.split());
        let next = Expr::Within
            + if self.b.cta.mode() == Mode::PingPong {
                Expr::symbol("CONSUMERS", CONSUMERS) * clusters
            } else {
                clusters
            };
        let arrive = Node::Arrive {
            barrier: SUMS.empty(),
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

    /// Before the loads of a tile: all panels of the one before were read, here and in the CTA beside, which these loads
    /// reach, too. Each was full when every warp had added all sums.
    pub(super) fn stages_free(&self) -> Vec<Node> {
        if !self.b.cta.aliased() {
            return Vec::new();
        }
        vec![
            why("Sums and panels of the tile before lay where the stages are."),
            Node::Await {
                barrier: TILES.empty(),
                phase: Phase::LapBefore,
            },
            Node::Advance {
                ring: TILES,
                keep: false,
            },
        ]
    }

    /// The others' places for sums may be written: they gave them back, or all who share the tile are done with its
    /// steps.
    ///
    /// Done means that nothing of them is under way in anyone's stages. Every load has arrived, since each warp waited for
    /// it; every multiply has read, since each warp waited for its own. What the warp itself did there by ordinary
    /// accesses, for the tile before, has long been complete: the sums that it read went into panels, and stores read
    /// those before anything was loaded for this tile. So the arrivals have nothing to release, and the waits
    /// nothing to acquire.
    ///
    /// An arrival that comes before all of the tile before have landed counts for that one, and does no harm: a warp
    /// arrives for a tile when its own barrier has seen all warps' arrivals for the one before, each of which is one
    /// instruction for all CTAs. So as many arrivals as a tile has, after those of the tiles before, are not there
    /// before all are done with its steps.
    fn place_for_sums(&self) -> Vec<Node> {
        if !self.b.cta.aliased() {
            return vec![Node::Await {
                barrier: SUMS.empty(),
                phase: Phase::LapBefore,
            }];
        }
        vec![
            why("Once all are done with its steps, sums and panels lie where the stages are."),
            Node::Arrive {
                barrier: TILES.full(),
                slot: Slot::Current,
            },
            Node::Await {
                barrier: TILES.full(),
                phase: Phase::ThisLap,
            },
        ]
    }

    /// A loop of one thread over the panels of a tile that this CTA stores.
    pub(super) fn each_own_panel(&self, body: Vec<Node>) -> Node {
        if self.b.cta.split() == 1 {
            return count("part", self.panels(), 1.into(), false, body);
        }
        Node::For {
            var: "part".into(),
            from: Expr::var("share"),
            to: self.panels(),
            by: self.b.shares(),
            unrolled: false,
            body,
        }
    }

    /// A loop over panels as registers hold them: of those, the ones whose owner this CTA is, or is not.
    pub(super) fn each_panel_of(&self, which: fn(Expr, Expr) -> Test, body: Vec<Node>) -> Node {
        let body = if self.b.cta.split() == 1 {
            body
        } else {
            let test = which(owner(self.b.shares()), Expr::var("share"));
            vec![Node::If { test, body }]
        };
        count("part", self.panels(), 1.into(), true, body)
    }

    /// Sends what the others add up, and adds up what they send.
    pub(super) fn exchange(&self) -> Vec<Node> {
        let tiling = self.b.tiling();
        let shares = || self.b.shares();
        let panels = tiling.subtiles();
        let each = Expr::symbol("SUM_PANELS", panels.div_ceil(tiling.split()));
        let mine = if panels.is_multiple_of(tiling.split()) {
            each.clone()
        } else {
            (self.panels() + shares() - 1 - Expr::var("share")) / shares()
        };
        let place = |from: Expr| from * each.clone() + Expr::var("part") / shares();
        // A CTA has the others' sums in the order of their numbers, beginning after its own.
        let from = (Expr::var("share") + shares() - 1 - owner(shares())) % shares();
        let send = Node::Fragment(FragmentOp::SendSum {
            ring: SUMS,
            to: self.b.rank(owner(shares()), Expr::var("half")),
            index: place(from),
            part: Expr::var("part"),
        });
        let add = Node::Fragment(FragmentOp::AddSum {
            ring: SUMS,
            index: place(Expr::var("from")),
            part: Expr::var("part"),
        });
        let adds = count("from", shares() - 1, 1.into(), true, vec![add]);
        let bytes = Expr::symbol(
            "SUM_PANEL_BYTES",
            tiling.subtile().elements() * 4 / self.b.cta.mode().warpgroups(),
        );
        let mut nodes = vec![why(
            "This CTA had a part of the steps: it sends the others its sums of their panels, and adds theirs to its own.",
        )];
        nodes.extend(self.place_for_sums());
        nodes.extend([
            Node::Expect {
                barrier: SUMS.full(),
                bytes: mine * (shares() - 1) * bytes,
            },
            self.each_panel_of(Test::Differ, vec![send]),
            Node::Await {
                barrier: SUMS.full(),
                phase: Phase::ThisLap,
            },
            // Ordinary reads, and the next writes are asynchronous: the fence of the panels comes between, too.
            self.each_panel_of(Test::Equal, vec![adds]),
        ]);
        nodes
    }
}
