//! A loop over tiles, as each of the three GEMM roles runs it.

use super::super::{At, Expr, Node, Phase, Side, Slot, Test};
use super::epilogue::groups;
use super::item::{Leaf, Sorted, leaves, sort};
use super::nodes::{all_empty, count, read, side, steps, why};
use super::walk::{Bound, Walk, Which};
use super::{PANELS, STAGES, TILES, clustered, refuse};
use crate::kernel::{Op, OpKind, Region};
use crate::order::TileOrder;
use crate::program::{PartitionId, Pick, StoreMode, Var};
use crate::rank::RankExpr;

impl Walk<'_, '_> {
    /// A loop over tiles.
    pub fn tiles(
        &mut self,
        var: Var,
        partition: PartitionId,
        chunk: Option<&RankExpr>,
        order: TileOrder,
        body: &[Op],
    ) -> Vec<Node> {
        let mine = chunk == Some(&RankExpr::Me);
        let chunk = chunk.map(|chunk| self.rank(chunk));
        let tile = self.b.tiling().tile();
        let (down, across) = self.b.cta.cluster();
        let block = &self.b.kernel.partitions[partition.index()];
        if (block.row_block, block.column_block) != (Some(tile.rows), Some(tile.columns)) {
            let message = format!(
                "items of `{}` beside tiles of {}x{}",
                block.name, tile.rows, tile.columns
            );
            self.refuse(message, "all loops of #[gemm] visit tiles of one shape");
        }
        let leaves = leaves(self, body);
        let mut sorted = sort(self, &leaves);
        self.epilogues(&mut sorted);
        let mut nodes = Vec::new();
        let rows = self
            .rows(partition, chunk.as_ref())
            .ceil_div(clustered("TILE_M", tile.rows, down));
        let of = if mine { "my_" } else { "" };
        let tiles_m = self.name(&mut nodes, &format!("{of}tiles_m"), rows);
        let tiles = self.name(
            &mut nodes,
            &format!("{of}tiles"),
            tiles_m.clone() * Expr::var("tiles_n"),
        );
        let name = self.ident(var);
        let (row, column) = (
            self.of_cta(format!("{name}.row"), down),
            self.of_cta(format!("{name}.column"), across),
        );
        self.bind(
            var,
            Bound::Item {
                partition,
                chunk: chunk.clone(),
                row: row.clone(),
                column: column.clone(),
            },
        );
        let lag = sorted.signals.len() == 1
            && !sorted.stores.is_empty()
            && sorted.load_waits.is_empty()
            && sorted.sums.is_empty()
            && sorted.signals[0].loops.is_empty();
        let before = match self.which {
            Which::Store if !sorted.stores.is_empty() => {
                let mut waits = std::mem::take(&mut sorted.store_waits);
                let before = self.hoisted(&mut waits, &tiles);
                sorted.store_waits = waits;
                before
            }
            _ => Vec::new(),
        };
        let lag = lag && sorted.store_waits.is_empty();
        nodes.extend(before);
        let mut item = match self.which {
            Which::Load => self.load(&sorted),
            Which::Store => self.store(&sorted, lag, &mut nodes, chunk.as_ref()),
            Which::Multiply => self.multiply(&sorted, var, tiles.clone()),
            Which::Fetch | Which::Send | Which::End => Vec::new(),
        };
        let placed = self.which != Which::Multiply || !sorted.vectors.is_empty();
        if placed && !item.is_empty() {
            let place = Node::Place {
                var: name,
                order,
                index: Expr::Within,
                rows: tiles_m,
                columns: Expr::var("tiles_n"),
            };
            item.insert(0, place);
        }
        self.scope.pop();
        nodes.push(Node::Items {
            count: tiles,
            body: item,
        });
        if self.which == Which::Store && lag {
            nodes.push(why(
                "Nothing stays unsignalled past the loop: what comes next may wait for a peer that waits for this.",
            ));
            nodes.push(Node::AwaitStores { pending: 0 });
            nodes.push(Node::Flush {
                amount: amount(&sorted.signals[0]),
            });
        }
        nodes
    }

    /// At the end of loading, where CTAs load into each other: then none of that is under way, nor are the consumers'
    /// arrivals, and the CTA may leave.
    pub fn all_stages_empty(&self) -> Vec<Node> {
        let cta = self.b.cta;
        if cta.beside() == 1 {
            return Vec::new();
        }
        let mut nodes = vec![
            why(
                "All of the cluster is done with what was loaded here: nothing of it is still on its way to this CTA.",
            ),
            all_empty(STAGES, Expr::symbol("STAGES", cta.stages())),
        ];
        if cta.aliased() {
            nodes.push(Node::Await {
                ring: TILES,
                side: Side::Empty,
                phase: Phase::LapBefore,
            });
        }
        nodes
    }

    /// A tile's row or column among all: with `ctas` of a cluster along it, a place is theirs together.
    fn of_cta(&self, place: String, ctas: u32) -> Expr {
        if ctas > 1 {
            Expr::var(place) * Expr::symbol("CLUSTER", ctas) + Expr::var("half")
        } else {
            Expr::var(place)
        }
    }

    fn load(&mut self, sorted: &Sorted<'_>) -> Vec<Node> {
        let Some(dot) = &sorted.dot else {
            return self.waits(&sorted.load_waits);
        };
        let OpKind::Dot { a, b, .. } = &dot.op.kind else {
            return Vec::new();
        };
        let names = self.declared.len();
        let note = self.note(dot.op);
        let (Some(x), Some(w)) = (self.operand(0, a), self.operand(1, b)) else {
            return Vec::new();
        };
        self.declared.truncate(names);
        let mut body = vec![
            Node::Await {
                ring: STAGES,
                side: Side::Empty,
                phase: Phase::LapBefore,
            },
            Node::Expect {
                ring: STAGES,
                bytes: x.bytes + w.bytes,
            },
        ];
        let waits = self.waits(&sorted.load_waits);
        let first = Test::Equal(Expr::var("step"), 0.into());
        if waits.is_empty() {
            body.extend(x.loads.into_iter().chain(w.loads));
        } else if self.b.kernel.is_handed_over(b) {
            // The waits may be for it.
            body.push(Node::If {
                test: first,
                body: waits,
            });
            body.extend(x.loads.into_iter().chain(w.loads));
        } else {
            body.extend(w.loads);
            body.push(Node::If {
                test: first,
                body: waits,
            });
            body.extend(x.loads);
        }
        body.push(Node::Advance {
            ring: STAGES,
            keep: false,
        });
        let mut nodes = self.stages_free();
        nodes.push(note);
        // A remark that is of both is made once.
        let others = w.sizes.into_iter().filter(|node| !x.sizes.contains(node));
        nodes.extend(x.sizes.iter().cloned().chain(others));
        nodes.push(steps(body));
        for (waits, sum) in &sorted.sums {
            nodes.push(self.note(sum.op));
            nodes.extend(self.others(sum, waits));
        }
        nodes.extend(self.load_operands(sorted));
        nodes
    }

    /// Loads stored tiles through the stages: as many panels as fit where the larger operand would be.
    fn others(&mut self, sum: &Leaf<'_>, waits: &[Leaf<'_>]) -> Vec<Node> {
        let OpKind::Reduce { from, .. } = &sum.op.kind else {
            return Vec::new();
        };
        let at = self.b.kernel.loc(sum.op.id);
        let buffer = &self.b.kernel.buffers[from.buffer.index()];
        let dtype = buffer.dtype;
        if !matches!(from.slot, Some(Pick::Others)) || from.home.is_remote() {
            self.b.found.push(refuse(
                Some(at),
                "a sum of one slot, or of another rank's",
                "the slots of all others: `partial[others()][t].sum()`",
            ));
            return Vec::new();
        }
        if dtype.bytes() != self.b.tiling().widest() {
            self.b.found.push(refuse(
                Some(at),
                format!("a sum of stored tiles of {dtype} into f32"),
                "outputs of the operands' type, or tiles that are added one by one: `dot(x[t], w[t]) + z[t]`",
            ));
            return Vec::new();
        }
        let Some((_, var)) = side(from) else {
            return Vec::new();
        };
        let Some((_, _, row, column)) = self.item(var) else {
            return Vec::new();
        };
        let map = self.panel_map(from.buffer);
        let slot = Expr::var("from");
        let (row, column) = self.panel_at(row, column, Expr::var("part") + Expr::var("i"));
        let (row, chunk, rank) = self.place(from, map, var, row, Some(slot));
        let panel = Expr::symbol("PANEL_BYTES", self.b.tiling().subtile_bytes());
        let (part, _) = self.b.tiling().carrier();
        let load = self.each_slice(dtype, column, |slice, column| Node::Load {
            ring: STAGES,
            part,
            index: Expr::var("i"),
            slice,
            map,
            at: At {
                column,
                row: row.clone(),
                chunk: chunk.clone(),
                rank: rank.clone(),
            },
            multicast: None,
            strips: None,
        });
        let part = vec![
            Node::Await {
                ring: STAGES,
                side: Side::Empty,
                phase: Phase::LapBefore,
            },
            Node::Expect {
                ring: STAGES,
                bytes: self.carried() * panel,
            },
            count("i", self.carried(), 1.into(), false, vec![load]),
            Node::Advance {
                ring: STAGES,
                keep: false,
            },
        ];
        let mut body = Vec::new();
        for leaf in waits {
            if let OpKind::Wait { cells, .. } = &leaf.op.kind {
                // The same `others` as the sum's: one at a time, so that the first to arrive is loaded first.
                body.extend(self.wait(cells).into_iter().flat_map(|node| match node {
                    Node::Others { body, .. } => body,
                    other => vec![other],
                }));
            }
        }
        body.push(Node::FenceGlobal);
        body.push(count("part", self.panels(), self.carried(), false, part));
        vec![Node::Others {
            var: "from".into(),
            body,
        }]
    }

    fn store(
        &mut self,
        sorted: &Sorted<'_>,
        lag: bool,
        before: &mut Vec<Node>,
        chunk: Option<&Expr>,
    ) -> Vec<Node> {
        if sorted.stores.is_empty() {
            return Vec::new();
        }
        let mut nodes = self.waits(&sorted.store_waits);
        let mut part = Vec::new();
        let groups = groups(self, sorted);
        let per_panel = groups.len() as u32;
        for (_, stores) in groups {
            part.push(Node::Await {
                ring: PANELS,
                side: Side::Full,
                phase: Phase::ThisLap,
            });
            for leaf in stores {
                nodes.push(self.note(leaf.op));
                let OpKind::Store { dst, mode, .. } = &leaf.op.kind else {
                    continue;
                };
                let (dst, mode) = (dst.clone(), *mode);
                part.extend(self.in_loops(&leaf.loops, &mut |walk| {
                    walk.panel_to(&dst, mode, before, chunk)
                }));
            }
            part.push(Node::Commit);
            if !self.b.cta.aliased() {
                part.extend(self.panel_read());
            }
            part.push(Node::Advance {
                ring: PANELS,
                keep: false,
            });
        }
        nodes.push(self.each_own_panel(part));
        if self.b.cta.aliased() {
            nodes.push(why("Then stages may be loaded again where they lay."));
            nodes.extend(read(TILES, Slot::Current));
        }
        if sorted.signals.is_empty() {
            return nodes;
        }
        if lag {
            // All but this tile's stores are complete: the tile before can be announced.
            nodes.push(Node::AwaitStores {
                pending: self.b.tiling().subtiles() * per_panel,
            });
            nodes.push(Node::Flush {
                amount: amount(&sorted.signals[0]),
            });
        } else {
            nodes.push(Node::AwaitStores { pending: 0 });
        }
        for leaf in &sorted.signals {
            if let OpKind::Signal { cells, amount } = &leaf.op.kind {
                nodes.push(self.note(leaf.op));
                nodes.extend(
                    self.in_loops(&leaf.loops, &mut |walk| walk.signal(cells, *amount, lag)),
                );
            }
        }
        nodes
    }

    /// One panel of a tile to one destination.
    fn panel_to(
        &mut self,
        dst: &Region,
        mode: StoreMode,
        before: &mut Vec<Node>,
        chunk: Option<&Expr>,
    ) -> Vec<Node> {
        let map = self.panel_map(dst.buffer);
        let Some((_, var)) = side(dst) else {
            return Vec::new();
        };
        let Some((_, _, row, column)) = self.item(var) else {
            return Vec::new();
        };
        let slot = match &dst.slot {
            Some(Pick::One(slot)) => Some(self.rank(slot)),
            Some(Pick::All | Pick::Others) | None => None,
        };
        let (row, column) = self.panel_at(row, column, Expr::var("part"));
        let (row, at_chunk, rank) = self.place(dst, map, var, row, slot);
        if self.b.maps[usize::from(map.0)].tail
            && let Some(chunk) = chunk
        {
            before.push(Node::Tail {
                map,
                chunk: chunk.clone(),
            });
        }
        let dtype = self.b.kernel.buffers[dst.buffer.index()].dtype;
        vec![self.each_slice(dtype, column, |slice, column| Node::Store {
            ring: PANELS,
            slice,
            map,
            at: At {
                column,
                row: row.clone(),
                chunk: at_chunk.clone(),
                rank: rank.clone(),
            },
            mode,
        })]
    }

    /// Subtiles that a stage carries of a stored tile.
    pub(super) fn carried(&self) -> Expr {
        Expr::symbol("CARRIED", self.b.tiling().carrier().1)
    }
}

fn amount(leaf: &Leaf<'_>) -> u32 {
    if let OpKind::Signal { amount, .. } = leaf.op.kind {
        amount
    } else {
        1
    }
}
