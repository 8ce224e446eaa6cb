//! Sizes from the program alone: tensors, chunks and items.

use crate::dtype::Dtype;
use crate::order::TileOrder;
use crate::program::{
    Block, Choice, ItemOrder, PartitionId, Place, Program, ScratchRows, Setting, Stmt, StmtKind,
    TensorId, TensorKind, Var,
};
use crate::shape::Shape;
use crate::variant::Variant;
use std::collections::HashMap;
use std::ops::Range;

const ROWS: usize = 0;
const COLUMNS: usize = 1;

/// The sizes of a program's tensors and items for one variant and shape.
pub(super) struct Sizes<'p> {
    program: &'p Program,
    variant: &'p Variant,
    pub world: u32,
    /// Rows and columns, by tensor.
    sides: Vec<[u32; 2]>,
    /// Whether its rows are divided over the ranks, by tensor.
    chunked: Vec<bool>,
}

impl<'p> Sizes<'p> {
    pub fn new(program: &'p Program, variant: &'p Variant, shape: &Shape) -> Sizes<'p> {
        let mut same = Same {
            program,
            labels: (0..program.tensors.len() * 2).collect(),
            over: HashMap::new(),
            item: None,
            product: None,
        };
        for (index, tensor) in program.tensors.iter().enumerate() {
            if let TensorKind::Scratch {
                like: Some(like), ..
            } = tensor.kind
            {
                same.join((index, ROWS), (like.index(), ROWS));
                same.join((index, COLUMNS), (like.index(), COLUMNS));
            }
        }
        for role in &program.roles {
            same.stmts(&role.body);
        }
        let known = same.product.map(|(a, b)| {
            [
                (same.label(a, ROWS), shape.m),
                (same.label(b, ROWS), shape.n),
                (same.label(a, COLUMNS), shape.k),
            ]
        });
        let size = |tensor: usize, side: usize| {
            let label = same.label(tensor, side);
            let of_label = |other: usize| {
                [ROWS, COLUMNS]
                    .map(|side| (other, side))
                    .into_iter()
                    .filter(|(other, side)| same.label(*other, *side) == label)
            };
            let mut alike = (0..program.tensors.len()).flat_map(of_label);
            let vector = |(tensor, side): (usize, usize)| {
                side == ROWS && program.tensors[tensor].kind == TensorKind::Vector
            };
            let mut columns = alike.clone().filter(|(_, side)| *side == COLUMNS);
            let first = columns.next().or_else(|| alike.clone().next());
            let (first, first_side) = first.unwrap_or((tensor, side));
            if alike.any(vector) {
                return 1;
            }
            let product = known.iter().flatten().find(|(known, _)| *known == label);
            if let Some((_, size)) = product {
                return *size;
            }
            let (suffix, otherwise) = match first_side {
                ROWS => ("rows", shape.m),
                _ => ("columns", shape.k),
            };
            let name = format!("{}.{suffix}", program.tensors[first].name);
            shape.dims.get(&name).copied().unwrap_or(otherwise)
        };
        let tensors = 0..program.tensors.len();
        let chunked = |tensor: usize| {
            let alike = |other: &usize| same.label(*other, ROWS) == same.label(tensor, ROWS);
            let mut alike = (0..program.tensors.len()).filter(alike);
            alike.any(|other| program.tensors[other].kind.chunked())
        };
        Sizes {
            program,
            variant,
            world: variant.world,
            sides: tensors
                .clone()
                .map(|tensor| [size(tensor, ROWS), size(tensor, COLUMNS)])
                .collect(),
            chunked: tensors.map(chunked).collect(),
        }
    }

    pub fn setting(&self, choice: Choice) -> Setting {
        match choice {
            Choice::Fixed(setting) => setting,
            Choice::Open(index) => {
                let tunable = &self.program.tunables[usize::from(index)];
                let chosen = self.variant.choices.get(&tunable.name);
                chosen.copied().unwrap_or(tunable.options[0])
            }
        }
    }

    pub fn one(&self, choice: Choice) -> u32 {
        match self.setting(choice) {
            Setting::One(one) | Setting::Pair(one, _) => one,
        }
    }

    pub fn rows(&self, tensor: usize) -> u32 {
        self.sides[tensor][ROWS]
    }

    pub fn columns(&self, tensor: usize) -> u32 {
        self.sides[tensor][COLUMNS]
    }

    /// How many chunks a tensor's rows are divided into.
    pub fn chunks(&self, tensor: usize) -> u32 {
        if self.chunked[tensor] { self.world } else { 1 }
    }

    /// The rows of a chunk: short or empty at the end.
    pub fn chunk(&self, tensor: usize, chunk: u32) -> Range<u32> {
        let rows = self.sides[tensor][ROWS];
        let full = rows.div_ceil(self.chunks(tensor).max(1));
        let at = |chunk: u32| full.saturating_mul(chunk).min(rows);
        at(chunk)..at(chunk + 1)
    }

    /// The rows that a rank holds.
    pub fn held(&self, tensor: usize, rank: u32) -> Range<u32> {
        let own = match self.program.tensors[tensor].kind {
            TensorKind::Scattered | TensorKind::Exchanged => true,
            TensorKind::Scratch { extent, .. } => extent == ScratchRows::Chunk,
            TensorKind::Gathered
            | TensorKind::Local
            | TensorKind::Vector
            | TensorKind::Out
            | TensorKind::Accumulated
            | TensorKind::Reduced => false,
        };
        if own && self.chunked[tensor] {
            self.chunk(tensor, rank)
        } else {
            0..self.sides[tensor][ROWS]
        }
    }

    pub fn slots(&self, tensor: usize) -> u32 {
        match self.program.tensors[tensor].kind {
            TensorKind::Scratch { slots, .. } => slots.count(self.world),
            TensorKind::Exchanged => self.world,
            TensorKind::Gathered
            | TensorKind::Local
            | TensorKind::Vector
            | TensorKind::Out
            | TensorKind::Accumulated
            | TensorKind::Scattered
            | TensorKind::Reduced => 1,
        }
    }

    fn block(&self, partition: PartitionId) -> (Option<u32>, Option<u32>) {
        match self.program.partitions[partition.index()].block {
            Block::Pieces { rows } => (Some(self.one(rows)), None),
            Block::Panels { columns } => (None, Some(self.one(columns))),
            Block::Tiles { shape } => match self.setting(shape) {
                Setting::Pair(rows, columns) => (Some(rows), Some(columns)),
                Setting::One(both) => (Some(both), Some(both)),
            },
        }
    }

    /// The items of one chunk, as rows and columns of them.
    pub fn grid(&self, partition: PartitionId, chunk: u32) -> (u32, u32) {
        let tensor = self.program.partitions[partition.index()].tensor.index();
        let (rows, columns) = self.block(partition);
        let held = self.chunk(tensor, chunk).len() as u32;
        let across = columns.map_or(1, |block| self.columns(tensor).div_ceil(block));
        (
            rows.map_or(u32::from(held > 0), |block| held.div_ceil(block)),
            across,
        )
    }

    /// The rows and columns of an item.
    pub fn item(&self, partition: PartitionId, item: Item) -> (Range<u32>, Range<u32>) {
        let tensor = self.program.partitions[partition.index()].tensor.index();
        let (rows, columns) = self.block(partition);
        let cut = |all: Range<u32>, block: Option<u32>, at: u32| match block {
            None => all,
            Some(block) => {
                let start = all.start.saturating_add(at * block).min(all.end);
                start..start.saturating_add(block).min(all.end)
            }
        };
        (
            cut(self.chunk(tensor, item.chunk), rows, item.row),
            cut(0..self.columns(tensor), columns, item.column),
        )
    }

    pub fn order(&self, order: ItemOrder) -> TileOrder {
        match order {
            ItemOrder::Tile(order) => order,
            ItemOrder::Grouped(group) => TileOrder::Grouped(self.one(group)),
        }
    }

    /// The element type that replaces `written` in this variant.
    pub fn dtype(&self, written: Dtype) -> Dtype {
        let replaced = self.program.tensors.first().map(|first| first.dtype);
        let other = self.variant.dtype.filter(|_| replaced == Some(written));
        other.unwrap_or(written)
    }
}

/// An item's chunk, and its position in the chunk's grid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Item {
    pub chunk: u32,
    pub row: u32,
    pub column: u32,
}

/// Which sides of tensors have one size, because statements combine them.
struct Same<'p> {
    program: &'p Program,
    /// By tensor and side.
    labels: Vec<usize>,
    /// The tensor whose items a loop variable visits.
    over: HashMap<Var, usize>,
    /// The item around the statement.
    item: Option<Var>,
    /// The operands of the first product.
    product: Option<(usize, usize)>,
}

impl Same<'_> {
    fn label(&self, tensor: usize, side: usize) -> usize {
        self.labels[tensor * 2 + side]
    }

    fn join(&mut self, a: (usize, usize), b: (usize, usize)) {
        let (a, b) = (self.label(a.0, a.1), self.label(b.0, b.1));
        let both = a.min(b);
        for label in &mut self.labels {
            if *label == a || *label == b {
                *label = both;
            }
        }
    }

    fn stmts(&mut self, body: &[Stmt]) {
        for stmt in body {
            match &stmt.kind {
                StmtKind::ForRanks { body, .. } => {
                    self.stmts(body);
                }
                StmtKind::If {
                    then, otherwise, ..
                } => {
                    self.stmts(then);
                    self.stmts(otherwise);
                }
                StmtKind::ForItems { var, items, body } => {
                    let tensor = self.program.partitions[items.partition.index()].tensor;
                    self.over.insert(*var, tensor.index());
                    self.item = Some(*var);
                    self.stmts(body);
                    self.item = None;
                }
                StmtKind::Wait { .. } | StmtKind::Signal { .. } => {}
                StmtKind::Copy { dst, src } => {
                    self.covered(dst);
                    self.covered(src);
                }
                StmtKind::Sum { from, .. } | StmtKind::Load { from, .. } => self.covered(from),
                StmtKind::Store { dst, .. } => self.covered(dst),
                StmtKind::Dot { a, b, .. } => self.product(a, b),
            }
        }
    }

    /// An item covers this place as it covers the tensor that its partition divides.
    fn covered(&mut self, place: &Place) {
        let item = place.item.or(self.item);
        let Some(over) = item.and_then(|item| self.over.get(&item).copied()) else {
            return;
        };
        let tensor = place.tensor.index();
        self.join((tensor, COLUMNS), (over, COLUMNS));
        if self.program.tensors[tensor].kind != TensorKind::Vector {
            self.join((tensor, ROWS), (over, ROWS));
        }
    }

    fn product(&mut self, a: &Place, b: &Place) {
        let item = a.item.or(b.item);
        let Some(over) = item.and_then(|item| self.over.get(&item).copied()) else {
            return;
        };
        let (a, b): (TensorId, TensorId) = (a.tensor, b.tensor);
        let (a, b) = (a.index(), b.index());
        self.join((a, ROWS), (over, ROWS));
        self.join((b, ROWS), (over, COLUMNS));
        self.join((a, COLUMNS), (b, COLUMNS));
        self.product.get_or_insert((a, b));
    }
}
