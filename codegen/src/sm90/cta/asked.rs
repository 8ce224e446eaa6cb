//! What a kernel asks of a CTA: its loops, products and results, before anything is decided.

use super::registers::{RegisterClass, in_parts, leaves_out};
use super::subtiles::{Needs, Results, Sums};
use super::wgmma::{BLOCK_ROWS, Wgmma};
use crate::dtype::Dtype;
use crate::kernel::{
    Block, GemmKind, Kernel, Op, OpKind, Purpose, Region, Role, RoleKind, visit, visit_ops,
};
use crate::program::{Loc, PartitionId, StoreMode, TensorId, Var};
use crate::tiling::{
    Boxes, Inputs, Major, Operand, Parts, Product, StagedScale, Subtile, Tiling, strides,
};
use crate::value::{AccId, Value};

/// A product: its operands and where it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Dot {
    pub acc: AccId,
    pub tensors: [TensorId; 2],
    pub at: Loc,
}

/// Subject of the rules: one loop of a kernel's GEMM, before anything is decided.
pub(super) struct TileRequest<'a> {
    pub kernel: &'a Kernel,
    pub kind: GemmKind,
    /// Place of its first product, or of its first store if it multiplies nothing.
    pub at: Loc,
    pub items: Var,
    pub partition: PartitionId,
    /// True if it visits some of its items only.
    pub selects: bool,
    pub wgmma: Wgmma,
    pub dtype: Dtype,
    /// The products of an item, for each way through its branches.
    pub ways: Vec<Vec<Dot>>,
    /// The most that one of them has, each once.
    pub products: Vec<[TensorId; 2]>,
    /// Stores of its items, and reads beside their products.
    pub item: Item,
    /// Results of the items of all loops.
    pub results: Results,
    /// Places of a stage where nothing is multiplied: subtiles, one of each stored tile that an item reads.
    pub places: u32,
}

/// Stores of a loop's items, and reads beside their products.
#[derive(Default)]
pub(super) struct Item {
    /// Tensors of which tiles are stored or read, and where first.
    pub tensors: Vec<(TensorId, Loc)>,
    /// Stored tiles that are read.
    pub inputs: Vec<Loc>,
    /// Sums of stored tiles.
    pub sums: Vec<Loc>,
    /// The first store of 16-bit elements.
    pub halves: Option<Loc>,
    /// The first FP8 that is read, or that a store adds to, and its tensor.
    pub narrow: Option<(TensorId, Loc)>,
    /// The first store of FP8.
    pub bytes: Option<Loc>,
    /// The first store that makes scales of an output.
    pub computed_scales: Option<Loc>,
    /// The first store or sum of partial sums that have scales, of a value that is computed if there is one.
    pub partial: Option<(Loc, bool)>,
}

impl Item {
    pub fn of(kernel: &Kernel, body: &[Op]) -> Item {
        let mut item = Item::default();
        visit_ops(body, &mut |op| {
            let (at, buffer) = (kernel.loc(op.id), |region: &Region| {
                &kernel.buffers[region.buffer.index()]
            });
            if let OpKind::Store { dst: tile, .. }
            | OpKind::Load { from: tile, .. }
            | OpKind::Reduce { from: tile, .. } = &op.kind
            {
                item.tensors.push((tile.buffer, at));
            }
            let partial = |buffer: TensorId| kernel.sends_scales_of(buffer);
            if let OpKind::Store { dst, value, .. } = &op.kind
                && kernel.computed_scale_of(dst.buffer).is_some()
            {
                let computed = !matches!(kernel.values[usize::from(value.0)], Value::Acc(_));
                match partial(dst.buffer) {
                    true if computed => item.partial = Some((at, true)),
                    true => _ = item.partial.get_or_insert((at, false)),
                    false => _ = item.computed_scales.get_or_insert(at),
                }
            }
            if let OpKind::Reduce { from, .. } = &op.kind
                && partial(from.buffer)
            {
                item.partial.get_or_insert((at, false));
            }
            match &op.kind {
                OpKind::Store {
                    dst: tile,
                    mode: StoreMode::Add,
                    ..
                }
                | OpKind::Load { from: tile, .. }
                | OpKind::Reduce { from: tile, .. }
                    if buffer(tile).dtype.is_fp8() && !partial(tile.buffer) =>
                {
                    item.narrow.get_or_insert((tile.buffer, at));
                }
                OpKind::Store { dst, .. } if buffer(dst).dtype.is_fp8() => {
                    item.bytes.get_or_insert(at);
                }
                OpKind::Store { dst, .. } if buffer(dst).dtype.bytes() == 2 => {
                    item.halves.get_or_insert(at);
                }
                OpKind::Load { from, .. } if !buffer(from).usage.is_repeated() => {
                    item.inputs.push(at);
                }
                OpKind::Reduce { .. } => item.sums.push(at),
                OpKind::Store { .. }
                | OpKind::Load { .. }
                | OpKind::Dot { .. }
                | OpKind::Copy { .. }
                | OpKind::Wait { .. }
                | OpKind::Signal { .. }
                | OpKind::ForRanks { .. }
                | OpKind::If { .. } => {}
            }
        });
        item
    }
}

impl TileRequest<'_> {
    /// The tile, in words.
    pub fn tiles(&self) -> String {
        let tile = self.wgmma.tile;
        format!("tiles of {}x{}", tile.rows, tile.columns)
    }

    /// True if CTAs load for themselves alone, and signal nobody.
    pub fn alone(&self) -> bool {
        self.kind.ctas() == 1 && self.kernel.counters.is_empty()
    }

    /// Purposes for which threads need registers.
    pub fn company(&self) -> RegisterClass {
        let GemmKind { cluster, split, .. } = self.kind;
        if self.alone() && !self.results.computed && self.results.widest == 2 {
            RegisterClass::Plain
        } else if self.results.sums == Sums::Apart {
            RegisterClass::Apart
        } else if cluster != (1, 1) || (split > 1 && self.wgmma.swap_ab()) {
            RegisterClass::Much
        } else if self.results.sums == Sums::Added {
            RegisterClass::Added
        } else {
            RegisterClass::Little
        }
    }

    /// Operands that a stage holds, each once with its side of the tile; and, for each product, the indices of its two operands.
    pub fn stages(&self) -> (Vec<(TensorId, usize)>, Vec<Product>) {
        let mut staged: Vec<(TensorId, usize)> = Vec::new();
        for side in [0, 1] {
            for operand in self.products.iter().map(|tensors| (tensors[side], side)) {
                if !staged.contains(&operand) {
                    staged.push(operand);
                }
            }
        }
        let place = |operand| staged.iter().position(|known| *known == operand);
        let places = |tensors: &[TensorId; 2]| {
            [0, 1].map(|side| place((tensors[side], side)).expect("each is staged"))
        };
        let products = self.products.iter().map(places).collect();
        (staged, products)
    }

    /// True if the same instructions compute all products: they share the operand on the M side, and those on the N side lie
    /// one behind the other without a gap.
    fn joined(&self, products: &[Product]) -> bool {
        let (m, n) = if self.wgmma.swap_ab() { (1, 0) } else { (0, 1) };
        let mut several = products.iter();
        let whole = !self.kernel.variant.layout.mn_major()[n]
            || self.wgmma.sides().1.is_multiple_of(BLOCK_ROWS);
        let first = several.next();
        !self.promotes()
            && first.is_some_and(|first| {
                several.all(|other| other[m] == first[m] && other[n] != first[n])
            })
            && whole
            && self.wgmma.has_room_for_all()
    }

    /// The operands' tiles in a stage, and what brings them there.
    fn operands(&self, staged: &[(TensorId, usize)]) -> Vec<Operand> {
        let (tile, (down, across)) = (self.wgmma.tile, self.kind.cluster);
        let rows = [tile.rows, tile.columns];
        // What the CTAs of a cluster share, each loads a part of: those along rows have the same columns. The last ones along
        // a side may lie outside.
        let (multicast, outside) = ([across, down], [down > 1, across > 1]);
        let contiguous = self.kernel.variant.layout.mn_major();
        let accumulators = self.wgmma.accumulators();
        let operand = |(tensor, side): (TensorId, usize)| {
            let (rows, ctas) = (rows[side], multicast[side].max(1));
            let (major, boxes, staged) = if contiguous[side] {
                let count = rows.div_ceil(BLOCK_ROWS);
                let boxes = Boxes {
                    count,
                    rows: BLOCK_ROWS,
                    k: tile.k / ctas,
                    partial: leaves_out(accumulators) && (count > 1 || outside[side]),
                };
                (Major::Mn, boxes, count * BLOCK_ROWS)
            } else {
                let boxes = Boxes {
                    count: 1,
                    rows: rows / ctas,
                    k: tile.k,
                    partial: in_parts(rows / ctas, ctas, accumulators),
                };
                (Major::K, boxes, rows)
            };
            Operand {
                tensor,
                columns: side == 1,
                element: self.kernel.buffers[tensor.index()].dtype,
                major,
                boxes,
                multicast: ctas,
                bytes: staged * tile.k * self.dtype.bytes(),
            }
        };
        staged.iter().copied().map(operand).collect()
    }

    /// True if two GEMM loops can share stages and epilogue tiles: both have the same tile, or both multiply with their rows on the
    /// M side.
    pub fn passes_with(&self, other: &TileRequest<'_>) -> bool {
        let both = [self, other];
        let [one, two] = both.map(|asked| asked.wgmma);
        let mut each = both.iter();
        let rows_on_m = each.all(|asked| !asked.products.is_empty() && !asked.wgmma.swap_ab());
        one.mode == two.mode && (one.tile == two.tile || rows_on_m)
    }

    /// Needs of the loop together with those of `all` that pass through the same stages and subtiles.
    pub fn needs_with(&self, all: &[TileRequest<'_>]) -> Needs {
        let together = all.iter().filter(|other| self.passes_with(other));
        let together: Vec<&TileRequest<'_>> = together.collect();
        let each: Vec<Needs> = together.iter().map(|asked| asked.needs()).collect();
        let columns = each.iter().map(|needs| needs.columns).reduce(common);
        let largest = (each.iter()).max_by_key(|needs| (needs.wgmma.tile.columns, needs.stage));
        let mut needs = *largest.unwrap_or(&self.needs());
        needs.columns = columns.unwrap_or(needs.columns);
        let apart = each.iter().map(|needs| needs.apart).min();
        needs.apart = apart.unwrap_or(needs.apart);
        // Measured: of a gather, a layer and a sum in 256x128 beside 128x256, subtiles of 32 columns spill 4 bytes.
        let tall = together
            .iter()
            .any(|asked| asked.wgmma.blocks() > 1 && asked.wgmma.tile.columns > 64);
        let alike = together
            .iter()
            .all(|asked| asked.wgmma.tile == self.wgmma.tile);
        if tall && !alike && self.results.sums == Sums::Apart {
            needs.apart = needs.apart.min(16);
        }
        let rows = together.iter().map(|asked| asked.wgmma.tile.rows).max();
        needs.wgmma.tile.rows = rows.unwrap_or(needs.wgmma.tile.rows);
        // An array of a stage has room for what each loop has in it.
        let subtile = needs.subtile();
        let tilings: Vec<Tiling> = together.iter().map(|asked| asked.tiling(subtile)).collect();
        let most = tilings.iter().map(|tiling| tiling.scales().len()).max();
        let scales = (0..most.unwrap_or(0)).map(|nth| {
            let of_loops = tilings.iter().filter_map(|tiling| tiling.scales().get(nth));
            of_loops.map(StagedScale::bytes).max().unwrap_or(0)
        });
        needs.scales = scales.sum::<u32>().next_multiple_of(1024);
        let operands = strides(&tilings).iter().sum::<u32>();
        needs.stage = (operands + needs.scales).max(needs.stage);
        needs
    }

    pub fn needs(&self) -> Needs {
        let needs = Needs {
            wgmma: self.wgmma,
            columns: self.wgmma.tile.columns,
            stage: 0,
            element: self.dtype.bytes(),
            split: self.kind.split,
            results: self.results,
            alone: self.alone(),
            promoted: self.promotes(),
            scales: self.bytes_of_scales(),
            apart: u32::MAX,
        };
        let needs = Needs {
            apart: needs.most_apart(),
            ..needs
        };
        let operands = self.operands(&self.stages().0);
        let stage = match operands.is_empty() {
            false => operands.iter().map(|operand| operand.bytes).sum::<u32>() + needs.scales,
            true => self.places * needs.subtile().elements() * self.results.widest,
        };
        Needs { stage, ..needs }
    }

    /// Tiling with subtiles of that many columns, and of that many rows if it has as many.
    pub fn tiling(&self, of_all: Subtile) -> Tiling {
        let (staged, products) = self.stages();
        let subtile = Subtile {
            rows: of_all.rows.min(self.wgmma.tile.rows),
            ..of_all
        };
        Tiling::new(Parts {
            at: self.at,
            items: self.items,
            partition: self.partition,
            tile: self.wgmma.tile,
            swap_ab: self.wgmma.swap_ab(),
            element: self.dtype,
            places: self.places,
            operands: self.operands(&staged),
            joined: self.joined(&products),
            products,
            accumulators: self.wgmma.accumulators(),
            split: self.kind.split,
            subtile,
            widest: self.results.widest,
            inputs: Inputs::Stages(self.results.inputs),
            leaves_out: leaves_out(self.wgmma.accumulators()),
            promotion: self.promotion(),
            scales: self.scales(),
        })
    }
}

/// Greatest common divisor.
const fn common(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { common(b, a % b) }
}

/// A loop over items.
pub(crate) struct Loop<'a> {
    pub items: Var,
    pub partition: PartitionId,
    pub selects: bool,
    pub body: &'a [Op],
}

pub(crate) fn loops(body: &[Block]) -> Vec<Loop<'_>> {
    let each = body.iter().map(|block| match block {
        Block::ForRanks { body, .. } => loops(body),
        Block::If {
            then, otherwise, ..
        } => loops(then).into_iter().chain(loops(otherwise)).collect(),
        Block::Items {
            var,
            partition,
            selection,
            body,
            ..
        } => vec![Loop {
            items: *var,
            partition: *partition,
            selects: !selection.is_all(),
            body,
        }],
        Block::Once { .. } | Block::Join => Vec::new(),
    });
    each.flatten().collect()
}

/// Place of the first store of items that multiply nothing, and the type of the first tile of 16-bit elements that
/// they read or write.
pub(super) fn first_store(kernel: &Kernel, body: &[Op]) -> Option<(Loc, Option<Dtype>)> {
    let (mut at, mut element) = (None, None);
    visit_ops(body, &mut |op| {
        let region = match &op.kind {
            OpKind::Store { dst, .. } => {
                at.get_or_insert(kernel.loc(op.id));
                dst
            }
            OpKind::Load { from, .. } | OpKind::Reduce { from, .. } => from,
            OpKind::Dot { .. }
            | OpKind::Copy { .. }
            | OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::ForRanks { .. }
            | OpKind::If { .. } => return,
        };
        let dtype = kernel.buffers[region.buffer.index()].dtype;
        if dtype.bytes() == 2 {
            element.get_or_insert(dtype);
        }
    });
    at.map(|at| (at, element))
}

/// True if CTAs of a role that moves data compute what they store.
pub(crate) fn computes(role: &Role) -> bool {
    matches!(role.kind, RoleKind::Comm { .. }) && multiplies_or_stores(&role.body)
}

/// Blocks of a role that moves data before it computes, and those from there on.
pub(crate) fn moves_and_sums(body: &[Block]) -> (&[Block], &[Block]) {
    let stores = |block: &Block| multiplies_or_stores(std::slice::from_ref(block));
    let first = body.iter().position(stores).unwrap_or(body.len());
    let (moves, sums) = body.split_at(first);
    let looped = |block: &Block| !matches!(block, Block::Once { .. } | Block::Join);
    match sums.is_empty() || moves.iter().any(looped) {
        true => (moves, sums),
        // Without a loop, what comes first has no CTAs that move anything.
        false => (&[], body),
    }
}

fn multiplies_or_stores(body: &[Block]) -> bool {
    let mut found = false;
    visit(body, &mut |op| found |= op.kind.computes());
    found
}

/// True if some item that multiplies then waits for a tile that it reads beside the product, or for what peers send when they
/// were told of it.
pub(super) fn takes_tiles_between_products(kernel: &Kernel) -> bool {
    let mut found = false;
    let gemm = |role: &&Role| matches!(role.kind, RoleKind::Gemm(_));
    for role in kernel.roles.iter().filter(gemm) {
        for each in loops(&role.body) {
            let (mut multiplied, mut signalled, mut waited) = (false, false, false);
            visit_ops(each.body, &mut |op| match &op.kind {
                OpKind::Dot { .. } => multiplied = true,
                OpKind::Signal { .. } => signalled = multiplied,
                OpKind::Wait { cells, .. } => {
                    let data = kernel.counters[cells.counter.index()].purpose == Purpose::Data;
                    waited |= multiplied && data;
                    found |= signalled && data;
                }
                OpKind::Load { from, .. } => {
                    let repeated = kernel.buffers[from.buffer.index()].usage.is_repeated();
                    found |= waited && !repeated;
                }
                OpKind::Reduce { .. }
                | OpKind::Copy { .. }
                | OpKind::Store { .. }
                | OpKind::ForRanks { .. }
                | OpKind::If { .. } => {}
            });
        }
    }
    found
}

/// Ways through an item's branches that are told apart; beyond that, they count as one that takes all branches.
const MOST_WAYS: usize = 64;

/// The products of an item, for each way through its branches: of two branches an item takes one.
pub(super) fn ways(kernel: &Kernel, body: &[Op]) -> Vec<Vec<Dot>> {
    fn go(kernel: &Kernel, body: &[Op], ways: Vec<Vec<Dot>>) -> Vec<Vec<Dot>> {
        body.iter().fold(ways, |mut ways, op| match &op.kind {
            OpKind::Dot { acc, a, b } => {
                let (acc, tensors) = (*acc, [a.buffer, b.buffer]);
                let at = kernel.loc(op.id);
                let dot = Dot { acc, tensors, at };
                ways.iter_mut().for_each(|way| way.push(dot));
                ways
            }
            OpKind::ForRanks { body, .. } => go(kernel, body, ways),
            OpKind::If {
                then, otherwise, ..
            } => {
                let mut both = go(kernel, then, ways.clone());
                let more = go(kernel, otherwise, ways);
                both.extend(
                    more.into_iter()
                        .filter(|way| !both.contains(way))
                        .collect::<Vec<_>>(),
                );
                if both.len() > MOST_WAYS {
                    let mut all: Vec<Dot> = Vec::new();
                    for dot in both.into_iter().flatten() {
                        if !all.contains(&dot) {
                            all.push(dot);
                        }
                    }
                    both = vec![all];
                }
                both
            }
            OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::Copy { .. }
            | OpKind::Reduce { .. }
            | OpKind::Load { .. }
            | OpKind::Store { .. } => ways,
        })
    }
    go(kernel, body, vec![Vec::new()])
}

/// Products of a way, each once.
pub(super) fn distinct(way: &[Dot]) -> Vec<[TensorId; 2]> {
    let mut products = Vec::new();
    for dot in way {
        if !products.contains(&dot.tensors) {
            products.push(dot.tensors);
        }
    }
    products
}

/// True if items have a product, whichever way they go.
pub(super) fn multiplies(kernel: &Kernel, body: &[Op]) -> bool {
    ways(kernel, body).iter().any(|way| !way.is_empty())
}

/// Loops over items in the order of a CTA, those over ranks twice: what stands last in one comes before what is first.
pub(super) fn in_sequence(body: &[Block]) -> Vec<Loop<'_>> {
    let each = body.iter().flat_map(|block| {
        let times = 1 + usize::from(matches!(block, Block::ForRanks { .. }));
        std::iter::repeat_n(std::slice::from_ref(block), times)
    });
    each.flat_map(loops).collect()
}
