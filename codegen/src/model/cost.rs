//! How long the steps take that use no link.

use super::Machine;
use crate::fit::staged_rows;
use crate::kernel::{Block, GemmKind, Kernel, Op, OpId, OpKind, RoleKind};
use crate::pipeline::{BLOCK_ROWS, STRIP_ROWS, Tile};
use crate::plan::Plan;
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
    gemm: GemmKind,
    k_step: u32,
    /// CTAs of a rank that have tiles.
    busy: f64,
    plan: &'a Plan,
}

impl<'a> Costs<'a> {
    pub(super) fn new(kernel: &'a Kernel, plan: &'a Plan, machine: &'a Machine) -> Self {
        let mut costs = Costs {
            machine,
            kernel,
            tiles: vec![(0, 0); kernel.locs.len()],
            gemm: GemmKind {
                k: 1,
                cluster: (1, 1),
                split: 1,
                stages: None,
                panels: None,
                ping_pong: false,
            },
            k_step: kernel.k_step().max(1),
            busy: 1.0,
            plan,
        };
        for role in &kernel.roles {
            if let RoleKind::Gemm(gemm) = role.kind {
                costs.gemm = gemm;
                costs.share(&role.body);
            }
            costs.blocks(&role.body);
        }
        costs
    }

    /// How the role's tiles are shared out.
    fn share(&mut self, body: &[Block]) {
        for block in body {
            match block {
                Block::ForRanks { body, .. } | Block::ForSplits { body, .. } => self.share(body),
                Block::If {
                    then, otherwise, ..
                } => {
                    self.share(then);
                    self.share(otherwise);
                }
                Block::Items { partition, .. } => {
                    let items = self.plan.geometry.items(*partition) as f64;
                    let items = items * f64::from(self.gemm.split);
                    // Power limits the mean over all rounds, whether the last one is partly idle or the grid smaller.
                    let sms = self.machine.sms - self.plan.grid.comm.min(self.machine.sms);
                    self.busy = self.busy.max(items.min(f64::from(sms)));
                }
                Block::Once { .. } | Block::Join => {}
            }
        }
    }

    fn blocks(&mut self, body: &[Block]) {
        for block in body {
            match block {
                Block::ForRanks { body, .. } | Block::ForSplits { body, .. } => self.blocks(body),
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

    /// Whose tiles.
    pub(super) fn kernel(&self) -> &'a Kernel {
        self.kernel
    }

    /// Bytes of a span.
    pub(super) fn bytes(&self, span: &Span) -> u64 {
        span.elements() * u64::from(self.kernel.buffers[span.buffer.index()].dtype.bytes())
    }

    /// One product of one CTA with the others at work beside it. An item at the edge costs a whole tile, because the
    /// tensor cores multiply whole tiles. Bounded by the tensor cores, by what an SM reads through the L2 cache, of
    /// which a cluster shares what its CTAs have in common, and by the steps of its K loop, which follow each other.
    /// Where CTAs share the steps, it is one of them with what they send each other.
    /// `first` in its item, it pays for the tile's overhead, if no other warpgroup multiplies meanwhile.
    pub(super) fn dot(&self, op: OpId, a: &Span, b: &Span, first: bool) -> Ps {
        let (rows, columns) = self.tiles[usize::from(op.0)];
        let k = a.columns.len().next_multiple_of(self.k_step);
        // The CTAs that share a tile's steps have as many each, or one more.
        let steps = (k / self.k_step).div_ceil(self.gemm.split);
        let k = f64::from(steps * self.k_step);
        let steps = f64::from(steps);
        let dtype = self.kernel.buffers[a.buffer.index()].dtype;
        let machine = self.machine;
        // A tile is multiplied whole, whichever of its sides is on the instruction's M side, and nothing beside it.
        let multiplied = f64::from(rows.max(a.rows.len()));
        let width = f64::from(columns.max(b.rows.len()));
        let tensor = 2.0 * multiplied * width * k / machine.flops_of(dtype, self.busy);
        let (down, across) = self.gemm.cluster;
        let read = self.lines(a, rows, across) + self.lines(b, columns, down);
        let readers = self.busy.min(f64::from(self.plan.grid.gemm));
        let rate = (machine.l2 / readers).min(machine.l2_sm);
        let feed = read * k * f64::from(dtype.bytes()) / rate;
        let latency = if self.gemm.cluster == (1, 1) {
            machine.step_latency
        } else {
            machine.cluster_step_latency
        };
        let stages = f64::from(self.plan.grid.stages.max(1));
        let chain = steps * latency.max(machine.stage_latency / stages);
        let exchange = if self.gemm.split > 1 {
            machine.exchange
        } else {
            0.0
        };
        let tile = self.gemm.tile((rows, columns));
        let overhead = if first { self.overhead(tile) } else { 0.0 };
        ps(tensor.max(feed).max(chain) + overhead + exchange)
    }

    /// Seconds a tile costs besides its steps. In turn, another tile's hide them; if there is none, one warpgroup has all
    /// of the epilogue.
    fn overhead(&self, tile: Tile) -> f64 {
        let grid = &self.plan.grid;
        let alone = grid.tiles * u64::from(self.gemm.split) <= u64::from(grid.gemm);
        let blocks = if tile.sides().0 > BLOCK_ROWS {
            2.0
        } else {
            1.0
        };
        match (self.gemm.in_turn(tile), alone) {
            (false, _) => self.machine.tile_overhead,
            (true, true) => self.machine.tile_overhead * blocks,
            (true, false) => 0.0,
        }
    }

    /// Rows of an operand that a step loads, as many as they cost: where K is contiguous those that exist, in whole
    /// strips, of which the CTAs of a cluster share what they load together.
    ///
    /// Measured, of boxes: rows that begin within a line of 128 bytes take twice as long, since each step reads two lines
    /// of them; rows outside a tensor that has less than a box four times, since all CTAs ask for the same ones, and twice
    /// where the last of several boxes has them. Where rows are contiguous, they still come in boxes.
    fn lines(&self, operand: &Span, boxed: u32, shared: u32) -> f64 {
        const OUTSIDE: f64 = 4.0;
        const BEYOND: f64 = 2.0;
        let buffer = &self.kernel.buffers[operand.buffer.index()];
        let geometry = &self.plan.geometry;
        let bytes = buffer.dtype.bytes();
        let aligned = (geometry.contiguous(buffer) * bytes).is_multiple_of(LINE);
        if !buffer.rows_contiguous {
            let rows = operand.rows.len().next_multiple_of(STRIP_ROWS);
            let rows = rows.min(boxed.max(operand.rows.len()));
            let line = if aligned { 1.0 } else { 2.0 };
            return f64::from(rows) * line / f64::from(shared);
        }
        let all = geometry.size(buffer.rows);
        let rows = boxed.max(operand.rows.len());
        let (outside, each) = if boxed > all {
            (boxed - all, OUTSIDE)
        } else {
            let end = operand.rows.start + boxed;
            (end.saturating_sub(all).min(rows), BEYOND)
        };
        let line = if aligned {
            lines_of_a_row(boxed * bytes)
        } else {
            2.0
        };
        f64::from(staged_rows(rows, true) - outside) * line + each * f64::from(outside)
    }

    /// Bytes a second at which a tile's operands come at most: each CTA that shares its steps reads its part.
    pub(super) fn operand_rate(&self) -> f64 {
        self.machine.l2_sm * f64::from(self.gemm.split)
    }

    /// Bytes a second that one SM reads or writes at most.
    pub(super) fn sm_rate(&self) -> f64 {
        self.machine.l2 / f64::from(self.machine.sms)
    }
}

/// Bytes of a line of the cache.
const LINE: u32 = 128;

/// Lines that a line's width of a box costs, in the mean over boxes that begin so many bytes after each other: all that
/// do not begin with a line lie in two, of which the second costs half (fitted: no more bytes move).
fn lines_of_a_row(bytes: u32) -> f64 {
    let phases = (1..=LINE).find(|boxes| (boxes * bytes).is_multiple_of(LINE));
    1.5 - 0.5 / f64::from(phases.unwrap_or(LINE))
}
