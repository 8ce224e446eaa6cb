//! What a kernel asks of a CTA: its loops, products and results, before anything is decided.

use super::registers::{Company, in_parts, leaves_out};
use super::smem::{Division, Needs, Results};
use super::wgmma::{BLOCK_ROWS, Wgmma};
use crate::dtype::Dtype;
use crate::kernel::{Block, GemmKind, Kernel, Op, OpKind, Region, Role, visit, visit_ops};
use crate::program::{Loc, PartitionId, TensorId, TensorKind};
use crate::tiling::{Accumulators, Boxes, Inputs, Major, Operand, Parts, Tiling};
use crate::value::{AccId, Value};
use std::collections::BTreeSet;

/// A product: its operands and where it stands.
pub(super) type Dot = ([TensorId; 2], Loc);

/// What the rules are asked about: one loop of a kernel's GEMM, before anything is decided.
pub(super) struct Asked<'a> {
    pub kernel: &'a Kernel,
    pub kind: GemmKind,
    /// Its first product, or its first store if it multiplies nothing.
    pub at: Loc,
    pub partition: PartitionId,
    pub wgmma: Wgmma,
    pub dtype: Dtype,
    /// The operands of its first product; `None` where it multiplies nothing.
    pub tensors: Option<[TensorId; 2]>,
    /// Every product of the kernel.
    pub dots: &'a [Dot],
    /// Products of an item that are in registers at once.
    pub products: u32,
    /// What its items store, and read beside their products.
    pub item: Item,
    /// What the items of all loops do.
    pub results: Results,
    /// Where nothing is multiplied: subtiles of a stage, one of each stored tile that an item reads.
    pub places: u32,
}

/// Where the items of a loop store, and read beside their products.
#[derive(Default)]
pub(super) struct Item {
    /// Stored tiles that are read.
    pub inputs: Vec<Loc>,
    /// Sums of stored tiles.
    pub sums: Vec<Loc>,
    /// The first store of 16-bit elements.
    pub halves: Option<Loc>,
}

impl Item {
    pub fn of(kernel: &Kernel, body: &[Op]) -> Item {
        let mut item = Item::default();
        visit_ops(body, &mut |op| {
            let (at, buffer) = (kernel.loc(op.id), |region: &Region| {
                &kernel.buffers[region.buffer.index()]
            });
            match &op.kind {
                OpKind::Store { dst, .. } if buffer(dst).dtype.bytes() == 2 => {
                    item.halves.get_or_insert(at);
                }
                OpKind::Load { from, .. } if buffer(from).kind != TensorKind::Vector => {
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

impl Asked<'_> {
    /// The tile, in words.
    pub fn tiles(&self) -> String {
        let tile = self.wgmma.tile;
        format!("tiles of {}x{}", tile.rows, tile.columns)
    }

    /// Whether CTAs load for themselves alone, and signal nobody.
    fn alone(&self) -> bool {
        self.kind.ctas() == 1 && self.kernel.counters.is_empty()
    }

    /// What threads need registers for.
    pub fn company(&self) -> Company {
        let GemmKind { cluster, split, .. } = self.kind;
        if self.alone() && !self.results.computed && self.results.widest == 2 {
            Company::Plain
        } else if cluster == (1, 1) && (split == 1 || !self.wgmma.swapped()) {
            Company::Little
        } else {
            Company::Much
        }
    }

    /// The operands' tiles in a stage, and what brings them there.
    fn operands(&self) -> Option<[Operand; 2]> {
        let tensors = self.tensors?;
        let (tile, (down, across)) = (self.wgmma.tile, self.kind.cluster);
        let rows = [tile.rows, tile.columns];
        // What the CTAs of a cluster share, each loads a part of: those along rows have the same columns. The last ones along
        // a side may lie outside.
        let (multicast, outside) = ([across, down], [down > 1, across > 1]);
        let contiguous = self.kernel.variant.layout.mn_major();
        let accumulators = self.wgmma.accumulators();
        Some([0, 1].map(|side| {
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
                tensor: tensors[side],
                element: self.dtype,
                major,
                boxes,
                multicast: ctas,
                bytes: staged * tile.k * self.dtype.bytes(),
            }
        }))
    }

    pub fn needs(&self) -> Needs {
        let needs = Needs {
            wgmma: self.wgmma,
            stage: 0,
            element: self.dtype.bytes(),
            split: self.kind.split,
            results: self.results,
            alone: self.alone(),
        };
        let stage = match self.operands() {
            Some(operands) => operands.iter().map(|operand| operand.bytes).sum(),
            None => self.places * needs.subtile().elements() * self.results.widest,
        };
        Needs { stage, ..needs }
    }

    pub fn tiling(&self, division: &Division) -> Tiling {
        Tiling::new(Parts {
            at: self.at,
            partition: self.partition,
            tile: self.wgmma.tile,
            swapped: self.wgmma.swapped(),
            element: self.dtype,
            operands: self.operands(),
            places: self.places,
            accumulators: Accumulators {
                count: self.wgmma.accumulators(),
                products: self.products,
            },
            split: self.kind.split,
            subtile: division.subtile,
            widest: self.results.widest,
            inputs: Inputs::Stages(self.results.inputs),
            leaves_out: leaves_out(self.wgmma.accumulators()),
        })
    }
}

/// A loop over items.
pub(super) struct Loop<'a> {
    pub partition: PartitionId,
    pub body: &'a [Op],
}

pub(super) fn loops(body: &[Block]) -> Vec<Loop<'_>> {
    let each = body.iter().map(|block| match block {
        Block::ForRanks { body, .. } => loops(body),
        Block::If {
            then, otherwise, ..
        } => loops(then).into_iter().chain(loops(otherwise)).collect(),
        Block::Items {
            partition, body, ..
        } => vec![Loop {
            partition: *partition,
            body,
        }],
        Block::Once { .. } | Block::Join => Vec::new(),
    });
    each.flatten().collect()
}

pub(super) fn dots(kernel: &Kernel, role: &Role) -> Vec<Dot> {
    let mut dots = Vec::new();
    visit(&role.body, &mut |op| {
        if let OpKind::Dot { a, b, .. } = &op.kind {
            dots.push(([a.buffer, b.buffer], kernel.loc(op.id)));
        }
    });
    dots
}

pub(super) fn first_dot(kernel: &Kernel, body: &[Op]) -> Option<([TensorId; 2], Loc)> {
    let mut first = None;
    visit_ops(body, &mut |op| {
        if let OpKind::Dot { a, b, .. } = &op.kind {
            first.get_or_insert(([a.buffer, b.buffer], kernel.loc(op.id)));
        }
    });
    first
}

/// Where items that multiply nothing first store, and the type of the first tile of 16-bit elements that they read or write.
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

/// What the items of a role store, and read beside the operands of their products. All loops use the same subtiles.
pub(super) fn results(kernel: &Kernel, role: &Role) -> Results {
    let mut results = Results {
        widest: 2,
        stores: 0,
        inputs: 0,
        computed: false,
    };
    visit(&role.body, &mut |op| {
        let through = match &op.kind {
            OpKind::Store { dst, value, .. } => {
                results.stores += 1;
                let value = &kernel.values[usize::from(value.0)];
                results.computed |= !matches!(value, Value::Acc(_));
                dst
            }
            OpKind::Load { from, .. } => {
                results.computed = true;
                if kernel.buffers[from.buffer.index()].kind == TensorKind::Vector {
                    return;
                }
                results.inputs += 1;
                from
            }
            OpKind::Reduce { from, .. } => {
                results.inputs += 1;
                results.computed = true;
                from
            }
            OpKind::Dot { .. }
            | OpKind::Copy { .. }
            | OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::ForRanks { .. }
            | OpKind::If { .. } => return,
        };
        let bytes = kernel.buffers[through.buffer.index()].dtype.bytes();
        results.widest = results.widest.max(bytes);
    });
    results
}

/// Ways through an item's branches that are told apart; beyond that, they count as one that takes all branches.
const MOST_WAYS: usize = 64;

/// Products that are in registers at once: those of the accumulators that dots fill. Sums and loads stream through, and of
/// two branches an item takes one.
pub(super) fn products(body: &[Op]) -> u32 {
    /// What each way through the branches has filled.
    type Ways = BTreeSet<BTreeSet<AccId>>;
    fn go(body: &[Op], ways: Ways) -> Ways {
        body.iter().fold(ways, |ways, op| match &op.kind {
            OpKind::Dot { acc, .. } => {
                let fill = |way: BTreeSet<AccId>| way.into_iter().chain([*acc]).collect();
                ways.into_iter().map(fill).collect()
            }
            OpKind::ForRanks { body, .. } => go(body, ways),
            OpKind::If {
                then, otherwise, ..
            } => {
                let mut both = go(then, ways.clone());
                both.extend(go(otherwise, ways));
                if both.len() > MOST_WAYS {
                    both = Ways::from([both.into_iter().flatten().collect()]);
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
    let ways = go(body, Ways::from([BTreeSet::new()]));
    let most = ways.iter().map(BTreeSet::len).max();
    most.unwrap_or(0) as u32
}
