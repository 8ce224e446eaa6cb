//! The scales that an item makes of what it stores, a subtile at a time: it has whole blocks.

use super::leaves::Leaf;
use super::nodes::side;
use super::rings::STAGES;
use super::walk::Walk;
use crate::kernel::{Kernel, OpKind, Region};
use crate::program::{Pick, Side, TensorId, Var};
use crate::warp::{Elements, Expr, Field, FragmentOp, Node, Phase, ScalesTo, Test};

impl Walk<'_, '_> {
    /// Makes the scales of these elements of a subtile, unless that was done.
    pub(super) fn make_scales(&mut self, elements: Elements, var: Var, part: &mut Vec<Node>) {
        let made = |node: &Node| matches!(node, Node::Fragment(FragmentOp::Quantize { elements: known, to: ScalesTo::Registers, .. }) if *known == elements);
        if part.iter().any(made) {
            return;
        }
        let extents = self.extents(var).into_iter();
        part.extend(extents.map(|[_, [column, end]]| {
            let columns = [self.block_of(column), end];
            Node::Fragment(FragmentOp::Quantize {
                elements,
                part: Expr::var("part"),
                columns,
                to: ScalesTo::Registers,
            })
        }));
    }

    /// The first column of the block that a subtile's is in: a tile begins with one.
    fn block_of(&self, column: Expr) -> Expr {
        match self.subtiles_of_block() {
            1 => column,
            _ => {
                column / Expr::Const(self.computed_scale_columns())
                    * Expr::Const(self.computed_scale_columns())
            }
        }
    }

    /// Number of subtiles of a block.
    fn subtiles_of_block(&self) -> u32 {
        (self.computed_scale_columns() / self.tiling().subtile().columns).max(1)
    }

    /// Columns of a block whose scale is made; 0 where none is.
    fn computed_scale_columns(&self) -> u32 {
        let rule = self.b.kernel.rule();
        rule.map_or(0, |rule| rule.block().columns)
    }

    /// Writes the scales of partial sums beside the slots that these stores write.
    pub(super) fn send_scales(
        &mut self,
        stores: &[Leaf<'_>],
        elements: Elements,
        var: Var,
    ) -> Vec<Node> {
        let stores = stores.iter();
        stores
            .flat_map(|leaf| self.send_scales_of(leaf, elements, var))
            .collect()
    }

    fn send_scales_of(&mut self, leaf: &Leaf<'_>, elements: Elements, var: Var) -> Vec<Node> {
        let (Some(tensor), OpKind::Store { dst, .. }) = (plane(self.b.kernel, leaf), &leaf.op.kind)
        else {
            return Vec::new();
        };
        if !self.b.kernel.buffers[tensor.index()].is_scratch() {
            return Vec::new();
        }
        let Some([rows, columns]) = self.extents_in_shard(var) else {
            return Vec::new();
        };
        let per = self.subtiles_of_block();
        self.inside(&leaf.around, &mut |walk| {
            let slot = match &dst.slot {
                Some(Pick::One(slot)) => walk.rank(slot),
                Some(Pick::All | Pick::Others) | None => Expr::Const(0),
            };
            let send = Node::Fragment(FragmentOp::Quantize {
                elements,
                part: Expr::var("part"),
                columns: columns.clone(),
                to: ScalesTo::Slot {
                    tensor,
                    to: [walk.home_of_scales(&dst.home), slot],
                    rows: rows.clone(),
                },
            });
            match per {
                1 => vec![send],
                // Its first subtile does.
                per => vec![Node::If {
                    test: Test::Equal(Expr::var("part") % Expr::Const(per), 0.into()),
                    body: vec![send],
                }],
            }
        })
    }

    /// Reads the scales of a sum's term, that of the slot `from`, if it has some: once its first subtile is there.
    pub(super) fn read_tile_scales(&mut self, from: &Region) -> Option<Vec<Node>> {
        let tensor = self.b.kernel.computed_scale_of(from.buffer)?;
        let (_, var) = side(from)?;
        let (partition, shard, row, column) = self.item(var)?;
        let end = |side: Side| self.span(partition, side, shard.as_ref());
        let rows = [row * self.tile_rows(), end(Side::Rows)];
        let columns = [column * self.tile_columns(), end(Side::Columns)];
        Some(vec![
            Node::Await {
                barrier: STAGES.full(),
                phase: Phase::ThisPhase,
            },
            Node::Fragment(FragmentOp::ReadTileScales {
                tensor,
                slot: Expr::var("from"),
                rows,
                columns,
            }),
        ])
    }

    /// Writes the scales for a store, where it is done.
    pub(super) fn write_scales(
        &mut self,
        leaf: &Leaf<'_>,
        elements: Elements,
        var: Var,
    ) -> Vec<Node> {
        let (Some(tensor), Some([rows, columns])) = (plane(self.b.kernel, leaf), self.extents(var))
        else {
            return Vec::new();
        };
        if self.b.kernel.buffers[tensor.index()].is_scratch() {
            return Vec::new();
        }
        let all = Field::Size(self.b.kernel.buffers[tensor.index()].columns);
        let op = FragmentOp::Quantize {
            elements,
            part: Expr::var("part"),
            columns,
            to: ScalesTo::Plane {
                tensor,
                rows,
                all: [all, Field::Line(tensor)].map(Expr::Field),
            },
        };
        self.inside(&leaf.around, &mut |_| vec![Node::Fragment(op.clone())])
    }
}

/// The plane of the scales that a store makes, if it does.
pub(super) fn plane(kernel: &Kernel, leaf: &Leaf<'_>) -> Option<TensorId> {
    let OpKind::Store { dst, .. } = &leaf.op.kind else {
        return None;
    };
    kernel.computed_scale_of(dst.buffer)
}
