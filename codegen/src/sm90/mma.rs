//! A tile as the multiplying warpgroups compute it.

use super::cta::Mode;
use super::nodes::{count, why};
use super::passes::Pass;
use super::rings::STAGES;
use super::walk::Walk;
use crate::kernel::OpKind;
use crate::program::Var;
use crate::tiling::{Piece, Promotion, StagedScale};
use crate::warp::{Expr, FragmentOp, Node, Phase, ReadInto, Slot, Test, Unroll};

impl Walk<'_, '_> {
    pub(super) fn multiply(&mut self, pass: &Pass<'_>, var: Var, tiles: Expr) -> Vec<Node> {
        if pass.dots.is_empty() {
            return self.write_subtiles(pass, var);
        }
        let arrive = |slot| Node::Arrive {
            barrier: STAGES.empty(),
            slot,
        };
        let promoted = self.tiling().promotion();
        let unroll = match self.tiling().steps_unrolled() {
            1 => Unroll::Once,
            times => Unroll::Times(times),
        };
        let begin = self.begins_in_blocks(pass);
        let body = match promoted {
            Some(promotion) => self.promoted_step(promotion, &begin),
            None => self.step_in_flight(),
        };
        let ping_pong = |node: Node| (self.b.cta.mode() == Mode::PingPong).then_some(node);
        let mut nodes: Vec<Node> = pass.dots.iter().map(|dot| self.note(dot.op)).collect();
        nodes.extend(self.read_vectors_ahead(pass, var));
        nodes.push(Node::Accumulators);
        nodes.extend(ping_pong(Node::AwaitOrder));
        // Where a sum comes through the stages, they are this tile's until all of it was read.
        let sums = self.summed_by_turns(pass);
        nodes.extend(match unroll {
            Unroll::Once | Unroll::Fully => None,
            Unroll::Times(_) => Some(why(
                "Several steps stand one after another: what the next one needs is worked out while sums are added.",
            )),
        });
        nodes.extend(self.staggered(unroll, body));
        nodes.extend(ping_pong(Node::ArriveOrder).filter(|_| !sums));
        if promoted.is_none() {
            nodes.extend([Node::MmaWait { pending: 0 }, arrive(Slot::Previous)]);
        }
        nodes.extend(ping_pong(self.skip()).filter(|_| !sums));
        for (_, sum) in pass.sums.iter().filter(|_| !pass.apart) {
            let OpKind::Reduce { from, .. } = &sum.op.kind else {
                continue;
            };
            let scales = self.read_tile_scales(from);
            let add = Node::Fragment(FragmentOp::ReadSubtile {
                ring: STAGES,
                slot_part: self.tiling().reused_stage().0,
                index: Expr::var("i"),
                dtype: self.b.kernel.buffers[from.buffer.index()].dtype,
                into: ReadInto::Product {
                    part: Expr::var("part") + Expr::var("i"),
                    scaled: scales.is_some(),
                },
            });
            let part = vec![
                Node::Await {
                    barrier: STAGES.full(),
                    phase: Phase::ThisPhase,
                },
                count(
                    "i",
                    self.stage_subtiles(),
                    1.into(),
                    Unroll::Fully,
                    vec![add],
                ),
                // These were ordinary reads; the next write to the stage is TMA's.
                Node::FenceShared,
                Node::SyncWarp,
                arrive(Slot::Current),
                Node::Advance {
                    ring: STAGES,
                    keep: false,
                },
            ];
            nodes.push(self.note(sum.op));
            let mut body = scales.unwrap_or_default();
            body.push(count(
                "part",
                self.subtiles(),
                self.stage_subtiles(),
                Unroll::Fully,
                part,
            ));
            nodes.extend(self.each_slot(sum, None, body));
        }
        if self.b.cta.split() > 1 {
            nodes.extend(self.exchange());
        }
        let mut stored = self.write_subtiles(pass, var);
        if sums {
            // As many stages as there are ranks, so a place that goes through them one by one is in no uniform register, nor would
            // the next tile's descriptors be.
            stored = vec![Node::Ahead {
                ring: STAGES,
                body: stored,
            }];
            stored.extend([
                Node::ArriveOrder,
                Node::Skip {
                    ring: STAGES,
                    by: self.steps.clone() + self.stages_of_a_sum() * 2,
                },
            ]);
        }
        nodes.extend(stored);
        if self.b.cta.split() > 1 {
            nodes.extend(self.end_of_tile(tiles));
        }
        nodes
    }

    /// True if a tile that one consumer computes alone has a sum behind its steps.
    fn summed_by_turns(&self, pass: &Pass<'_>) -> bool {
        self.b.cta.mode() == Mode::PingPong && !pass.sums.is_empty()
    }

    /// Stages of such a sum: a subtile of each of the others' terms.
    fn stages_of_a_sum(&self) -> Expr {
        self.subtiles() * (Expr::world() - 1)
    }

    /// In front of a loop whose tiles have a sum behind their steps: past that of the other consumer's tile, if that is the loop's
    /// first one. Each grid has one of its tiles for this CTA.
    pub(super) fn past_the_first_sum(&self, passes: &[Pass<'_>]) -> Vec<Node> {
        if !passes.iter().any(|pass| self.summed_by_turns(pass)) {
            return Vec::new();
        }
        let past = Node::Skip {
            ring: STAGES,
            by: self.stages_of_a_sum(),
        };
        vec![
            why(
                "The other consumer has this CTA's first tile of the loop, with a sum behind its steps.",
            ),
            Node::If {
                test: Test::AtLeast(Expr::Within, Expr::Blocks),
                body: vec![past],
            },
        ]
    }

    /// A step that stays in flight: the next step's multiplies begin before its own are complete, and release its stage.
    fn step_in_flight(&self) -> Vec<Node> {
        let mut body = vec![
            Node::Await {
                barrier: STAGES.full(),
                phase: Phase::ThisPhase,
            },
            Node::MmaFence,
        ];
        let multiplies = 0..self.tiling().multiplies().len();
        body.extend(multiplies.map(|multiply| Node::Mma {
            ring: STAGES,
            multiply,
            piece: None,
            fresh: Expr::var("step"),
        }));
        body.extend([
            Node::MmaCommit,
            Node::MmaWait { pending: 1 },
            Node::If {
                test: Test::Differ(Expr::var("step"), 0.into()),
                body: vec![Node::Arrive {
                    barrier: STAGES.empty(),
                    slot: Slot::Previous,
                }],
            },
            Node::Advance {
                ring: STAGES,
                keep: true,
            },
        ]);
        body
    }

    /// A step with promotion: each piece's sums are awaited, then added to the sums of earlier steps, share by share.
    /// Meanwhile the other warpgroup multiplies, where both share the tile. The stage is released as soon as tensor cores have
    /// read it, and threads the last of its scales.
    ///
    /// From the last wait to the next step's multiplies tensor cores have nothing of this warpgroup. So the next stage is tested
    /// before the last sums are added, which takes as long as the answer.
    fn promoted_step(&self, promotion: Promotion, begin: &[Expr]) -> Vec<Node> {
        let mut body = vec![Node::AwaitTested { ring: STAGES }];
        let multiplies = 0..self.tiling().multiplies().len();
        let pieces: Vec<(usize, Piece)> = multiplies
            .flat_map(|multiply| promotion.pieces().map(move |piece| (multiply, piece)))
            .collect();
        // The part of K whose scales a thread has, and of each scale the share.
        let (mut depth, mut has) = (None, vec![0; self.tiling().scales().len()]);
        for (at, (multiply, piece)) in pieces.iter().copied().enumerate() {
            body.extend([
                Node::MmaFence,
                Node::Mma {
                    ring: STAGES,
                    multiply,
                    piece: Some(piece),
                    fresh: 0.into(),
                },
                Node::MmaCommit,
            ]);
            if depth.replace(piece.depth) != Some(piece.depth) {
                has.fill(0);
                body.extend(self.read_blocks(begin, piece.depth));
            }
            for (nth, share) in (1..).zip(promotion.shares_of(piece)) {
                body.extend(self.read_share(&mut has, multiply, (piece, share)));
                if nth == 1 {
                    body.push(Node::MmaWait { pending: 0 });
                }
                if (at + 1, nth) == (pieces.len(), promotion.shares) {
                    if !self.tiling().scales().is_empty() {
                        body.push(Node::SyncWarp);
                    }
                    body.extend([
                        Node::Arrive {
                            barrier: STAGES.empty(),
                            slot: Slot::Current,
                        },
                        Node::Advance {
                            ring: STAGES,
                            keep: false,
                        },
                        Node::TestWait { ring: STAGES },
                    ]);
                }
                body.push(Node::Fragment(FragmentOp::Promote {
                    multiply,
                    piece,
                    share,
                }));
            }
        }
        body
    }

    /// Reads the scales of the blocks of a part of a step's K, if there are some: while tensor cores are busy, since their registers are no
    /// accumulators. The compiler puts the reads between two multiplies, and the second one starts when they have come; a barrier of
    /// the warp before them keeps them behind all. Where lines run along the N side, each thread reads many numbers, and the time
    /// behind the multiplies is too short for them.
    fn read_blocks(&self, begin: &[Expr], depth: u32) -> Vec<Node> {
        let tiling = self.tiling();
        let scales = tiling.scales().iter().enumerate();
        let reads = scales.map(|(scale, staged)| {
            let number = self.number_in_box(staged, depth);
            Node::Fragment(FragmentOp::ReadBlocks {
                ring: STAGES,
                scale,
                number,
                begin: begin[scale].clone(),
                share: 0,
            })
        });
        let mut nodes: Vec<Node> = reads.collect();
        if !tiling.has_scales_on_n() && !nodes.is_empty() {
            nodes.insert(0, Node::SyncWarp);
        }
        nodes
    }

    /// Number, in the box of a step's scales, of those of a part of its K.
    fn number_in_box(&self, staged: &StagedScale, depth: u32) -> Expr {
        match staged.block.is_1d() {
            true => depth.into(),
            false => (self.first_block(staged) + depth) % staged.boxed().1,
        }
    }

    /// Number of a step's first block of K.
    pub(super) fn first_block(&self, staged: &StagedScale) -> Expr {
        match staged.depth {
            1 => self.step(),
            depth => self.step() * depth,
        }
    }

    /// Reads those scales of a share of a piece that a thread does not have.
    fn read_share(
        &self,
        has: &mut [u32],
        multiply: usize,
        (piece, share): (Piece, u32),
    ) -> Vec<Node> {
        let tiling = self.tiling();
        let product = tiling.products()[tiling.multiplies()[multiply].first];
        let scales = product.into_iter().filter_map(|it| tiling.scale_of(it));
        let mut nodes = Vec::new();
        for scale in scales {
            let share = tiling.share_of_scale(scale, piece, share);
            if std::mem::replace(&mut has[scale], share) != share {
                nodes.push(Node::Fragment(FragmentOp::ReadBlocks {
                    ring: STAGES,
                    scale,
                    number: self.number_in_box(&tiling.scales()[scale], piece.depth),
                    begin: 0.into(),
                    share,
                }));
            }
        }
        nodes
    }
}
