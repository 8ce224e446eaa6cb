//! The scales of a chunk, beside the boxes of its elements. One thread copies scales of rows by ordinary loads and stores. Scales
//! of blocks travel in a box of each batch, with as many blocks of K as the batch has boxes.

use super::leaves::moved_blocks;
use super::walk::Walk;
use crate::kernel::{Op, OpKind, Region};
use crate::program::{Side, TensorId, Var};
use crate::warp::{At, BATCH, Expr, MapId, Node, Symbol, Test};

impl Walk<'_, '_> {
    /// The scales of a chunk. Where it travels in batches, they go with the first: who waits for a chunk waits for all of them.
    pub(super) fn scales(&mut self, var: Var, op: &Op, batched: bool) -> Vec<Node> {
        let (OpKind::Copy { dst, src }, Some((partition, shard, row, _))) =
            (&op.kind, self.item(var))
        else {
            return Vec::new();
        };
        let chunk = self.chunk(self.box_rows());
        let start = row * chunk.clone();
        let all = self.span(partition, Side::Rows, shard.as_ref());
        let first = self.among_all((partition, shard.as_ref()), Side::Rows, start.clone());
        let copy = Node::CopyScales {
            tensor: src.buffer,
            from: self.home_of_scales(&src.home),
            to: self.home_of_scales(&dst.home),
            row: first,
            rows: Expr::Min(Box::new(chunk), Box::new(all - start)),
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

impl Walk<'_, '_> {
    /// The box of the current batch's scales of blocks.
    pub(super) fn box_of_blocks(&mut self, var: Var, region: &Region) -> (MapId, At) {
        let per_box = self.blocks_per_box(region.buffer);
        let map = self.map(
            region.buffer,
            var,
            (self.rows_of_blocks(region.buffer), BATCH * per_box),
        );
        let each = self.b.kernel.buffers[region.buffer.index()]
            .usage
            .rows_each();
        let row = self.item(var).map_or(0.into(), |(_, _, row, _)| row);
        let row = row * self.chunk(self.box_rows());
        let row = match each {
            1 => row,
            each => row / Expr::symbol(Symbol::ScaleBlock, each),
        };
        let column = Expr::var("batch") * times(Expr::symbol(Symbol::Batch, BATCH), per_box);
        let at = At {
            whose: self.home_of_scales(&region.home).into(),
            ..self.place(region, map, var, (row, column), None)
        };
        (map, at)
    }

    /// Bytes of that box.
    pub(super) fn bytes_of_blocks(&self, scale: TensorId) -> Expr {
        let bytes = self.b.kernel.buffers[scale.index()].dtype.bytes();
        let blocks = times(
            Expr::symbol(Symbol::Batch, BATCH),
            self.blocks_per_box(scale),
        );
        Expr::from(self.rows_of_blocks(scale)) * blocks * bytes
    }

    /// Blocks of K that a box of their tensor has.
    fn blocks_per_box(&self, scale: TensorId) -> u32 {
        let block = self.b.kernel.buffers[scale.index()].usage.blocks();
        block.map_or(1, |block| self.box_columns(scale) / block.columns)
    }

    fn rows_of_blocks(&self, scale: TensorId) -> u32 {
        self.box_rows() / self.b.kernel.buffers[scale.index()].usage.rows_each()
    }

    /// Refuses chunks that no box of their scales begins with.
    pub(super) fn whole_blocks(&mut self, op: &Op) {
        let Some(block) = moved_blocks(self.b.kernel, op) else {
            return;
        };
        let (rows, unit) = (self.box_rows(), block.shard_unit());
        if rows.is_multiple_of(unit) {
            return;
        }
        let at = self.at.replace(self.b.kernel.loc(op.id));
        let message = format!("chunks of {rows} rows, whose scales of {block} travel with them");
        self.refuse(message, format!("a multiple of {unit} rows"));
        self.at = at;
    }
}

/// A number so many times.
fn times(number: Expr, count: u32) -> Expr {
    match count {
        1 => number,
        count => number * count,
    }
}
