//! Matches dimensions across tensors: sides that meet in a dot, copy or store have one size.

use super::choices::Choices;
use super::mistake::mistake;
use crate::diag::{Diagnostic, Rule};
use crate::encoded::elements;
use crate::kernel::{Buffer, CountedBlocks, Dim, DimId, Partition};
use crate::program::{
    Block, CounterDim, Loc, Place, Program, Side, Slots, Stmt, StmtKind, Tensor, TensorId, Usage,
    Var,
};
use crate::variant::Variant;
use std::collections::HashMap;

/// Tensors and partitions over matched dimensions.
pub(super) struct Matched {
    pub dims: Vec<Dim>,
    pub buffers: Vec<Buffer>,
    pub partitions: Vec<Partition>,
}

impl Matched {
    /// True if a dimension is divided over the ranks.
    pub fn is_sharded(&self, dim: DimId) -> bool {
        self.dims[usize::from(dim.0)].sharded
    }
}

/// Sets of (tensor, side) that have one size.
struct Classes(Vec<usize>);

impl Classes {
    fn find(&self, mut at: usize) -> usize {
        while self.0[at] != at {
            at = self.0[at];
        }
        at
    }
    fn of(&self, tensor: TensorId, side: Side) -> usize {
        self.find(tensor.index() * 2 + side as usize)
    }
    fn join(&mut self, a: (TensorId, Side), b: (TensorId, Side)) {
        let (a, b) = (self.of(a.0, a.1), self.of(b.0, b.1));
        let (low, high) = (a.min(b), a.max(b));
        self.0[high] = low;
    }
}

/// The most slots of a tensor. More have no use, and sizes stay within their types.
const MOST_SLOTS: u32 = 1024;

/// A product: which tensors' sides are its m, n and k.
struct DotSides {
    a: TensorId,
    b: TensorId,
    over: TensorId,
    at: Loc,
}

pub(super) fn match_dims(
    program: &Program,
    variant: &Variant,
    choices: &Choices<'_>,
    found: &mut Vec<Diagnostic>,
) -> Matched {
    let count = program.tensors.len();
    let mut classes = Classes((0..count * 2).collect());
    for (index, tensor) in program.tensors.iter().enumerate() {
        if tensor.usage.is_scratch() {
            let (like, slots) = (tensor.like, tensor.usage.placement.slots);
            if like.is_some_and(|like| like.index() >= index) {
                found.push(mistake(
                    tensor.at,
                    format!(
                        "`{}` has the shape of a tensor that does not exist",
                        tensor.name
                    ),
                ));
                continue;
            }
            if matches!(slots, Slots::Count(count) if !(1..=MOST_SLOTS).contains(&count)) {
                found.push(
                    mistake(
                        tensor.at,
                        format!("`{}` has {} slots", tensor.name, slots.count(0)),
                    )
                    .hint(format!(
                        "write `slots = world()`, `slots = world() - 1`, or a number from 1 to {MOST_SLOTS}"
                    )),
                );
            }
            let id = TensorId(index as u16);
            // The sides of a plane of scales are those of its blocks.
            if let Some(like) = like.filter(|_| tensor.usage.plane.is_none()) {
                for side in Side::ALL {
                    classes.join((id, side), (like, side));
                }
            }
        }
    }
    for partition in &program.partitions {
        if partition.tensor.index() >= count {
            found.push(mistake(
                partition.at,
                format!("`{}` divides a tensor that does not exist", partition.name),
            ));
        }
    }
    for set in &program.counters {
        let axes = set.dims.iter();
        if axes
            .filter_map(|dim| match dim {
                CounterDim::Items(partition) => Some(partition),
                CounterDim::World | CounterDim::Count(_) => None,
            })
            .any(|partition| partition.index() >= program.partitions.len())
        {
            found.push(mistake(
                set.at,
                format!(
                    "`{}` is indexed by a partition that does not exist",
                    set.name
                ),
            ));
        }
    }
    if !found.is_empty() {
        return Matched {
            dims: Vec::new(),
            buffers: Vec::new(),
            partitions: Vec::new(),
        };
    }

    let mut scan = Scan {
        program,
        classes,
        items: HashMap::new(),
        current: None,
        products: Vec::new(),
    };
    for role in &program.roles {
        scan.stmts(&role.body);
    }
    let Scan {
        mut classes,
        products,
        ..
    } = scan;
    let blocks = of_blocks(program, &mut classes);
    shaped(program, &classes, found);
    for product in &products {
        found.extend(divided_twice(program, &classes, product));
    }

    let (dims, ids) = name_dims(program, &classes, &products, &blocks);
    let dtypes = elements(program, variant);
    let mn_major = layouts(program, variant, &products, found);
    let buffers = program
        .tensors
        .iter()
        .enumerate()
        .map(|(index, tensor)| Buffer {
            name: tensor.name.clone(),
            usage: tensor.usage,
            dtype: dtypes[index],
            rows: ids[&classes.of(TensorId(index as u16), Side::Rows)],
            columns: ids[&classes.of(TensorId(index as u16), Side::Columns)],
            mn_major: mn_major[index] || tensor.usage.is_line_of_shards(),
        })
        .collect();
    let partitions = program
        .partitions
        .iter()
        .map(|partition| {
            let (row_block, column_block) = match partition.block {
                Block::Chunks { rows } => {
                    let at = choices.at(rows, partition.at);
                    (
                        Some(choices.one(
                            rows,
                            &format!("the rows of `{}`", partition.name),
                            at,
                            found,
                        )),
                        None,
                    )
                }
                Block::Panels { columns } => {
                    let at = choices.at(columns, partition.at);
                    (
                        None,
                        Some(choices.one(
                            columns,
                            &format!("the columns of `{}`", partition.name),
                            at,
                            found,
                        )),
                    )
                }
                Block::Tiles { shape } => {
                    let at = choices.at(shape, partition.at);
                    let (rows, columns) = choices.pair(
                        shape,
                        &format!("the shape of `{}`", partition.name),
                        at,
                        found,
                    );
                    (Some(rows), Some(columns))
                }
            };
            Partition {
                name: partition.name.clone(),
                rows: ids[&classes.of(partition.tensor, Side::Rows)],
                columns: ids[&classes.of(partition.tensor, Side::Columns)],
                row_block,
                column_block,
                across: partition.across,
            }
        })
        .collect();
    Matched {
        dims,
        buffers,
        partitions,
    }
}

/// Two sides of a product may have one size, unless ranks divide it: a rank has the rows of its shard, and all columns and all
/// of K, or the columns of its shard.
fn divided_twice(
    program: &Program,
    classes: &Classes,
    DotSides { a, b, over, at }: &DotSides,
) -> Option<Diagnostic> {
    let sides = [
        ("rows", classes.of(*a, Side::Rows)),
        ("columns", classes.of(*b, Side::Rows)),
        ("K", classes.of(*a, Side::Columns)),
    ];
    let divided = |class: usize| {
        let mut tensors = program.tensors.iter().zip(0..);
        tensors.any(|(tensor, id)| {
            tensor.usage.sharded() && classes.of(TensorId(id), Side::Rows) == class
        })
    };
    let pairs = [(0, 1), (0, 2), (1, 2)].map(|(one, other)| (sides[one], sides[other]));
    let same =
        |((_, one), (_, other)): &((&str, usize), (&str, usize))| one == other && divided(*one);
    let ((one, _), (other, _)) = pairs.into_iter().find(same)?;
    let name = |tensor: &TensorId| program.tensors[tensor.index()].name.as_str();
    let message = format!(
        "the {one} and the {other} of `dot({}, {})` over tiles of `{}` have one size, which the ranks divide",
        name(a),
        name(b),
        name(over)
    );
    let hint = "ranks divide one side of a product: take an operand that each rank has all of (`Local`), or a tensor of its own \
        for the other side";
    Some(mistake(at, message).hint(hint))
}

/// Finds scratch of whose shape nothing says anything.
fn shaped(program: &Program, classes: &Classes, found: &mut Vec<Diagnostic>) {
    let tensors = || {
        program
            .tensors
            .iter()
            .zip(0..)
            .map(|(tensor, id)| (tensor, TensorId(id)))
    };
    let known: Vec<usize> = tensors()
        .filter(|(tensor, _)| !tensor.usage.is_scratch())
        .flat_map(|(_, id)| Side::ALL.map(|side| classes.of(id, side)))
        .collect();
    let free = |tensor: &Tensor| tensor.usage.is_scratch() && tensor.like.is_none();
    for (tensor, id) in tensors().filter(|(tensor, _)| free(tensor)) {
        for side in Side::ALL {
            if !known.contains(&classes.of(id, side)) {
                let what = side.word();
                let message = format!("no parameter has as many {what} as `{}`", tensor.name);
                let hint = "its shape is that of what is stored in it: a product, or a copy of a parameter; \
                    or give it a tensor's, as in `symmetric::<bf16>(y, slots = 1)`";
                found.push(mistake(tensor.at, message).hint(hint));
            }
        }
    }
}

/// Blocks that a size counts.
#[derive(Clone, Copy)]
struct Counted {
    /// Class of the size that has them.
    of: usize,
    width: u32,
}

/// Sizes that count the blocks of others: the rows or columns of scales. An operand's rows are the columns of its
/// scales of blocks of one row.
fn of_blocks(program: &Program, classes: &mut Classes) -> HashMap<usize, Counted> {
    /// A side of a tensor.
    type Of = (TensorId, Side);
    let mut blocks: Vec<(Of, Of, u32)> = Vec::new();
    for (tensor, id) in program.tensors.iter().zip(0..) {
        let (id, Some(of)) = (TensorId(id), tensor.usage.scales_of()) else {
            continue;
        };
        let (Some(block), Some(rows)) = (tensor.usage.blocks(), tensor.usage.operand_rows()) else {
            continue;
        };
        match block.is_1d() {
            true => classes.join((id, rows), (of, Side::Rows)),
            false => blocks.push(((id, rows), (of, Side::Rows), block.rows)),
        }
        blocks.push(((id, rows.other()), (of, Side::Columns), block.columns));
    }
    // Blocks of one size that are as wide are as many, whoever has them.
    for (at, (side, of, width)) in blocks.iter().enumerate() {
        let alike = |other: &&(_, (TensorId, Side), u32)| {
            classes.of(other.1.0, other.1.1) == classes.of(of.0, of.1) && other.2 == *width
        };
        if let Some((first, ..)) = blocks[..at].iter().find(alike).copied() {
            classes.join(*side, first);
        }
    }
    let class = |(tensor, side): (TensorId, Side)| classes.of(tensor, side);
    blocks
        .iter()
        .map(|(side, of, width)| {
            let of = class(*of);
            (class(*side), Counted { of, width: *width })
        })
        .collect()
}

/// The product whose sides are m, n and k: the first of parameters that are multiplied into a parameter, or else the first of
/// parameters, or else the first. What a schedule keeps between its products names nothing that a caller gives.
fn naming<'p>(program: &Program, products: &'p [DotSides]) -> Option<&'p DotSides> {
    let given = |tensor: TensorId| !program.tensors[tensor.index()].usage.is_scratch();
    let of_given = |product: &&DotSides| given(product.a) && given(product.b);
    let to_given = |product: &&DotSides| of_given(product) && given(product.over);
    let mut all = products.iter();
    let first = all
        .clone()
        .find(to_given)
        .or_else(|| all.clone().find(of_given));
    first.or_else(|| all.next())
}

/// Name of a size that counts blocks: with their width, where others of the same size are as named.
fn blocks_name(dims: &[Dim], blocks: &CountedBlocks) -> String {
    let CountedBlocks { of, width } = blocks;
    let name = format!("{of}.blocks");
    match dims.iter().any(|dim| dim.name == name) {
        true => format!("{of}.blocks_of_{width}"),
        false => name,
    }
}

/// The sides of the product that names them are m, n and k; other sizes are named after the first tensor that has them as
/// columns, or else as rows.
fn name_dims(
    program: &Program,
    classes: &Classes,
    products: &[DotSides],
    blocks: &HashMap<usize, Counted>,
) -> (Vec<Dim>, HashMap<usize, DimId>) {
    let mut names: HashMap<usize, String> = HashMap::new();
    if let Some(DotSides { a, b, .. }) = naming(program, products) {
        for (name, tensor, side) in [
            ("m", *a, Side::Rows),
            ("n", *b, Side::Rows),
            ("k", *a, Side::Columns),
        ] {
            names
                .entry(classes.of(tensor, side))
                .or_insert_with(|| name.into());
        }
    }
    // Scales are laid out by what they are of, whose sizes have its names.
    let column = |class: usize| {
        let tensors = program.tensors.iter().zip(0..);
        let mut tensors = tensors.filter(|(tensor, _)| !tensor.usage.is_scale());
        let found = tensors.find(|(_, id)| classes.of(TensorId(*id), Side::Columns) == class);
        found.map(|(tensor, _)| &tensor.name)
    };
    let (mut dims, mut ids): (Vec<Dim>, HashMap<usize, DimId>) = (Vec::new(), HashMap::new());
    for (index, tensor) in program.tensors.iter().enumerate() {
        for side in Side::ALL {
            let suffix = side.word();
            let class = classes.of(TensorId(index as u16), side);
            // Scales come behind what they are of.
            let of = blocks.get(&class).and_then(|blocks| {
                let of: &DimId = ids.get(&blocks.of)?;
                let (of, width) = (dims[usize::from(of.0)].name.clone(), blocks.width);
                Some(CountedBlocks { of, width })
            });
            let id = *ids.entry(class).or_insert_with(|| {
                let name =
                    names
                        .get(&class)
                        .cloned()
                        .unwrap_or_else(|| match (&of, column(class)) {
                            (Some(blocks), _) => blocks_name(&dims, blocks),
                            (None, Some(of)) => format!("{of}.columns"),
                            (None, None) => format!("{}.{suffix}", tensor.name),
                        });
                dims.push(Dim {
                    name,
                    sharded: false,
                    unit: false,
                    blocks: of,
                });
                DimId((dims.len() - 1) as u16)
            });
            let dim = &mut dims[usize::from(id.0)];
            dim.unit |= tensor.usage.read_along(side).is_none();
            if side == Side::Rows {
                dim.sharded |= tensor.usage.sharded();
            }
        }
    }
    (dims, ids)
}

/// Tensors that have contiguous rows, by the part they play in dots.
fn layouts(
    program: &Program,
    variant: &Variant,
    products: &[DotSides],
    found: &mut Vec<Diagnostic>,
) -> Vec<bool> {
    let mut contiguous: Vec<Option<bool>> = vec![None; program.tensors.len()];
    for DotSides { a, b, at, .. } in products {
        let [a_rows, b_rows] = variant.layout.mn_major();
        for (tensor, rows) in [(a, a_rows), (b, b_rows)] {
            let entry = &mut contiguous[tensor.index()];
            if *entry.get_or_insert(rows) != rows {
                let name = &program.tensors[tensor.index()].name;
                found.push(
                    Diagnostic::new(
                        Rule::Shape,
                        *at,
                        format!(
                            "`{name}` is both operands of a dot in layout {}",
                            variant.layout.name()
                        ),
                    )
                    .hint("layouts nt and tn store both operands alike"),
                );
            }
        }
    }
    contiguous
        .into_iter()
        .map(|rows| rows.unwrap_or(false))
        .collect()
}

struct Scan<'a> {
    program: &'a Program,
    classes: Classes,
    /// The tensor whose items each loop variable visits.
    items: HashMap<Var, TensorId>,
    /// The item loop around the statement.
    current: Option<Var>,
    products: Vec<DotSides>,
}

impl Scan<'_> {
    fn stmts(&mut self, body: &[Stmt]) {
        for stmt in body {
            match &stmt.kind {
                StmtKind::ForRanks { body, .. } => self.stmts(body),
                StmtKind::ForItems { var, items, body } => {
                    if let Some(partition) = self.program.partitions.get(items.partition.index()) {
                        self.items.insert(*var, partition.tensor);
                    }
                    self.current = Some(*var);
                    self.stmts(body);
                    self.current = None;
                }
                StmtKind::If {
                    then, otherwise, ..
                } => {
                    self.stmts(then);
                    self.stmts(otherwise);
                }
                StmtKind::Wait { .. } | StmtKind::Signal { .. } => {}
                StmtKind::Copy { dst, src } => {
                    self.copied(dst);
                    self.copied(src);
                }
                StmtKind::Dot { a, b, .. } => self.product(a, b, stmt.at),
                StmtKind::Sum { from, .. } | StmtKind::Load { from, .. } => self.whole(from),
                StmtKind::Store { dst, .. } => self.whole(dst),
            }
        }
    }

    fn known(&self, place: &Place) -> Option<TensorId> {
        (place.tensor.index() < self.program.tensors.len()).then_some(place.tensor)
    }

    /// A place that an item covers in rows and columns has the dimensions of the item's tensor. A vector has only
    /// columns and needs no index: it takes the columns of the enclosing item loop.
    fn whole(&mut self, place: &Place) {
        self.covered(place, Usage::read_along);
    }

    /// Unites the sides of a place that a copy moves.
    fn copied(&mut self, place: &Place) {
        self.covered(place, Usage::copied_along);
    }

    fn covered(&mut self, place: &Place, along: fn(Usage, Side) -> Option<Side>) {
        let over = place
            .item
            .or(self.current)
            .and_then(|item| self.items.get(&item).copied());
        let (Some(tensor), Some(over)) = (self.known(place), over) else {
            return;
        };
        let usage = self.program.tensors[tensor.index()].usage;
        for own in [Side::Columns, Side::Rows] {
            if own == Side::Rows && usage.rows_each() > 1 {
                continue;
            }
            if let Some(side) = along(usage, own) {
                self.classes.join((tensor, own), (over, side));
            }
        }
    }

    fn product(&mut self, a: &Place, b: &Place, at: Loc) {
        let over = a
            .item
            .or(b.item)
            .and_then(|item| self.items.get(&item).copied());
        let (Some(a), Some(b), Some(over)) = (self.known(a), self.known(b), over) else {
            return;
        };
        self.classes.join((a, Side::Rows), (over, Side::Rows));
        self.classes.join((b, Side::Rows), (over, Side::Columns));
        self.classes.join((a, Side::Columns), (b, Side::Columns));
        self.products.push(DotSides { a, b, over, at });
    }
}
