//! Vectors and scales that an item reads, by ordinary loads: those with a number for each row or column a subtile at a time, and
//! those with one number once a tile.

use super::leaves::Leaf;
use super::passes::Pass;
use super::walk::Walk;
use crate::kernel::OpKind;
use crate::program::{Side, TensorId, Var};
use crate::value::AccId;
use crate::warp::{Along, Expr, Field, FragmentOp, Node, Source};

impl Walk<'_, '_> {
    /// Reads a tile's vectors and scales of rows before its subtiles need them, from memory that nobody writes during the launch.
    pub(super) fn read_vectors_ahead(&self, pass: &Pass<'_>, var: Var) -> Vec<Node> {
        let all = self.reads(pass, var, 0.into());
        let ahead = all.into_iter().filter_map(|(_, read)| {
            let FragmentOp::Broadcast {
                tensor,
                along: Some(along),
                again: false,
                ..
            } = read
            else {
                return None;
            };
            let comes = self.b.kernel.buffers[tensor.index()].usage.is_gathered();
            (!comes).then_some(Node::Fragment(FragmentOp::ReadAhead { tensor, along }))
        });
        ahead.collect()
    }

    /// Reads a subtile's columns of each vector, and its rows of each scale of rows.
    pub(super) fn read_vectors(&self, pass: &Pass<'_>, var: Var) -> Vec<(AccId, Node)> {
        let reads = self.reads(pass, var, Expr::var("part"));
        let node = |(acc, read)| (acc, Node::Fragment(read));
        reads.into_iter().map(node).collect()
    }

    /// Reads for subtile `part`.
    fn reads(&self, pass: &Pass<'_>, var: Var, part: Expr) -> Vec<(AccId, FragmentOp)> {
        let Some((partition, shard, row, column)) = self.item(var) else {
            return Vec::new();
        };
        let (row, column) = self.subtile_at(row, column, part);
        let partition_of = &self.b.kernel.partitions[partition.index()];
        let in_all = |side: Side, at: Expr| self.among_all((partition, shard.as_ref()), side, at);
        let (row, column) = (in_all(Side::Rows, row), in_all(Side::Columns, column));
        // Numbers of rows in other shards may be on their way.
        let end = |side: Side, tensor: TensorId| match self.b.kernel.buffers[tensor.index()]
            .usage
            .is_gathered()
        {
            true => in_all(side, self.span(partition, side, shard.as_ref())),
            false => Expr::Field(Field::Size(partition_of.dim(side))),
        };
        let mut reads = Vec::new();
        let first = pass.vectors.iter().map(|leaf| (leaf, false));
        let again = pass.again.iter().map(|leaf| (leaf, true));
        for (leaf, again) in first.chain(again) {
            let OpKind::Load { acc, from } = &leaf.op.kind else {
                continue;
            };
            let (acc, name, tensor) = (*acc, self.operand_name(*acc), from.buffer);
            let Source::Broadcast(side) = self.source(leaf) else {
                continue;
            };
            // With the first pass's register of a single number, the compiler would keep what it multiplied by it, too.
            if side.is_none() && !again {
                continue;
            }
            let along = side.map(|side| Along {
                side,
                first: match side {
                    Side::Rows => row.clone(),
                    Side::Columns => column.clone(),
                },
                end: end(side, tensor),
            });
            let read = FragmentOp::Broadcast {
                acc,
                name,
                tensor,
                along,
                again,
            };
            reads.push((acc, read));
        }
        reads
    }

    /// Reads each scale, once a tile.
    pub(super) fn read_scales(&self, pass: &Pass<'_>) -> Vec<Node> {
        let mut nodes = Vec::new();
        for leaf in pass.vectors.iter() {
            if self.source(leaf) != Source::Broadcast(None) {
                continue;
            }
            if let OpKind::Load { acc, from } = &leaf.op.kind {
                nodes.push(Node::Fragment(FragmentOp::Broadcast {
                    acc: *acc,
                    name: self.operand_name(*acc),
                    tensor: from.buffer,
                    along: None,
                    again: false,
                }));
            }
        }
        nodes
    }

    /// Place from which a row or column vector is read: shared memory, or global memory by each thread.
    pub(super) fn source(&self, leaf: &Leaf<'_>) -> Source {
        let OpKind::Load { from, .. } = &leaf.op.kind else {
            return Source::Subtile;
        };
        let usage = self.b.kernel.buffers[from.buffer.index()].usage;
        match Side::ALL.map(|side| usage.is_same_in(side)) {
            [true, true] => Source::Broadcast(None),
            [true, false] => Source::Broadcast(Some(Side::Columns)),
            [false, true] => Source::Broadcast(Some(Side::Rows)),
            [false, false] => Source::Subtile,
        }
    }
}
