//! Vectors and scales that an item reads, by ordinary loads: those with a number for each row or column a subtile at a time, and
//! those with one number once a tile.

use super::leaves::Leaf;
use super::passes::Pass;
use super::walk::Walk;
use crate::kernel::OpKind;
use crate::program::{Side, TensorId, Var};
use crate::value::AccId;
use crate::warp::{Expr, Field, FragmentOp, Node, Source};

impl Walk<'_, '_> {
    /// Reads ahead what a tile's subtiles read of vectors and scales of rows, of memory that nobody writes during the launch.
    pub(super) fn read_vectors_ahead(&self, pass: &Pass<'_>, var: Var) -> Vec<Node> {
        let all = self.reads(pass, var, 0.into());
        let ahead = all.into_iter().filter_map(|(_, read)| {
            let (tensor, side, first, end) = match read {
                FragmentOp::ReadVector {
                    tensor,
                    column,
                    end,
                    again: false,
                    ..
                } => (tensor, Side::Columns, column, end),
                FragmentOp::ReadRows {
                    tensor,
                    row,
                    end,
                    again: false,
                    ..
                } => (tensor, Side::Rows, row, end),
                _ => return None,
            };
            let comes = self.b.kernel.buffers[tensor.index()].usage.is_gathered();
            (!comes).then_some(Node::Fragment(FragmentOp::ReadAhead {
                tensor,
                side,
                first,
                end,
            }))
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
        let Some((partition, chunk, row, column)) = self.item(var) else {
            return Vec::new();
        };
        let (row, column) = self.subtile_at(row, column, part);
        let partition_of = &self.b.kernel.partitions[partition.index()];
        let in_all = |side: Side, at: Expr| self.among_all((partition, chunk.as_ref()), side, at);
        let (row, column) = (in_all(Side::Rows, row), in_all(Side::Columns, column));
        // Numbers of rows in other chunks may be on their way.
        let end = |side: Side, tensor: TensorId| match self.b.kernel.buffers[tensor.index()]
            .usage
            .is_gathered()
        {
            true => in_all(side, self.span(partition, side, chunk.as_ref())),
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
            let read = match self.source(leaf) {
                Source::Vector => FragmentOp::ReadVector {
                    acc,
                    name,
                    tensor,
                    column: column.clone(),
                    end: end(Side::Columns, tensor),
                    again,
                },
                Source::Rows => FragmentOp::ReadRows {
                    acc,
                    name,
                    tensor,
                    row: row.clone(),
                    end: end(Side::Rows, tensor),
                    again,
                },
                // With the first pass's register, the compiler would keep what it multiplied by it, too.
                Source::Scale if again => FragmentOp::ReadScale { acc, name, tensor },
                Source::Scale | Source::Product(_) | Source::Subtile | Source::Sum => continue,
            };
            reads.push((acc, read));
        }
        reads
    }

    /// Reads each scale, once a tile.
    pub(super) fn read_scales(&self, pass: &Pass<'_>) -> Vec<Node> {
        let mut nodes = Vec::new();
        for leaf in pass.vectors.iter() {
            if self.source(leaf) != Source::Scale {
                continue;
            }
            if let OpKind::Load { acc, from } = &leaf.op.kind {
                nodes.push(Node::Fragment(FragmentOp::ReadScale {
                    acc: *acc,
                    name: self.operand_name(*acc),
                    tensor: from.buffer,
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
            [true, true] => Source::Scale,
            [true, false] => Source::Vector,
            [false, true] => Source::Rows,
            [false, false] => Source::Subtile,
        }
    }
}
