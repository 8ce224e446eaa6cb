//! Which cells of a counter an index names, as numbers and loops.

use super::cta::staging_rows;
use super::walk::Walk;
use crate::kernel::{Cells, DimId, WhichShard};
use crate::program::{CellIndex, CounterDim, CounterId, Home, PartitionId, Pick, Side};
use crate::warp::cells::{self, CellFunction, CellSide};
use crate::warp::{CellNumber, Expr, Field, Node, Symbol, Unroll};

impl Walk<'_, '_> {
    /// Elements of an item along a side: those of the tiles that the loop computes have a name.
    fn item_elements(&self, partition: PartitionId, side: Side, elements: u32) -> Expr {
        let item = &self.b.kernel.partitions[partition.index()];
        let tiling = self.b.cta.tilings().get(self.tiling);
        match (
            side,
            tiling.is_some_and(|tiling| item.is_tile(tiling.tile())),
        ) {
            (_, false) => elements.into(),
            (Side::Rows, true) => self.b.tile_rows(self.tiling),
            (Side::Columns, true) => self.b.tile_columns(self.tiling),
        }
    }

    /// Rows of a chunk: those that the first CTAs copy, or the schedule's first, have a name in the text.
    pub(super) fn chunk(&self, rows: u32) -> Expr {
        let partitions = self.b.kernel.partitions.iter();
        let mut chunks = partitions.filter(|partition| partition.column_block.is_none());
        let first = || chunks.find_map(|partition| partition.row_block);
        let kernel = self.b.kernel;
        let mover = self.b.comm.as_ref().and_then(|comm| comm.roles.first());
        let copied = mover.map(|of| staging_rows(kernel, &kernel.roles[of.role]));
        if copied.or_else(first) == Some(rows) {
            Expr::symbol(Symbol::Chunk, rows)
        } else {
            rows.into()
        }
    }

    /// Number of cells of a counter.
    pub fn cells_of(&self, counter: CounterId) -> Expr {
        let dims = self.b.kernel.counters[counter.index()].dims.iter();
        let cells = dims.map(|dim| cells::cells(&self.sides(*dim)));
        cells.fold(Expr::Const(1), |all, cells| all * cells)
    }

    fn sides(&self, axis: CounterDim) -> Vec<CellSide> {
        cells::sides(self.b.kernel, axis, |of| self.cell_columns(of))
    }

    /// Repeats `leaf` for every cell that `cells` names.
    pub fn each_cell(
        &mut self,
        cells: &Cells,
        leaf: &mut dyn FnMut(Expr) -> Vec<Node>,
    ) -> Vec<Node> {
        let counter = cells.counter;
        let dims = self.b.kernel.counters[counter.index()].dims.clone();
        let sides: Vec<_> = dims.iter().map(|dim| self.sides(*dim)).collect();
        let tiled = cells::tiled(self.b.kernel, self.b.cta.tilings(), counter);
        let columns = tiled.into_iter().map(|of| self.cell_columns(of));
        let columns: Vec<Expr> = columns.collect();
        let axes: Vec<_> = cells.index.iter().cloned().zip(dims).collect();
        let function = CellFunction::of(self.b.kernel, self.b.cta.tilings(), counter);
        self.along(&axes, Vec::new(), &mut |indices| {
            let mut each = sides.iter().zip(&indices);
            // Along one side, a cell's number is its index.
            let one = indices.iter().flatten().count() < 2;
            if one || each.any(|(sides, indices)| sides.len() != indices.len()) {
                return leaf(cells::number(&sides, &indices));
            }
            let arguments = columns.iter().cloned();
            let arguments: Vec<Expr> = arguments.chain(indices.into_iter().flatten()).collect();
            leaf(Expr::Cell(Box::new(CellNumber {
                counter,
                number: function.call(&arguments),
                arguments,
            })))
        })
    }

    /// True if `cells` names one cell of one rank, which a thread can remember. An item that is larger than a chunk has several, and so have
    /// rows of slabs.
    pub fn one_cell(&self, cells: &Cells) -> bool {
        let dims = &self.b.kernel.counters[cells.counter.index()].dims;
        let one = |(index, dim): (&CellIndex, &CounterDim)| match (index, dim) {
            (CellIndex::Rank(Pick::One(_)) | CellIndex::Item(_), _) => true,
            (CellIndex::Rank(Pick::All | Pick::Others), _) => false,
            (CellIndex::Along(var, side), CounterDim::Items(counted)) => {
                let partitions = &self.b.kernel.partitions;
                let item = self.item(*var).map(|(of, ..)| &partitions[of.index()]);
                let chunks = &partitions[counted.index()];
                item.is_some_and(|item| {
                    let along = chunks.side_of(item.dim(*side));
                    let chunk = along.and_then(|along| chunks.block(along));
                    let in_slabs = along == Some(Side::Rows) && chunks.column_block.is_some();
                    let which = chunks.shard_of((item, *side), |dim| self.b.kernel.is_sharded(dim));
                    let in_one = which != WhichShard::Each && !chunks.across;
                    in_one && !in_slabs && matches!((item.block(*side), chunk), (Some(item), Some(chunk)) if chunk % item == 0)
                })
            }
            (CellIndex::Along(..), CounterDim::World | CounterDim::Count(_)) => false,
        };
        cells.home != Home::Everywhere && cells.index.iter().zip(dims).all(one)
    }

    fn along(
        &mut self,
        axes: &[(CellIndex, CounterDim)],
        before: Vec<Vec<Expr>>,
        leaf: &mut dyn FnMut(Vec<Vec<Expr>>) -> Vec<Node>,
    ) -> Vec<Node> {
        let Some(((index, dim), rest)) = axes.split_first() else {
            return leaf(before);
        };
        let and = |axis: Vec<Expr>| [before.as_slice(), &[axis]].concat();
        match (index, dim) {
            (CellIndex::Rank(Pick::One(rank)), _) => {
                let rank = self.rank(rank);
                self.along(rest, and(vec![rank]), leaf)
            }
            (CellIndex::Rank(Pick::Others), _) => {
                let var = "from".to_string();
                let body = self.along(rest, and(vec![Expr::var(&var)]), leaf);
                vec![Node::Others {
                    var,
                    own: None,
                    body,
                }]
            }
            (CellIndex::Rank(Pick::All), dim) => {
                let var = "from".to_string();
                let to = cells::cells(&self.sides(*dim));
                let body = self.along(rest, and(vec![Expr::var(&var)]), leaf);
                vec![Node::For {
                    var,
                    from: 0.into(),
                    to,
                    by: 1.into(),
                    unroll: Unroll::Once,
                    body,
                }]
            }
            (CellIndex::Item(var), _) => {
                let Some((partition, shard, row, column)) = self.item(*var) else {
                    return Vec::new();
                };
                let shard = shard.unwrap_or(Expr::Const(0));
                let item = self.item_indices(partition, [shard, row, column]);
                self.along(rest, and(item), leaf)
            }
            (CellIndex::Along(var, side), CounterDim::Items(counted)) => {
                let Some((partition, shard, row, column)) = self.item(*var) else {
                    return Vec::new();
                };
                let partitions = &self.b.kernel.partitions;
                let (tiled, chunks) =
                    (&partitions[partition.index()], &partitions[counted.index()]);
                let Some(along) = chunks.side_of(tiled.dim(*side)) else {
                    return Vec::new();
                };
                let (Some(tile), Some(chunk)) = (tiled.block(*side), chunks.block(along)) else {
                    self.refuse(
                        "a counter over whole shards",
                        "chunks with a number of rows",
                    );
                    return Vec::new();
                };
                if along == Side::Columns && chunks.row_block.is_some() {
                    self.refuse(
                        "a wait for several rows of items",
                        "chunks of whole columns",
                    );
                }
                let first = match side {
                    Side::Rows => row,
                    Side::Columns => column,
                };
                let start = first * self.item_elements(partition, *side, tile);
                let chunk_rows = self.chunk(chunk);
                let which = chunks.shard_of((tiled, *side), |dim| self.b.kernel.is_sharded(dim));
                let whole = self.span(partition, *side, shard.as_ref());
                let mut leaf_of =
                    |walk: &mut Self, axis: Vec<Expr>| walk.along(rest, and(axis), leaf);
                let end = |tile: Expr| Expr::Min(Box::new(start.clone() + tile), whole.into());
                if which == WhichShard::Each {
                    let end = end(self.item_elements(partition, *side, tile));
                    let at = [Expr::var(SHARD), Expr::var(CHUNK)];
                    let body = self.slabs((*counted, along), at, &mut leaf_of);
                    return each_shard((tiled.dim(*side), chunk_rows), [start, end], body);
                }
                let shard_at = match (which, &shard) {
                    (WhichShard::Items, Some(shard)) => shard.clone(),
                    // Lowering refuses several.
                    (
                        WhichShard::Items
                        | WhichShard::Only
                        | WhichShard::Each
                        | WhichShard::Several,
                        _,
                    ) => 0.into(),
                };
                if chunk % tile == 0 {
                    let at = [shard_at, start / chunk_rows];
                    return self.slabs((*counted, along), at, &mut leaf_of);
                }
                let last = end(tile.into()).ceil_div(chunk_rows.clone());
                let at = [shard_at, Expr::var(CHUNK)];
                let body = self.slabs((*counted, along), at, &mut leaf_of);
                vec![count_up(CHUNK, [start / chunk_rows, last], body)]
            }
            (CellIndex::Along(..), CounterDim::World | CounterDim::Count(_)) => {
                self.refuse("rows that index an axis of ranks", "a counter over items");
                Vec::new()
            }
        }
    }

    /// The cells of a chunk of a shard: one, or one for each slab, or that of the slab which a product comes to.
    fn slabs(
        &mut self,
        (of, along): (PartitionId, Side),
        [shard, chunk]: [Expr; 2],
        leaf: &mut dyn FnMut(&mut Self, Vec<Expr>) -> Vec<Node>,
    ) -> Vec<Node> {
        if along == Side::Columns {
            let axis = self.item_indices(of, [shard, 0.into(), chunk]);
            return leaf(self, axis);
        }
        // Rows of the grid of cells have a cell for each slab.
        let axis = self.item_indices(of, [shard, chunk, Expr::var(SLAB)]);
        let body = leaf(self, axis);
        let in_slabs = self.b.kernel.partitions[of.index()].column_block.is_some();
        let of_step = self.slab_of;
        if !in_slabs || of_step.is_some_and(|slab| self.b.kernel.same_slabs(slab, of)) {
            return body;
        }
        vec![count_up(SLAB, [0.into(), self.cell_columns(of)], body)]
    }

    /// Indices of an item along those sides that its partition's cells have.
    fn item_indices(&self, of: PartitionId, [shard, row, column]: [Expr; 3]) -> Vec<Expr> {
        let kernel = self.b.kernel;
        let partition = &kernel.partitions[of.index()];
        let sides = [
            (kernel.sharded_side(of).is_some(), shard),
            (partition.row_block.is_some(), row),
            (partition.column_block.is_some(), column),
        ];
        let has = sides.into_iter().filter(|(has, _)| *has);
        has.map(|(_, index)| index).collect()
    }
}

/// Counts the shards that an item is in.
const SHARD: &str = "shard";
/// Counts the chunks, of a shard or of all rows, that an item is in.
const CHUNK: &str = "chunk";
/// Counts the slabs of a row of chunks.
pub(super) const SLAB: &str = "slab";

/// Loops over the chunks of each shard that a range of all rows is in. Chunks divide each shard by itself.
fn each_shard((dim, chunk): (DimId, Expr), [start, end]: [Expr; 2], body: Vec<Node>) -> Vec<Node> {
    let each = || Expr::Field(Field::ShardRows(dim));
    let (name, least) = (format!("{SHARD}_start"), |a: Expr, b: Expr| {
        Expr::Min(a.into(), b.into())
    });
    let first = || Expr::var(&name);
    // Rows of the shard that come before the item, and those up to its end.
    let before = start.clone() - least(start.clone(), first());
    let until = least(end.clone() - first(), each());
    let chunks = [before / chunk.clone(), until.ceil_div(chunk)];
    let value = Expr::var(SHARD) * each();
    let body = vec![
        Node::Let {
            name: name.clone(),
            value,
        },
        count_up(CHUNK, chunks, body),
    ];
    vec![count_up(
        SHARD,
        [start / each(), end.ceil_div(each())],
        body,
    )]
}

fn count_up(var: &str, [from, to]: [Expr; 2], body: Vec<Node>) -> Node {
    Node::For {
        var: var.into(),
        from,
        to,
        by: 1.into(),
        unroll: Unroll::Once,
        body,
    }
}
