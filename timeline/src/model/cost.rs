//! The cost of steps that use no link.

use counterflow_codegen::kernel::{Block, GemmKind, Kernel, Op, OpId, OpKind, RoleKind, visit_ops};
use counterflow_codegen::machine::{Machine, wave};
use counterflow_codegen::order::{Chosen, TileOrder};
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Var;
use counterflow_codegen::region::Rectangle;
use counterflow_codegen::sm90::cta::{BLOCK_ROWS, Cta, Mode, PARTIAL_BOX_ROWS};
use counterflow_codegen::tiling::{StagedScale, Tiling};

/// Time in picoseconds. Whole numbers, so that equal times are equal and a sum does not depend on its order.
pub(super) type Ps = u64;

/// `seconds` in picoseconds.
pub(super) fn ps(seconds: f64) -> Ps {
    (seconds * 1e12).round() as Ps
}

/// Seconds of picoseconds.
pub(super) fn seconds(time: Ps) -> f64 {
    time as f64 * 1e-12
}

/// The time of `bytes` bytes at `rate` bytes a second.
pub(super) fn at_rate(bytes: u64, rate: f64) -> Ps {
    ps(bytes as f64 / rate)
}

/// The item around ops: its rows and columns, and those of its loop in items.
#[derive(Clone, Copy, Default)]
struct Item<'a> {
    tile: (u32, u32),
    /// Tiling, if an architecture computes the kernel.
    tiling: Option<&'a Tiling>,
    grid: (u32, u32),
    order: Option<TileOrder>,
    /// True if consecutive items are below each other, so that they share columns. Otherwise they share rows.
    down: bool,
    /// True if it has a sum over ranks.
    summed: bool,
}

/// Costs of a kernel's tiles on a machine.
pub(super) struct Costs<'a> {
    machine: &'a Machine,
    kernel: &'a Kernel,
    /// The item around each op, by [`OpId`].
    items: Vec<Item<'a>>,
    gemm: GemmKind,
    k_step: u32,
    plan: &'a Plan,
}

impl<'a> Costs<'a> {
    pub(super) fn new(kernel: &'a Kernel, plan: &'a Plan, machine: &'a Machine) -> Self {
        Costs::in_orders(kernel, plan, machine, &[])
    }

    /// As [`Costs::new`], with other orders of tiles than the kernel's for some loops.
    pub(super) fn in_orders(
        kernel: &'a Kernel,
        plan: &'a Plan,
        machine: &'a Machine,
        orders: &[(Var, TileOrder)],
    ) -> Self {
        let mut costs = Costs {
            machine,
            kernel,
            items: vec![Item::default(); kernel.locs.len()],
            gemm: GemmKind {
                k: 1,
                cluster: (1, 1),
                split: 1,
                stages: None,
                subtiles: None,
                ping_pong: false,
            },
            k_step: kernel.k_step().max(1),
            plan,
        };
        for role in &kernel.roles {
            if let RoleKind::Gemm(gemm) = role.kind {
                costs.gemm = gemm;
            }
            costs.blocks(&role.body, orders);
        }
        costs
    }

    fn blocks(&mut self, body: &[Block], orders: &[(Var, TileOrder)]) {
        for block in body {
            match block {
                Block::ForRanks { body, .. } => self.blocks(body, orders),
                Block::If {
                    then, otherwise, ..
                } => {
                    self.blocks(then, orders);
                    self.blocks(otherwise, orders);
                }
                Block::Items {
                    var,
                    partition,
                    order,
                    selection,
                    body,
                    ..
                } => {
                    let other = orders.iter().find(|(of, _)| of == var);
                    let order = other.map_or(*order, |(_, order)| *order);
                    let tile = &self.kernel.partitions[partition.index()];
                    let grid = self.plan.geometry.grid(*partition, None);
                    let (rows, columns) = grid;
                    let some = selection.of(rows * columns, 0, self.plan.geometry.world, &|_| None);
                    let some = some.unwrap_or_else(|_| Chosen::all(rows * columns));
                    let column = |nth| order.at(some.at(nth), rows, columns).1;
                    let tilings = self.plan.cta.as_ref().map_or(&[][..], Cta::tilings);
                    let mut summed = false;
                    visit_ops(body, &mut |op| {
                        summed |= matches!(op.kind, OpKind::Reduce { .. })
                    });
                    let item = Item {
                        tile: (tile.row_block.unwrap_or(0), tile.column_block.unwrap_or(0)),
                        tiling: tilings.iter().find(|it| it.partition() == *partition),
                        grid,
                        order: Some(order),
                        down: some.count > 1 && column(0) == column(1),
                        summed,
                    };
                    self.ops(body, item);
                }
                Block::Once { .. } | Block::Join => {}
            }
        }
    }

    fn ops(&mut self, body: &[Op], item: Item<'a>) {
        for op in body {
            self.items[usize::from(op.id.0)] = item;
            for body in op.kind.bodies() {
                self.ops(body, item);
            }
        }
    }

    /// Kernel of the tiles.
    pub(super) fn kernel(&self) -> &'a Kernel {
        self.kernel
    }

    /// One product of one CTA while the others work beside it. An item at the edge costs a whole tile, because the
    /// tensor cores multiply whole tiles. It is bounded by the tensor cores, by the SM's reads through the L2 cache,
    /// and by the steps of its K loop, which follow each other. If CTAs share the steps, it is one of them with the
    /// sums that they send each other. If `first` in its item, it includes the tile's overhead, unless another
    /// warpgroup multiplies meanwhile. A slab of K costs its share of all of K.
    pub(super) fn dot(&self, op: OpId, a: &Rectangle, b: &Rectangle, first: bool) -> Ps {
        let item = self.items[usize::from(op.0)];
        let (rows, columns) = item.tile;
        // Of no depth there is a step of zeros.
        let depth = self
            .plan
            .geometry
            .size(self.kernel.buffers[a.tensor.index()].columns);
        let share_of_k = match depth {
            0 => 1.0,
            depth => f64::from(a.columns.len()) / f64::from(depth),
        };
        let k = depth.max(1).next_multiple_of(self.k_step);
        let split = self.gemm.split;
        // CTAs that split a tile's K have equal numbers of them, or one more.
        let steps = (k / self.k_step).div_ceil(split);
        let k = f64::from(steps * self.k_step);
        let steps = f64::from(steps);
        let dtype = self.kernel.buffers[a.tensor.index()].dtype;
        let machine = self.machine;
        // Exactly the whole tile is multiplied, whichever of its sides is on the instruction's M side.
        let height = f64::from(rows.max(a.rows.len()));
        let width = f64::from(columns.max(b.rows.len()));
        let tensor = 2.0 * height * width * k / machine.flops_of(dtype, self.ctas());
        let (down, across) = self.gemm.cluster;
        let neighbour = if self.columns_in_common(item) {
            Neighbour::Same
        } else {
            Neighbour::Other
        };
        let tiling = item.tiling;
        let x = |ctas| self.lines(a, tiling, rows, ctas, Neighbour::Other);
        let w = |ctas, neighbour| self.lines(b, tiling, columns, ctas, neighbour);
        let whole = x(1).come + w(1, Neighbour::Other).come;
        let read = [neighbour, Neighbour::Other]
            .map(|neighbour| (x(across).read(), w(down, neighbour).read()));
        let by_rows = [a, b].map(|of| self.kernel.buffers[of.tensor.index()].mn_major);
        let feeds = self.feeds(item, whole, read, by_rows.contains(&true));
        let alike = (x(1).come, w(1, Neighbour::Other).come);
        let depth = f64::from(depth) * f64::from(dtype.bytes());
        let from_memory = self.memory_share(item, alike, depth);
        let feeds = match by_rows.contains(&true) {
            // Their rate has what memory takes, where it was measured.
            true => feeds
                .map(|line| line + from_memory * (1.0 - machine.memory / machine.sm.by_rows_at[1])),
            false => [feeds[0], feeds[1] + from_memory],
        };
        let latency = if split > 2 {
            machine.sm.shared_step_latency
        } else {
            machine.sm.step_latency
        };
        let stages = f64::from(self.plan.grid.stages.max(1));
        let chain = steps * latency.max(machine.sm.stage_latency / stages);
        let multiplied = steps * self.promoted(tensor / steps, tiling);
        let [in_step, apart] = feeds.map(|line| {
            let feed = line * k * f64::from(dtype.bytes());
            multiplied.max(feed).max(chain)
        });
        let meet = if self.gemm.cluster == (1, 1) {
            0.0
        } else {
            steps * machine.sm.meeting
        };
        // The mean over the steps of a launch.
        let done = steps * self.plan.grid.rounds as f64 / machine.sm.apart;
        let share = 1.0 / (1.0 + done * done);
        let others = f64::from(split - 1) / f64::from(split);
        let exchange = others * f64::from(rows) * width * SPLIT_PARTIAL_BYTES / machine.sm.exchange;
        let overhead = if first { self.overhead(item) } else { 0.0 };
        let steps = share * in_step + (1.0 - share) * apart + meet;
        ps(share_of_k * steps + overhead + share_of_k * exchange)
    }

    /// Seconds of a step whose multiplies take `tensor` seconds, with the promotion of its sums. Of warpgroups that share a
    /// tile, one promotes a piece while the other one multiplies: a turn is as long as the other's multiplies, or as what a
    /// warpgroup does between two of its own. In ping-pong nobody multiplies meanwhile. Scales of blocks are read meanwhile, too,
    /// but tensor cores read shared memory all the time.
    fn promoted(&self, tensor: f64, tiling: Option<&Tiling>) -> f64 {
        let promotion = tiling.and_then(Tiling::promotion);
        let (Some(promotion), Some(cta)) = (promotion, &self.plan.cta) else {
            return tensor;
        };
        let count =
            f64::from(promotion.count()) * tiling.map_or(1.0, |it| it.multiplies().len() as f64);
        let elements = f64::from(promotion.together * BLOCK_ROWS * promotion.n);
        let machine = self.machine;
        let between = machine.sm.promotion_latency + elements / machine.sm.promotion;
        let alone = f64::from(cta.mode().warpgroups());
        let own = tensor / machine.sm.promoted_rate / count / alone;
        let piece = match cta.mode() {
            Mode::Cooperative => (alone * own).max(own + between),
            Mode::PingPong => own + between,
        };
        let pieces = count * (piece + machine.sm.piece_latency);
        let scales = match tiling.map_or(&[][..], Tiling::scales) {
            [] => 0.0,
            all => {
                let on_n = |scale: &&StagedScale| {
                    let on_m = tiling.is_some_and(|it| it.is_on_m(scale.operand));
                    scale.block.is_1d() && !on_m
                };
                let read: u32 = all.iter().filter(on_n).map(|scale| scale.side / 4).sum();
                // Tiles whose edges no block crosses have two numbers of it at most.
                let across = all.iter().filter(|scale| scale.crosses());
                let across: u32 = across
                    .map(|scale| (scale.side / scale.alike()).saturating_sub(2))
                    .sum();
                let blocks = alone * f64::from(promotion.blocks);
                machine.sm.scales
                    + blocks * f64::from(read) * machine.sm.scale_on_n
                    + f64::from(across * promotion.blocks) * machine.sm.scale_across
            }
        };
        pieces + scales
    }

    /// True if both SMs of a pair work.
    fn paired(&self) -> bool {
        self.gemm.cluster != (1, 1) || 2.0 * self.ctas() > f64::from(self.machine.sms)
    }

    /// True if the two SMs of a pair, which have consecutive tiles, both read the same columns, in step. Rows that both read count
    /// as read by each: likely each waits by itself for memory to deliver columns of its own. By the rule for columns
    /// 104x64 along rows (256x2560x8192 on an H100) would take 0.70 of what it does, and 208x128 tn 0.93.
    fn columns_in_common(&self, item: Item<'_>) -> bool {
        self.gemm.cluster == (1, 1) && self.gemm.split == 1 && self.paired() && item.down
    }

    /// Seconds for a byte of each line of a tile's operands to reach an SM, which reads its part: in step with its
    /// neighbour, and apart.
    ///
    /// A cluster reads what its CTAs share once, and each of its SMs receives all of it. The two SMs of a pair also
    /// read columns that they share once, while they are in step, unless an operand is MN-major (512x4608x16384 nn takes as
    /// long as if each read for itself).
    fn feeds(&self, item: Item<'_>, whole: f64, read: [(f64, f64); 2], by_rows: bool) -> [f64; 2] {
        let machine = self.machine;
        let clustered = self.gemm.cluster != (1, 1);
        let rate = machine.sm.l2_pair / if self.paired() { 2.0 } else { 1.0 };
        let [(x, w), apart] = read;
        let common = if self.columns_in_common(item) && !by_rows {
            w
        } else {
            0.0
        };
        let taken_in = if clustered {
            whole / machine.sm.cluster_sm
        } else {
            0.0
        };
        let sms = f64::from(machine.sms);
        let alone = rate.min(match by_rows {
            true => {
                1.0 / (1.0 / machine.sm.by_rows + sms / machine.l2 - sms / machine.sm.by_rows_at[0])
            }
            false => machine.l2 / sms,
        });
        let in_step = match (by_rows, clustered) {
            (false, _) => rate,
            (true, true) => alone,
            (true, false) => alone * machine.sm.in_step_by_rows,
        };
        [
            (x + w - common / 2.0) / in_step,
            (apart.0 + apart.1) / alone,
        ]
        .map(|read| read.max(taken_in))
    }

    /// Seconds in which device memory delivers a byte of each line of all tiles that CTAs multiply at the same time: the lines that
    /// several of them read come once. It adds to the time that reads through L2 take: CTAs that are apart wait for memory in
    /// turn. A line has `depth` bytes; operands that L2 holds come once a launch.
    fn memory_share(&self, item: Item<'_>, (rows, columns): (f64, f64), depth: f64) -> f64 {
        let Some(order) = item.order else {
            return 0.0;
        };
        let lines =
            |(down, across): (u32, u32)| f64::from(down) * rows + f64::from(across) * columns;
        // CTAs that share a tile's K are at different places of it.
        let split = self.gemm.split;
        let at_a_time = self.plan.grid.gemm.max(1).div_ceil(split);
        let wave = f64::from(split) * lines(wave(at_a_time, item.grid, order));
        let rounds = match lines(item.grid) * depth <= self.machine.l2_bytes {
            true => self.plan.grid.rounds.max(1) as f64,
            false => 1.0,
        };
        wave / rounds / self.machine.memory
    }

    /// Bytes of a product's operands that its CTAs read through L2, and that memory delivers of them: by [`Costs::lines`] and
    /// [`Costs::memory_share`], as [`Costs::dot`] counts them.
    pub(super) fn bytes(&self, op: OpId, a: &Rectangle, b: &Rectangle) -> [f64; 2] {
        let item = self.items[usize::from(op.0)];
        let (rows, columns) = item.tile;
        let element = f64::from(self.kernel.buffers[a.tensor.index()].dtype.bytes());
        let along_k = f64::from(a.columns.len()) * element;
        let (down, across) = self.gemm.cluster;
        let x = |ctas| self.lines(a, item.tiling, rows, ctas, Neighbour::Other);
        let w = |ctas| self.lines(b, item.tiling, columns, ctas, Neighbour::Other);
        let depth = self
            .plan
            .geometry
            .size(self.kernel.buffers[a.tensor.index()].columns);
        let depth = f64::from(depth) * element;
        let from_memory = self.memory_share(item, (x(1).come, w(1).come), depth);
        let of_all = from_memory * self.machine.memory / self.ctas();
        [x(across).read() + w(down).read(), of_all].map(|lines| lines * along_k)
    }

    /// CTAs of a rank that multiply.
    fn ctas(&self) -> f64 {
        f64::from(self.plan.grid.gemm.max(1))
    }

    /// Seconds a tile costs besides its steps. In ping-pong mode another tile's steps hide them if a warpgroup has two
    /// blocks of 64 (one is too little work, three have a longer epilogue). If there is no other tile, one warpgroup
    /// does the whole epilogue; nor does another's tile begin before a sum over ranks was read, which comes through the stages.
    /// Each epilogue subtile costs a synchronization with the storing thread, unless epilogues
    /// are staggered and there is another tile to work on.
    fn overhead(&self, item: Item<'_>) -> f64 {
        let (Some(tiling), Some(cta)) = (item.tiling, &self.plan.cta) else {
            return self.machine.sm.tile_overhead;
        };
        let grid = &self.plan.grid;
        let alone = grid.tiles * u64::from(tiling.split()) <= u64::from(grid.gemm);
        let tile = tiling.tile();
        let blocks = tiling.sides(tile.rows, tile.columns).0 / BLOCK_ROWS;
        let subtiles = if tiling.swap_ab() && (alone || !cta.staggered()) {
            let each = tiling.subtiles().div_ceil(tiling.split());
            f64::from(each) * self.machine.sm.subtile_overhead
        } else {
            0.0
        };
        match (cta.mode(), alone || item.summed) {
            (Mode::Cooperative, _) => self.machine.sm.tile_overhead + subtiles,
            (Mode::PingPong, _) if tiling.split() > 1 => self.machine.sm.tile_overhead,
            (Mode::PingPong, true) => self.machine.sm.tile_overhead * f64::from(blocks),
            (Mode::PingPong, false) if blocks == 2 => 0.0,
            (Mode::PingPong, false) => self.machine.sm.tile_overhead,
        }
    }

    /// Rows of an operand that a step loads: existing rows, in whole partial boxes if K is contiguous and in whole
    /// blocks if rows are, if the tile skips the others. CTAs of a cluster share multicast loads.
    ///
    /// Measured: rows of K that begin within a line of 128 bytes take twice as long, since each step reads two lines of
    /// each.
    fn lines(
        &self,
        operand: &Rectangle,
        tiling: Option<&Tiling>,
        boxed: u32,
        shared: u32,
        neighbour: Neighbour,
    ) -> Lines {
        let buffer = &self.kernel.buffers[operand.tensor.index()];
        let geometry = &self.plan.geometry;
        let bytes = buffer.dtype.bytes();
        let aligned = (geometry.contiguous(buffer) * bytes).is_multiple_of(LINE);
        let line = if aligned { 1.0 } else { 2.0 };
        let whole = boxed.max(operand.rows.len());
        let exist = if tiling.is_none_or(Tiling::leaves_out) {
            operand.rows.len()
        } else {
            whole
        };
        let (come, begun) = if !buffer.mn_major {
            (exist.next_multiple_of(PARTIAL_BOX_ROWS).min(whole), 0.0)
        } else if aligned {
            let begun = lines_begun(boxed * bytes, neighbour) * f64::from(BLOCK_ROWS);
            (exist.next_multiple_of(BLOCK_ROWS), begun)
        } else {
            (exist.next_multiple_of(BLOCK_ROWS), 0.0)
        };
        let come = f64::from(come) * line;
        Lines {
            come: come / f64::from(shared),
            begun: begun / f64::from(shared),
        }
    }

    /// The highest rate of a tile's operands, in bytes a second: each CTA that shares its steps reads its part.
    pub(super) fn operand_rate(&self) -> f64 {
        self.machine.sm.l2_pair * f64::from(self.gemm.split)
    }

    /// True if no other cluster reads what a tile reads of an operand. `rows`: the operand holds the tile's rows, otherwise its columns.
    pub(super) fn is_alone(&self, op: OpId, rows: bool) -> bool {
        let (item, (down, across)) = (self.items[usize::from(op.0)], self.gemm.cluster);
        match rows {
            true => item.grid.1 <= across,
            false => item.grid.0 <= down,
        }
    }

    /// Bytes that device memory could deliver in the time of an operand's bytes, which several CTAs each request.
    pub(super) fn asked(&self, bytes: u64) -> u64 {
        (bytes as f64 / self.machine.memory_again) as u64
    }

    /// The most bytes a second that one SM reads or writes.
    pub(super) fn sm_rate(&self) -> f64 {
        self.machine.l2 / f64::from(self.machine.sms)
    }
}

/// Rows of an operand that a step loads.
#[derive(Clone, Copy)]
struct Lines {
    /// Rows that reach the SM. Those that begin within a line count twice here too, as when clusters were fitted.
    come: f64,
    /// The extra reads of boxes that do not begin with a line. They do not reach the SM.
    begun: f64,
}

impl Lines {
    fn read(self) -> f64 {
        self.come + self.begun
    }
}

/// Bytes of an element of sums.
const SPLIT_PARTIAL_BYTES: f64 = 4.0;

/// Bytes of a cache line, and of a sector of it.
const LINE: u32 = 128;
const SECTOR: u32 = 32;

/// The reads of the other SM of a pair.
#[derive(Clone, Copy)]
enum Neighbour {
    /// Reads of the same data.
    Same,
    /// Other data, or the same at another time.
    Other,
}

/// Extra lines of 128 bytes that neighbouring boxes cost beyond one each, for every K, in the mean over tiles of that
/// many bytes. Fitted to tests/measured/layouts.csv: a box that does not begin with a line is in two, and the second
/// costs as much as the first if the tile's other boxes do not begin with a line either. If the other SM of a pair
/// reads the same by whole sectors, two boxes' shares of a line come once: then it is one extra line, for tiles that do
/// not begin with one.
fn lines_begun(bytes: u32, neighbour: Neighbour) -> f64 {
    let phases = (1..=LINE).find(|tiles| (tiles * bytes).is_multiple_of(LINE));
    let within = 1.0 - 1.0 / f64::from(phases.unwrap_or(LINE));
    match neighbour {
        Neighbour::Same if bytes.is_multiple_of(SECTOR) => within,
        Neighbour::Same | Neighbour::Other => within * within * f64::from(bytes.div_ceil(LINE)),
    }
}
