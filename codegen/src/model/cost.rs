//! How long the steps take that use no link.

use super::Machine;
use crate::kernel::{Block, Kernel, Op, OpId, OpKind, RoleKind};
use crate::program::PartitionId;
use crate::unroll::Span;

/// Time, in picoseconds: whole numbers, so that equal times are equal and a sum does not depend on its order.
pub(super) type Ps = u64;

/// `seconds` in picoseconds.
pub(super) fn ps(seconds: f64) -> Ps {
    (seconds * 1e12).round() as Ps
}

/// Seconds of picoseconds.
pub(super) fn seconds(time: Ps) -> f64 {
    time as f64 * 1e-12
}

/// How long `bytes` bytes take at `rate` bytes a second.
pub(super) fn at_rate(bytes: u64, rate: f64) -> Ps {
    ps(bytes as f64 / rate)
}

/// What the tiles of a kernel cost on a machine.
pub(super) struct Costs<'a> {
    machine: &'a Machine,
    kernel: &'a Kernel,
    /// Rows and columns of the item around each op, by [`OpId`].
    tiles: Vec<(u32, u32)>,
    cluster: (u32, u32),
    k_step: u32,
}

impl<'a> Costs<'a> {
    pub(super) fn new(kernel: &'a Kernel, machine: &'a Machine) -> Self {
        let mut costs = Costs {
            machine,
            kernel,
            tiles: vec![(0, 0); kernel.locs.len()],
            cluster: (1, 1),
            k_step: kernel.k_step().max(1),
        };
        for role in &kernel.roles {
            if let RoleKind::Gemm(gemm) = role.kind {
                costs.cluster = gemm.cluster;
            }
            costs.blocks(&role.body);
        }
        costs
    }

    fn blocks(&mut self, body: &[Block]) {
        for block in body {
            match block {
                Block::ForRanks { body, .. } => self.blocks(body),
                Block::If {
                    then, otherwise, ..
                } => {
                    self.blocks(then);
                    self.blocks(otherwise);
                }
                Block::Items {
                    partition, body, ..
                } => self.ops(body, *partition),
                Block::Once { .. } | Block::Join => {}
            }
        }
    }

    fn ops(&mut self, body: &[Op], partition: PartitionId) {
        let tile = &self.kernel.partitions[partition.index()];
        let tile = (tile.row_block.unwrap_or(0), tile.column_block.unwrap_or(0));
        for op in body {
            self.tiles[usize::from(op.id.0)] = tile;
            match &op.kind {
                OpKind::ForRanks { body, .. } | OpKind::ForSplits { body, .. } => {
                    self.ops(body, partition);
                }
                OpKind::If {
                    then, otherwise, ..
                } => {
                    self.ops(then, partition);
                    self.ops(otherwise, partition);
                }
                OpKind::Wait { .. }
                | OpKind::Signal { .. }
                | OpKind::Copy { .. }
                | OpKind::Dot { .. }
                | OpKind::Reduce { .. }
                | OpKind::Load { .. }
                | OpKind::Store { .. } => {}
            }
        }
    }

    /// Bytes of a span.
    pub(super) fn bytes(&self, span: &Span) -> u64 {
        span.elements() * u64::from(self.kernel.buffers[span.buffer.index()].dtype.bytes())
    }

    /// One product of one CTA with the machine's SMs at work beside it. An item at the edge costs a whole tile,
    /// because the tensor cores multiply whole tiles. Bounded by the tensor cores, and by what an SM reads through
    /// the L2 cache, of which a cluster shares what its CTAs have in common. `first` in its item, it pays for the
    /// tile's overhead.
    pub(super) fn dot(&self, op: OpId, a: &Span, b: &Span, first: bool) -> Ps {
        let (rows, columns) = self.tiles[usize::from(op.0)];
        let rows = f64::from(rows.max(a.rows.len()));
        let columns = f64::from(columns.max(b.rows.len()));
        let k = f64::from(a.columns.len().next_multiple_of(self.k_step));
        let dtype = self.kernel.buffers[a.buffer.index()].dtype;
        let sms = f64::from(self.machine.sms);
        let tensor = 2.0 * rows * columns * k / (self.machine.flops_of(dtype) / sms);
        let (down, across) = (f64::from(self.cluster.0), f64::from(self.cluster.1));
        let read = (rows / across + columns / down) * k * f64::from(dtype.bytes());
        let feed = read / (self.machine.l2 / sms);
        let overhead = if first {
            self.machine.tile_overhead
        } else {
            0.0
        };
        ps(tensor.max(feed) + overhead)
    }

    /// Bytes a second that one SM reads or writes at most.
    pub(super) fn sm_rate(&self) -> f64 {
        self.machine.l2 / f64::from(self.machine.sms)
    }
}
