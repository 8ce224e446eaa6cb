//! The grid that a counter's cells lie in: its sides, and the number of a cell in it.

use super::{Expr, Field};
use crate::kernel::Kernel;
use crate::program::{CounterDim, CounterId, PartitionId, Side};
use crate::tiling::Tiling;

/// One side of a counter's grid of cells.
#[derive(Clone, Debug)]
pub struct CellSide {
    /// What an index along it counts.
    pub name: &'static str,
    /// Number of indices.
    pub size: Expr,
}

/// Sides of an axis of a counter, outermost first. `columns` gives the columns of cells that a shard of a partition has.
pub fn sides(
    kernel: &Kernel,
    axis: CounterDim,
    columns: impl Fn(PartitionId) -> Expr,
) -> Vec<CellSide> {
    let side = |name, size| CellSide { name, size };
    match axis {
        CounterDim::World => vec![side("rank", Expr::world())],
        CounterDim::Count(count) => vec![side("index", count.into())],
        CounterDim::Items(of) => {
            let partition = &kernel.partitions[of.index()];
            let shard = kernel.sharded_side(of);
            let shard = shard.map(|_| side("shard", Expr::world()));
            let row = partition.row_block;
            let row = row.map(|_| side("row", Expr::Field(Field::CellRows(of))));
            let column = partition.column_block;
            let column = column.map(|_| side("column", columns(of)));
            [shard, row, column].into_iter().flatten().collect()
        }
    }
}

/// Number of a cell. An axis has an index for each of its sides, or the cell's number among those of the axis.
pub fn number(axes: &[Vec<CellSide>], indices: &[Vec<Expr>]) -> Expr {
    let each = axes.iter().zip(indices);
    each.fold(Expr::Const(0), |before, (sides, indices)| {
        let within = match indices.as_slice() {
            [number] => number.clone(),
            indices => sides
                .iter()
                .zip(indices)
                .fold(Expr::Const(0), |at, (side, index)| {
                    at * side.size.clone() + index.clone()
                }),
        };
        before * cells(sides) + within
    })
}

/// Number of cells of an axis.
pub fn cells(sides: &[CellSide]) -> Expr {
    let sizes = sides.iter().map(|side| side.size.clone());
    sizes.fold(Expr::Const(1), |all, size| all * size)
}

/// Columns of cells of a shard, by a launch's sizes.
pub fn columns(kernel: &Kernel, partition: PartitionId) -> Expr {
    let item = &kernel.partitions[partition.index()];
    let Some(block) = item.column_block else {
        return 1.into();
    };
    let all = match kernel.is_sharded_along(partition, Side::Columns) {
        true => Field::ShardRows(item.columns),
        false => Field::Size(item.columns),
    };
    Expr::Field(all).ceil_div(block)
}

/// Partitions among a counter's axes whose columns of cells a role has at hand: those of tiles. The function takes them.
pub fn tiled(kernel: &Kernel, tilings: &[Tiling], counter: CounterId) -> Vec<PartitionId> {
    let dims = &kernel.counters[counter.index()].dims;
    let tiled = |of: &PartitionId| {
        let partition = &kernel.partitions[of.index()];
        let mut tilings = tilings.iter();
        !kernel.is_sharded_along(*of, Side::Columns)
            && tilings.any(|tiling| partition.is_tile(tiling.tile()))
    };
    let items = dims.iter().filter_map(|dim| match dim {
        CounterDim::Items(of) => Some(*of),
        CounterDim::World | CounterDim::Count(_) => None,
    });
    items.filter(tiled).collect()
}
