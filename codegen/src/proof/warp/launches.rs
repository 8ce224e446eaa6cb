//! The small case that is run: its number of ranks, and the shapes of its launches.

use super::visited::{self, MOST, MOST_CHOSEN_FROM};
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::kernel::{Block, Cells, DimId, Kernel, OpKind, RoleKind, visit, visit_ops};
use crate::machine::Machine;
use crate::order::{Cut, Selection};
use crate::plan::Plan;
use crate::program::{CellIndex, CounterDim, Loc, PartitionId, Side};
use crate::proof::tile::plan_findings;
use crate::rank::RankExpr;
use crate::shape::Shape;
use crate::sm90::cta::Mode;
use crate::tiling::{Operand, Tile};
use crate::undo::{Fix, undone};
use crate::warp::{BATCH, Pipeline, STAGING_COLUMNS};
use std::collections::BTreeMap;

/// Ranks of the case, if the schedule is legal for so many.
const RANKS: u32 = 3;
/// Otherwise so many.
const EVEN: u32 = 4;
/// Up to so many items there is one more than the largest number in a selection, so that a later one is selected, too.
const MOST_BEHIND: u32 = 8;

/// Reason that a pipeline is refused.
pub(crate) enum Refused {
    /// The kernel is legal in none of the worlds that the case may have: nothing was tried.
    NoCase(Diagnostics),
    /// The first finding.
    Wrong(Diagnostics),
}

/// The launches of a case.
pub(super) struct Launches {
    /// The kernel for the ranks of the case.
    pub kernel: Kernel,
    /// The plan of each shape.
    pub plans: Vec<Plan>,
    /// Index of the plan of each launch.
    pub order: Vec<usize>,
}

/// The launches of a pipeline's case, of so many ranks that the schedule keeps every rule of the tile level.
///
/// # Errors
/// Why it does not with three ranks, if there is no other number to try: neither the schedule nor the compiler is wrong.
/// Or what is wrong with their shapes.
pub(super) fn launches(pipeline: &Pipeline) -> Result<Launches, Refused> {
    let kernel = &pipeline.kernel;
    let own = kernel.variant.world;
    // A kernel that is for one rank and has counters has no credits.
    if own == 1 && !kernel.counters.is_empty() {
        let launches = of_ranks(pipeline, 1, None).map_err(Refused::Wrong)?;
        return complete(pipeline, launches).map_err(Refused::NoCase);
    }
    let others = [EVEN]
        .into_iter()
        .chain(Some(own).filter(|own| *own <= MOST));
    let mut why = match in_world(pipeline, RANKS) {
        Ok(launches) => return Ok(launches),
        Err(why) => why,
    };
    for world in others {
        match in_world(pipeline, world) {
            Ok(launches) => return Ok(launches),
            // What a world leaves out tells more than what is wrong in another, and that more than that there is none.
            Err(found) if found.tells() > why.tells() => why = found,
            Err(_) => {}
        }
    }
    Err(Refused::NoCase(match why {
        NoCase::LeftOut(found) | NoCase::Unordered(found) => found,
        NoCase::Illegal(found) => no_world(&found, kernel.program.at).into(),
    }))
}

/// Reason that the launches of so many ranks are no case.
enum NoCase {
    /// An order by closure says nothing of so many ranks.
    Unordered(Diagnostics),
    /// The tile level refuses them.
    Illegal(Diagnostics),
    /// A statement is run by none.
    LeftOut(Diagnostics),
}

impl NoCase {
    /// Weight of the reason: the one that tells most is reported.
    fn tells(&self) -> u32 {
        match self {
            NoCase::Unordered(_) => 0,
            NoCase::Illegal(_) => 1,
            NoCase::LeftOut(_) => 2,
        }
    }
}

fn in_world(pipeline: &Pipeline, world: u32) -> Result<Launches, NoCase> {
    let ordered = pipeline.kernel.in_world(world);
    ordered.map_err(|found| NoCase::Unordered(found.into()))?;
    let launches = legal(pipeline, world).map_err(NoCase::Illegal)?;
    complete(pipeline, launches).map_err(NoCase::LeftOut)
}

/// Finding that there is no case, if the schedule is legal for no small world.
fn no_world(found: &Diagnostics, schedule: Loc) -> Diagnostic {
    let why = found.first();
    let message = format!(
        "all warps are tried for {RANKS} ranks or {EVEN}, and the schedule is legal for neither: {}",
        why.message
    );
    // What nobody does has no statement.
    Diagnostic::new(Rule::Resources, why.at.unwrap_or(schedule), message).hint(format!(
        "make it legal for {RANKS} or {EVEN} ranks, whatever its rows, columns and depth; one that is compiled for at most {MOST} is tried for those, too"
    ))
}

/// A case that runs every statement which a rank of the kernel's own world may run.
fn complete(pipeline: &Pipeline, launches: Launches) -> Result<Launches, Diagnostics> {
    let kernel = &pipeline.kernel;
    let shape = shape(pipeline, kernel.variant.world, None);
    match visited::left_out(&launches.kernel, &launches.plans, kernel, &shape) {
        None => Ok(launches),
        Some(left_out) => Err(left_out.into()),
    }
}

/// The launches of so many ranks, if each keeps every rule of the tile level.
pub(super) fn legal(pipeline: &Pipeline, world: u32) -> Result<Launches, Diagnostics> {
    let launches = of_ranks(pipeline, world, None)?;
    let Launches { kernel, plans, .. } = &launches;
    // Without counters ranks have nothing to do with each other.
    if kernel.counters.is_empty() {
        return Ok(launches);
    }
    let found = plans
        .iter()
        .map(|plan| plan_findings(kernel, plan, None))
        .find(|found| !found.is_empty());
    Diagnostics::check(found.unwrap_or_default(), launches)
}

/// The launches of so many ranks, and of so many steps instead of one more than the ring has stages. Two launches show
/// what the first forgot; between launches of a kernel that signals there is a tiny one, which a fast rank is through with
/// before a slow one has begun. Where loops select some of their items there is another one, whose shards have an item less.
pub(super) fn of_ranks(
    pipeline: &Pipeline,
    world: u32,
    steps: Option<u32>,
) -> Result<Launches, Diagnostics> {
    let kernel = pipeline.kernel.in_world(world)?;
    let largest = shape(pipeline, world, steps);
    let fewer = fewer(&kernel, &largest, &chosen(pipeline, world));
    // Where shards are rounded up, the last ranks have no rows.
    let line = line_of_rows(&kernel);
    let tiny = Shape {
        m: (world + 1).next_multiple_of(line),
        ..largest.clone()
    };
    let most = largest.most(&kernel);
    let (shapes, order) = match (kernel.counters.is_empty() || undone(Fix::WarpOrder), fewer) {
        (true, _) => (vec![largest], vec![0, 0]),
        (false, Some(fewer)) => (vec![largest, fewer, tiny], vec![0, 1, 2, 0]),
        (false, None) => (vec![largest, tiny], vec![0, 1, 0]),
    };
    let plans = shapes
        .iter()
        .map(|shape| Plan::within(&kernel, shape, &most, &Machine::of_places()));
    let plans = plans.collect::<Result<_, _>>()?;
    Ok(Launches {
        kernel,
        plans,
        order,
    })
}

/// The largest launch with an item less in each shard, where loops select some of them. Columns whose blocks have counter
/// cells are as many in every launch of a series.
fn fewer(kernel: &Kernel, largest: &Shape, chosen: &BTreeMap<DimId, Chosen>) -> Option<Shape> {
    let world = kernel.variant.world;
    let has_cells = |dim: DimId| {
        kernel
            .counters
            .iter()
            .flat_map(|counter| &counter.dims)
            .any(|axis| match axis {
                CounterDim::Items(partition) => {
                    let partition = &kernel.partitions[partition.index()];
                    partition.columns == dim && partition.column_block.is_some()
                }
                CounterDim::World | CounterDim::Count(_) => false,
            })
    };
    let mut shape = largest.clone();
    for (dim, chosen) in chosen.iter().filter(|(dim, _)| !has_cells(**dim)) {
        let dim = &kernel.dims[usize::from(dim.0)];
        let shards = if dim.sharded { world } else { 1 };
        let size = shape.size(dim).saturating_sub(chosen.item * shards).max(1);
        shape.set(dim, size);
    }
    shape.m = whole_lines(kernel, shape.m);
    (shape != *largest).then_some(shape)
}

/// Number that rows are multiples of, where they are columns of a tensor, too: there a row of memory is whole 16
/// bytes.
fn line_of_rows(kernel: &Kernel) -> u32 {
    // Lines of scales have a padding of their own.
    let mut buffers =
        (kernel.buffers.iter()).filter(|it| it.usage.scales_of().is_none() || it.is_scratch());
    let is_rows = |dim: DimId| kernel.dims[usize::from(dim.0)].name == "m";
    match buffers.any(|buffer| !buffer.mn_major && is_rows(buffer.columns)) {
        true => 16,
        false => 1,
    }
}

/// At most so many rows that are whole 16 bytes where they are columns, too.
fn whole_lines(kernel: &Kernel, rows: u32) -> u32 {
    let line = line_of_rows(kernel);
    (rows - rows % line).max(line)
}

/// The least that shards of a dimension must have to show which items loops select.
#[derive(Default)]
struct Chosen {
    /// Elements along the dimension; 0 where every loop visits all.
    elements: u32,
    /// Elements of one item.
    item: u32,
}

/// Sizes of each dimension that shards divide, or whose blocks are items.
fn chosen(pipeline: &Pipeline, world: u32) -> BTreeMap<DimId, Chosen> {
    let kernel = &pipeline.kernel;
    let mut found: BTreeMap<DimId, Chosen> = BTreeMap::new();
    for role in &kernel.roles {
        selections(&role.body, &mut |partition, selection| {
            let side = kernel.sharded_side(partition).unwrap_or(Side::Rows);
            let partition = &kernel.partitions[partition.index()];
            let Some(item) = partition.block(side) else {
                return;
            };
            let elements = (items(selection, world) - 1) * item + item / 2;
            let chosen = found.entry(partition.dim(side)).or_default();
            chosen.elements = chosen.elements.max(elements);
            chosen.item = chosen.item.max(item);
        });
    }
    found
}

/// Items that a shard must have to show which of them a selection leaves: on some rank one is left and one is not, if
/// there are numbers for which this is so.
fn items(selection: &Selection, world: u32) -> u32 {
    let numbers = selection.cuts().iter().filter_map(Cut::number);
    let constant = |n: &RankExpr| match n {
        RankExpr::Const(n) => u32::try_from(*n).unwrap_or(0).min(MOST_BEHIND),
        RankExpr::Me | RankExpr::World | RankExpr::Var(_) | RankExpr::Binary(..) => 0,
    };
    let behind = (numbers.map(constant).max().unwrap_or(0) + 1).min(MOST_BEHIND);
    let ranks = || (0..world).flat_map(|me| (0..world).map(move |other| (me, other)));
    let some_of = |count: u32| {
        ranks().any(|(me, other)| {
            let left = selection.of(count, me, world, &|_| Some(i64::from(other)));
            left.is_ok_and(|left| (1..count).contains(&left.count))
        })
    };
    let least = (2..=MOST_CHOSEN_FROM).find(|count| some_of(*count));
    // Halves of two items and of one take the same turns; of three they do not.
    behind.max(3).max(least.unwrap_or(0))
}

/// Calls `f` with what each loop selects, if it does not visit all.
fn selections(body: &[Block], f: &mut impl FnMut(PartitionId, &Selection)) {
    for block in body {
        match block {
            Block::ForRanks { body, .. } => selections(body, f),
            Block::If {
                then, otherwise, ..
            } => {
                selections(then, f);
                selections(otherwise, f);
            }
            Block::Items {
                partition,
                selection,
                ..
            } => {
                if !selection.is_all() {
                    f(*partition, selection);
                }
            }
            Block::Once { .. } | Block::Join => {}
        }
    }
}

/// Dimensions whose columns warps copy or count, by name, and the columns that there must be to show how: of whole
/// rows two batches of boxes; of slabs two, of which the last one has a whole box, a part of one, and none of the
/// others; of cells for the slabs of some rows two.
fn copied_columns(kernel: &Kernel) -> BTreeMap<&str, u32> {
    fn copies<'k>(kernel: &'k Kernel, body: &[Block], found: &mut BTreeMap<&'k str, u32>) {
        for block in body {
            match block {
                Block::ForRanks { body, .. } => copies(kernel, body, found),
                Block::If {
                    then, otherwise, ..
                } => {
                    copies(kernel, then, found);
                    copies(kernel, otherwise, found);
                }
                Block::Items {
                    partition, body, ..
                } => {
                    let slab = kernel.partitions[partition.index()].column_block;
                    visit_ops(body, &mut |op| {
                        if let OpKind::Copy { src, .. } = &op.kind
                            && let buffer = &kernel.buffers[src.buffer.index()]
                            && !buffer.usage.is_scale()
                        {
                            let columns = match slab {
                                None => two_batches(kernel),
                                Some(slab) => {
                                    slab + box_columns(kernel) + few_along(kernel, buffer.columns)
                                }
                            };
                            let name = kernel.dims[usize::from(buffer.columns.0)].name.as_str();
                            let known = found.entry(name).or_default();
                            *known = columns.max(*known);
                        }
                    });
                }
                Block::Once { .. } | Block::Join => {}
            }
        }
    }
    let mut found = BTreeMap::new();
    for role in kernel.roles.iter().filter(|role| !role.kind.sequential()) {
        copies(kernel, &role.body, &mut found);
    }
    for role in &kernel.roles {
        visit(&role.body, &mut |op| {
            if let OpKind::Wait { cells, .. } | OpKind::Signal { cells, .. } = &op.kind {
                counts(kernel, cells, &mut found);
            }
        });
    }
    found
}

/// The columns of slabs of which `cells` names those of some rows.
fn counts<'k>(kernel: &'k Kernel, cells: &Cells, found: &mut BTreeMap<&'k str, u32>) {
    let dims = &kernel.counters[cells.counter.index()].dims;
    for each in cells.index.iter().zip(dims) {
        if let (CellIndex::Along(..), CounterDim::Items(counted)) = each
            && let partition = &kernel.partitions[counted.index()]
            && let Some(slab) = partition.column_block
        {
            let dim = partition.dim(Side::Columns);
            let known = found.entry(kernel.dims[usize::from(dim.0)].name.as_str());
            let known = known.or_default();
            *known = (*known).max(slab + few_along(kernel, dim));
        }
    }
}

/// Columns of whole 16 bytes, of every tensor that has them.
fn few_along(kernel: &Kernel, columns: DimId) -> u32 {
    let mut of = (kernel.buffers.iter()).filter(|buffer| buffer.columns == columns);
    match of.any(|buffer| buffer.dtype.is_fp8()) {
        true => 16,
        false => 8,
    }
}

/// Columns of a copied chunk that has two batches of boxes.
fn two_batches(kernel: &Kernel) -> u32 {
    (BATCH + 1) * box_columns(kernel)
}

/// Columns of a box. Those of elements of one byte have twice as many.
fn box_columns(kernel: &Kernel) -> u32 {
    let bytes = kernel.buffers.iter().any(|buffer| buffer.dtype.is_fp8());
    STAGING_COLUMNS * if bytes { 2 } else { 1 }
}

/// Shards of rows, and by how many rows the last one is short.
fn shards(world: u32) -> (u32, u32) {
    match world {
        1 => (RANKS, 2),
        2 => (2, 1),
        _ => (world, 2),
    }
}

/// The largest launch of a kernel that only moves data: shards of one and a half of its largest chunks, the last one short, in two
/// batches.
fn of_chunks(pipeline: &Pipeline, world: u32) -> Shape {
    let kernel = &pipeline.kernel;
    let blocks = kernel.partitions.iter().filter_map(|of| of.row_block);
    let largest = blocks.max().unwrap_or(1);
    let rows = largest + largest / 2;
    let ((shards, short), wide) = (shards(world), two_batches(kernel));
    let m = rows * shards - short;
    let further = kernel.dims.iter().filter(|dim| dim.is_further());
    further.fold(Shape::new(m, wide, wide), |shape, dim| {
        shape.dim(&dim.name, if dim.sharded { m } else { wide })
    })
}

/// The largest launch.
pub(super) fn shape(pipeline: &Pipeline, world: u32, steps: Option<u32>) -> Shape {
    let kernel = &pipeline.kernel;
    let mut shape = match pipeline.cta.computes() {
        true => of_tiles(pipeline, world, steps),
        false => of_chunks(pipeline, world),
    };
    shape.m = whole_lines(kernel, shape.m);
    for (dim, chosen) in chosen(pipeline, world) {
        let dim = &kernel.dims[usize::from(dim.0)];
        let (shards, short) = shards(world);
        let shards = if dim.sharded { shards } else { 1 };
        // Shards of columns are whole 16 bytes.
        let short = if dim.name == "m" { short } else { few(kernel) };
        let size = chosen.elements * shards - short;
        shape.set(dim, shape.size(dim).max(size));
    }
    let operands = kernel.buffers.iter().filter(|it| !it.usage.is_scale());
    for buffer in operands.filter(|buffer| buffer.mn_major) {
        // Lines of whole 16 bytes, however many rows there are.
        let further = shape.dims.values().copied().max().unwrap_or(0);
        let line = shape.m.max(shape.n).max(further).next_multiple_of(16);
        shape.ld.insert(buffer.name.clone(), line);
    }
    shape
}

/// Columns of whole 16 bytes, of everything that tiles are stored in.
fn few(kernel: &Kernel) -> u32 {
    let mut stored = kernel.buffers.iter().filter(|it| !it.usage.is_input());
    match stored.any(|buffer| buffer.dtype.is_fp8()) {
        true => 16,
        false => 8,
    }
}

/// True if warpgroups that take tiles by turns add sums over ranks.
fn sums_by_turns(pipeline: &Pipeline) -> bool {
    let mut sums = false;
    for role in &pipeline.kernel.roles {
        if matches!(role.kind, RoleKind::Gemm(_)) {
            visit(&role.body, &mut |op| {
                sums |= matches!(op.kind, OpKind::Reduce { .. })
            });
        }
    }
    sums && pipeline.cta.mode() == Mode::PingPong
}

/// The largest launch of a kernel that computes tiles.
fn of_tiles(pipeline: &Pipeline, world: u32, steps: Option<u32>) -> Shape {
    let kernel = &pipeline.kernel;
    let tile = pipeline.tiles().into_iter().reduce(|one, other| Tile {
        rows: one.rows.max(other.rows),
        columns: one.columns.max(other.columns),
        ..one
    });
    let tile = tile.unwrap_or(pipeline.tile());
    // Shards of one and a half tiles, the last one two rows short (of two shards, one row); columns that no tile divides;
    // and one step more of K than the ring has stages. Along either, the last of a cluster's tiles is wholly outside, and
    // there are more of them, so that each warpgroup has several in turn; of what its CTAs load half the rows each of, the
    // last has more than one half. A copied chunk has two batches, whoever copies it.
    let rows = tile.rows + tile.rows / 2;
    let (down, across) = pipeline.cta.cluster();
    let [x_in_halves, w_in_halves] = {
        let [x_rows, w_rows] = kernel.variant.layout.mn_major();
        [across > 1 && !x_rows, down > 1 && !w_rows].map(u32::from)
    };
    let (shards, short) = shards(world);
    let m = rows * shards - short + tile.rows / 4 * x_in_halves;
    let copied = copied_columns(kernel);
    // A row of an operand is whole 16 bytes.
    let (few, few_columns) = (16 / pipeline.dtype().bytes(), few(kernel));
    let n = match kernel.is_sharded_along(pipeline.tiling().partition(), Side::Columns) {
        // As the rows are, where ranks divide those; shards of columns are whole 16 bytes.
        true => (tile.columns + tile.columns / 2) * shards - few_columns,
        false => {
            let outside = tile.columns / 2 * w_in_halves + few_columns;
            // Where each warpgroup passes over the other's sums, both have two tiles of this rank's on each CTA.
            let turns = if sums_by_turns(pipeline) { 2 } else { 0 };
            tile.columns * (pipeline.cta.multicast_group() + turns) + outside
        }
    };
    let (n, k) = (
        n.max(copied.get("n").copied().unwrap_or(0)),
        if let Some(steps) = steps {
            (steps - 1) * tile.k + few
        } else {
            // Where steps are shared, each has as many as the ring has stages, and one of them one more.
            let shared = pipeline.cta.split() * pipeline.rings[0].slots * tile.k + few;
            let others = copied.iter().filter(|(name, _)| **name != "n");
            let columns = others.map(|(_, columns)| *columns).max();
            columns.map_or(shared, |columns| columns.max(shared))
        },
    );
    // Where K is the columns of the products, it is what either asks for.
    let n = match kernel.dims.iter().any(|dim| dim.name == "k") {
        true => n,
        false => n.max(k),
    };
    let mut shape = Shape::new(m, n, k);
    // Other loops have a grid and a depth of their own.
    for tiling in pipeline.cta.tilings() {
        let columns = kernel.partitions[tiling.partition().index()].columns;
        let of_x = |x: &Operand| kernel.buffers[x.tensor.index()].columns;
        let depth = tiling.operands().first().map(of_x);
        let sizes = [(Some(columns), n + tile.columns), (depth, 2 * tile.k + few)];
        for (dim, size) in
            sizes.map(|(dim, size)| (dim.map(|dim| &kernel.dims[usize::from(dim.0)]), size))
        {
            if let Some(dim) = dim.filter(|dim| dim.is_further()) {
                shape.dims.entry(dim.name.clone()).or_insert(size);
            }
        }
    }
    // Then so are those of every product.
    if let Some(steps) = steps {
        let size = (steps - 1) * tile.k + few.max(few_columns);
        for tiling in pipeline.cta.tilings() {
            let depth = tiling
                .operands()
                .first()
                .map(|x| kernel.buffers[x.tensor.index()].columns);
            if let Some(dim) = depth.map(|dim| &kernel.dims[usize::from(dim.0)]) {
                shape.set(dim, size);
            }
        }
    }
    shape
}
