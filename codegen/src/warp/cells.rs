//! The grid that a counter's cells lie in: its sides, the number of a cell in it, and the function that the text has for that.

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

/// The function of a counter that gives a cell its number. The text has it as it is here, and the number of each cell that
/// [`CellNumber`](super::CellNumber) holds is its value, so what the proof computes and what the text says are one expression.
#[derive(Clone, Debug)]
pub struct CellFunction {
    /// Names of the parameters: columns of each partition of [`tiled`], then an index along each side.
    pub parameters: Vec<String>,
    /// The sides, outermost first: the parameter along each, and its size.
    pub sides: Vec<(String, Expr)>,
    /// The number, of the parameters and of what the host passes.
    pub number: Expr,
}

impl CellFunction {
    /// The function of that counter.
    pub fn of(kernel: &Kernel, tilings: &[Tiling], counter: CounterId) -> CellFunction {
        let mut parameters = Vec::new();
        let mut parameter = |name: &str| {
            let mut free = name.to_string();
            while parameters.contains(&free) {
                free.push('_');
            }
            parameters.push(free.clone());
            free
        };
        let tiled = tiled(kernel, tilings, counter).into_iter();
        let given: Vec<(PartitionId, String)> =
            tiled.map(|of| (of, parameter("tiles_n"))).collect();
        let columns = |of: PartitionId| {
            let given = given.iter().find(|(known, _)| *known == of);
            given.map_or_else(|| columns(kernel, of), |(_, name)| Expr::var(name))
        };
        let dims = kernel.counters[counter.index()].dims.iter();
        let axes: Vec<Vec<CellSide>> = dims.map(|dim| sides(kernel, *dim, columns)).collect();
        let mut named = Vec::new();
        let mut indices = Vec::new();
        for axis in &axes {
            let along: Vec<String> = axis.iter().map(|side| parameter(side.name)).collect();
            indices.push(along.iter().map(Expr::var).collect::<Vec<Expr>>());
            named.extend(
                along
                    .into_iter()
                    .zip(axis.iter().map(|side| side.size.clone())),
            );
        }
        CellFunction {
            number: number(&axes, &indices),
            parameters,
            sides: named,
        }
    }

    /// Its value for these arguments, in the order of the parameters.
    pub fn call(&self, arguments: &[Expr]) -> Expr {
        self.number.bound(&|name| {
            let at = self.parameters.iter().position(|known| known == name)?;
            Some(arguments[at].clone())
        })
    }
}
