//! Sizes from the program alone: tensors, shards and items.

use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::encoded::elements;
use counterflow_codegen::order::TileOrder;
use counterflow_codegen::program::{
    Block, Choice, ItemOrder, Partition, PartitionId, Place, Program, Setting, Side, Stmt,
    StmtKind, TensorId, Usage, Var,
};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use std::collections::HashMap;
use std::ops::Range;

const ROWS: usize = Side::Rows as usize;
const COLUMNS: usize = Side::Columns as usize;

/// The sizes of a program's tensors and items for one variant and shape.
pub(super) struct Sizes<'p> {
    program: &'p Program,
    variant: &'p Variant,
    /// Element types, by tensor.
    dtypes: Vec<Dtype>,
    pub world: u32,
    /// Label of each side, by tensor and side: sides of one label have one size.
    labels: Vec<usize>,
    /// Rows and columns, by tensor.
    sides: Vec<[u32; 2]>,
    /// True for rows and for columns that are divided over the ranks, by tensor.
    sharded: Vec<[bool; 2]>,
    /// Numbers that their shards are multiples of.
    units: Vec<[u32; 2]>,
}

impl<'p> Sizes<'p> {
    pub fn new(program: &'p Program, variant: &'p Variant, shape: &Shape) -> Sizes<'p> {
        let mut same = Same {
            program,
            labels: (0..program.tensors.len() * 2).collect(),
            over: HashMap::new(),
            item: None,
            products: Vec::new(),
        };
        for (index, tensor) in program.tensors.iter().enumerate() {
            if let (Some(like), None) = (tensor.like, tensor.usage.plane) {
                same.join((index, ROWS), (like.index(), ROWS));
                same.join((index, COLUMNS), (like.index(), COLUMNS));
            }
        }
        for role in &program.roles {
            same.stmts(&role.body);
        }
        let known = same.naming().map(|[a, b, _]| {
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
                program.tensors[tensor]
                    .usage
                    .read_along(Side::ALL[side])
                    .is_none()
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
        let sides = |tensor: usize| {
            let usage = program.tensors[tensor].usage;
            let (Some(block), Some(of)) = (usage.blocks(), usage.scales_of()) else {
                return [size(tensor, ROWS), size(tensor, COLUMNS)];
            };
            let [rows, depth] = [ROWS, COLUMNS].map(|side| size(of.index(), side));
            let (rows, depth) = (rows.div_ceil(block.rows), depth.div_ceil(block.columns));
            match usage.operand_rows() {
                Some(Side::Columns) => [depth, rows],
                Some(Side::Rows) | None => [rows, depth],
            }
        };
        let sharded = |tensor: usize, side: usize| {
            let alike = |other: &usize| same.label(*other, ROWS) == same.label(tensor, side);
            let mut alike = (0..program.tensors.len()).filter(alike);
            alike.any(|other| program.tensors[other].usage.sharded())
        };
        let dtypes = elements(program, variant);
        // A shard of rows that have scales of blocks is whole multiples of what those ask for, and one of columns of which a
        // launch makes scales is of blocks.
        let of_scales = |tensor: usize, side: usize| {
            let units = program.tensors.iter().filter_map(|scale| {
                let (of, own, unit) = scale.usage.shard_unit()?;
                let has = same.label(of.index(), own as usize);
                (has == same.label(tensor, side)).then_some(unit)
            });
            units.max().unwrap_or(1)
        };
        // A shard of columns is whole multiples of 16 bytes in every tensor that has them.
        let unit = |tensor: usize, side: usize| {
            let alike = |other: &usize| {
                let repeated = program.tensors[*other].usage.is_repeated();
                !repeated && same.label(*other, COLUMNS) == same.label(tensor, side)
            };
            let alike = (0..program.tensors.len()).filter(alike);
            let bytes = alike.map(|other| dtypes[other].bytes());
            let of_bytes = bytes.min().map_or(1, |bytes| 16 / bytes);
            of_bytes.max(of_scales(tensor, side))
        };
        Sizes {
            program,
            variant,
            dtypes: dtypes.clone(),
            world: variant.world,
            labels: same.labels.clone(),
            sides: tensors.clone().map(sides).collect(),
            sharded: tensors
                .clone()
                .map(|tensor| [ROWS, COLUMNS].map(|side| sharded(tensor, side)))
                .collect(),
            units: tensors
                .map(|tensor| [ROWS, COLUMNS].map(|side| unit(tensor, side)))
                .collect(),
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

    /// The rows of a shard: short or empty at the end.
    pub fn shard(&self, tensor: usize, shard: u32) -> Range<u32> {
        self.part(tensor, ROWS, shard)
    }

    /// Part of a side that a shard has: all, if that is not divided.
    fn part(&self, tensor: usize, side: usize, shard: u32) -> Range<u32> {
        let size = self.sides[tensor][side];
        // Rows before columns: what is divided by both has whole columns in every shard of its rows.
        let other = side == COLUMNS && self.sharded[tensor][ROWS];
        if other || !self.sharded[tensor][side] {
            return 0..size;
        }
        let unit = self.units[tensor][side];
        let full = size
            .div_ceil(self.world.max(1))
            .div_ceil(unit)
            .saturating_mul(unit);
        let at = |shard: u32| full.saturating_mul(shard).min(size);
        at(shard)..at(shard + 1)
    }

    /// The rows that a rank holds.
    pub fn held(&self, tensor: usize, rank: u32) -> Range<u32> {
        let own = self.program.tensors[tensor].usage.is_own_shard();
        if own && self.sharded[tensor][ROWS] {
            self.shard(tensor, rank)
        } else {
            0..self.sides[tensor][ROWS]
        }
    }

    pub fn slots(&self, tensor: usize) -> u32 {
        self.program.tensors[tensor]
            .usage
            .placement
            .slots
            .count(self.world)
    }

    fn block(&self, partition: PartitionId) -> (Option<u32>, Option<u32>) {
        match self.program.partitions[partition.index()].block {
            Block::Chunks { rows } => (Some(self.one(rows)), None),
            Block::Panels { columns } => (None, Some(self.one(columns))),
            Block::Tiles { shape } => match self.setting(shape) {
                Setting::Pair(rows, columns) => (Some(rows), Some(columns)),
                Setting::One(both) => (Some(both), Some(both)),
            },
        }
    }

    /// The side of a partition that is as long as that side of another: of one tensor, or of several.
    pub fn side_of(&self, partition: PartitionId, like: PartitionId, side: Side) -> Option<Side> {
        let tensor = |id: PartitionId| self.program.partitions[id.index()].tensor.index();
        let label = |id: PartitionId, side: Side| self.labels[tensor(id) * 2 + side as usize];
        let mut sides = Side::ALL.into_iter();
        sides.find(|own| label(partition, *own) == label(like, side))
    }

    /// True if a side of a partition is divided over the ranks.
    pub fn divides(&self, partition: PartitionId, side: Side) -> bool {
        let Partition { tensor, across, .. } = self.program.partitions[partition.index()];
        let [rows, columns] = self.sharded[tensor.index()].map(|divided| divided && !across);
        match side {
            Side::Rows => rows,
            Side::Columns => columns && !rows,
        }
    }

    /// Shards of a partition.
    pub fn shards_of(&self, partition: PartitionId) -> u32 {
        let divided = Side::ALL.map(|side| self.divides(partition, side));
        if divided.contains(&true) {
            self.world
        } else {
            1
        }
    }

    /// Part of a side that the items of a shard have: all of it where they are across shards.
    fn part_of(&self, partition: PartitionId, side: usize, shard: u32) -> Range<u32> {
        let Partition { tensor, across, .. } = self.program.partitions[partition.index()];
        match across {
            true => 0..self.sides[tensor.index()][side],
            false => self.part(tensor.index(), side, shard),
        }
    }

    /// The items of one shard, as rows and columns of them.
    pub fn grid(&self, partition: PartitionId, shard: u32) -> (u32, u32) {
        let (rows, columns) = self.block(partition);
        let count = |side: usize, block: Option<u32>| {
            let size = self.part_of(partition, side, shard).len() as u32;
            block.map_or(u32::from(size > 0), |block| size.div_ceil(block))
        };
        (count(ROWS, rows), count(COLUMNS, columns))
    }

    /// The rows and columns of an item.
    pub fn item(&self, partition: PartitionId, item: Item) -> (Range<u32>, Range<u32>) {
        let (rows, columns) = self.block(partition);
        let cut = |all: Range<u32>, block: Option<u32>, at: u32| match block {
            None => all,
            Some(block) => {
                let start = all.start.saturating_add(at * block).min(all.end);
                start..start.saturating_add(block).min(all.end)
            }
        };
        (
            cut(self.part_of(partition, ROWS, item.shard), rows, item.row),
            cut(
                self.part_of(partition, COLUMNS, item.shard),
                columns,
                item.column,
            ),
        )
    }

    pub fn order(&self, order: ItemOrder) -> TileOrder {
        match order {
            ItemOrder::Tile(order) => order,
            ItemOrder::Grouped(group) => TileOrder::Grouped(self.one(group)),
        }
    }

    /// Elements of K whose sum is promoted to f32 at once, if sums of FP8 products are.
    pub fn promotion_interval(&self) -> Option<u32> {
        self.variant.promotion_interval()
    }

    /// A tensor's element type in this variant.
    pub fn dtype(&self, tensor: usize) -> Dtype {
        self.dtypes[tensor]
    }
}

/// An item's shard, and its position in the shard's grid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Item {
    pub shard: u32,
    pub row: u32,
    pub column: u32,
}

/// Sides of tensors that have one size, because statements combine them.
struct Same<'p> {
    program: &'p Program,
    /// By tensor and side.
    labels: Vec<usize>,
    /// The tensor whose items a loop variable visits.
    over: HashMap<Var, usize>,
    /// The item around the statement.
    item: Option<Var>,
    /// The operands of each product, and the tensor whose items it fills.
    products: Vec<[usize; 3]>,
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
                    self.copied(dst);
                    self.copied(src);
                }
                StmtKind::Sum { from, .. } | StmtKind::Load { from, .. } => self.covered(from),
                StmtKind::Store { dst, .. } => self.covered(dst),
                StmtKind::Dot { a, b, .. } => self.product(a, b),
            }
        }
    }

    /// An item covers this place as it covers the tensor that its partition divides.
    fn covered(&mut self, place: &Place) {
        self.over(place, Usage::read_along);
    }

    /// Unites the sides of a place that a copy moves.
    fn copied(&mut self, place: &Place) {
        self.over(place, Usage::copied_along);
    }

    fn over(&mut self, place: &Place, along: fn(Usage, Side) -> Option<Side>) {
        let item = place.item.or(self.item);
        let Some(over) = item.and_then(|item| self.over.get(&item).copied()) else {
            return;
        };
        let tensor = place.tensor.index();
        let usage = self.program.tensors[tensor].usage;
        for own in [COLUMNS, ROWS] {
            if own == ROWS && usage.rows_each() > 1 {
                continue;
            }
            if let Some(side) = along(usage, Side::ALL[own]) {
                self.join((tensor, own), (over, side as usize));
            }
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
        self.products.push([a, b, over]);
    }

    /// The product whose sides a caller calls m, n and k. It is one of parameters rather than of scratch, and of those one that
    /// fills a parameter.
    fn naming(&self) -> Option<[usize; 3]> {
        let kept = |tensor: usize| self.program.tensors[tensor].usage.is_scratch();
        // Of equals the earliest.
        let products = self.products.iter().copied();
        products.min_by_key(|[a, b, over]| match kept(*a) || kept(*b) {
            true => 2,
            false => u32::from(kept(*over)),
        })
    }
}
