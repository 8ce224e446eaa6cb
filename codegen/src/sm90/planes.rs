//! The scales of a piece: ordinary loads and stores of one thread, beside the boxes that its elements travel in.

use super::walk::Walk;
use crate::kernel::{Kernel, Op, OpKind};
use crate::program::{Side, Var};
use crate::warp::{Expr, Field, Node, Test};

impl Walk<'_, '_> {
    /// The scales of a piece. Where it travels in batches, they go with the first: who waits for a piece waits for all of them.
    pub(super) fn scales(&mut self, var: Var, op: &Op, batched: bool) -> Vec<Node> {
        let (OpKind::Copy { dst, src }, Some((partition, chunk, row, _))) =
            (&op.kind, self.item(var))
        else {
            return Vec::new();
        };
        let piece = self.piece(self.box_rows());
        let start = row * piece.clone();
        let all = self.span(partition, Side::Rows, chunk.as_ref());
        let dim = self.b.kernel.buffers[src.buffer.index()].rows;
        let chunked = self.b.kernel.is_chunked_along(partition, Side::Rows);
        let first = match chunk.filter(|_| chunked) {
            Some(chunk) => chunk * Expr::Field(Field::ChunkRows(dim)) + start.clone(),
            None => start.clone(),
        };
        let copy = Node::CopyScales {
            tensor: src.buffer,
            from: self.home(&src.home),
            to: self.home(&dst.home),
            row: first,
            rows: Expr::Min(Box::new(piece), Box::new(all - start)),
        };
        match batched {
            true => vec![Node::If {
                test: Test::Equal(Expr::var("batch"), 0.into()),
                body: vec![copy],
            }],
            false => vec![copy],
        }
    }
}

/// Whether an op copies the scales of rows.
pub(super) fn moves_scales(kernel: &Kernel, op: &Op) -> bool {
    matches!(&op.kind, OpKind::Copy { src, .. } if kernel.buffers[src.buffer.index()].kind.is_scale())
}

/// Whether an op copies what boxes carry.
pub(super) fn moves_boxes(kernel: &Kernel, op: &Op) -> bool {
    matches!(op.kind, OpKind::Copy { .. }) && !moves_scales(kernel, op)
}
