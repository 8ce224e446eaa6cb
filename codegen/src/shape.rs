//! A problem's numbers: a shape, and a kernel's geometry on it.

mod cover;
mod empty;
mod extent;
mod lines;
mod shards;
mod sizes;

use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::kernel::{Buffer, DimId, Kernel, Partition};
use crate::program::{CounterDim, CounterId, PartitionId, Side};
use std::ops::Range;

pub use cover::covers;
pub use extent::Extent;
pub use sizes::Shape;

/// A kernel's dimensions, shards, items and cells, in numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Number of ranks.
    pub world: u32,
    dims: Vec<DimGeometry>,
    partitions: Vec<Partition>,
    counters: Vec<Vec<u32>>,
    /// True if it stands for all launches up to this one together.
    together: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct DimGeometry {
    size: u32,
    /// Rows of a full shard. The size itself if the dimension is not sharded.
    shard: u32,
    sharded: bool,
    /// Shards but the last ones are a multiple of so many.
    unit: u32,
    /// Rows of a full shard in the largest launch of the series.
    most: u32,
    /// Largest number of rows, if it stands for all launches of up to so many together; `None`: one launch of `size` rows.
    together: Option<u32>,
}

/// An item of a partition: its shard and its position in the shard's grid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Item {
    /// Shard.
    pub shard: u32,
    /// Row of the shard's grid.
    pub row: u32,
    /// Column of the shard's grid.
    pub column: u32,
}

/// The largest world a plan may have: ranks of one NVLink domain (GB200 NVL72), rounded up.
pub const MAX_WORLD: u32 = 128;

impl Geometry {
    /// The geometry of `kernel` on `shape`, the largest launch being [`Shape::most`].
    ///
    /// # Errors
    /// As [`Geometry::within`].
    pub fn new(kernel: &Kernel, shape: &Shape) -> Result<Geometry, Diagnostics> {
        Geometry::within(kernel, shape, &shape.most(kernel))
    }

    /// The geometry of `kernel` on `shape` in a series whose largest launch is `most`. Cells are placed as in that
    /// launch, so that each keeps its meaning when sizes change from launch to launch.
    ///
    /// # Errors
    /// A size of zero, but for the depth of products of a rank's own operands, or above the most, an unknown dimension or
    /// tensor name, a row that is not a multiple of 16 bytes, a leading dimension that is too small, or a size beyond 31
    /// bits, each with what would be legal.
    pub fn within(kernel: &Kernel, shape: &Shape, most: &Shape) -> Result<Geometry, Diagnostics> {
        let mut found = Vec::new();
        let geometry = Geometry::sized(kernel, shape, most, &mut found);
        geometry.check_memory(kernel, shape, &mut found);
        Diagnostics::check(found, geometry)
    }

    /// The geometry of the largest launch of a series, without leading dimensions.
    pub(crate) fn largest(kernel: &Kernel, most: &Shape) -> Result<Geometry, Diagnostics> {
        let mut found = Vec::new();
        let geometry = Geometry::sized(kernel, most, most, &mut found);
        Diagnostics::check(found, geometry)
    }

    /// The union of all launches up to this one: every item of any of them, at the same cell.
    pub(crate) fn together(&self) -> Geometry {
        let mut all = self.clone();
        all.together = true;
        for dim in all.dims.iter_mut().filter(|dim| dim.sharded) {
            dim.together = Some(dim.size);
            dim.size = dim.shard.saturating_mul(self.world);
        }
        all
    }

    /// True if it stands for several launches together.
    pub(crate) fn is_together(&self) -> bool {
        self.together
    }

    fn sized(
        kernel: &Kernel,
        shape: &Shape,
        most: &Shape,
        found: &mut Vec<Diagnostic>,
    ) -> Geometry {
        let world = kernel.variant.world;
        let dims: Vec<DimGeometry> = kernel
            .dims
            .iter()
            .zip(0..)
            .map(|(dim, id)| {
                let (size, most) = (shape.size(dim), most.size(dim));
                let empty = size == 0 && !kernel.may_be_empty(DimId(id));
                if empty || size > i32::MAX as u32 {
                    let legal = "give a size from 1 to 2147483647";
                    let hint = match empty && kernel.is_depth(DimId(id)) {
                        true => format!("a product has depth 0 only where each rank is given all that is along it, and nothing of it is gathered, stored or cut into chunks: launch none, or {legal}"),
                        false => legal.into(),
                    };
                    found.push(shape_error(format!("{} is {size}", dim.name)).hint(hint));
                } else if size > most {
                    let message = format!("{} is {size} in a series of up to {most}", dim.name);
                    let hint = format!("make the series for at least {} = {size}", dim.name);
                    found.push(shape_error(message).hint(hint));
                }
                let unit = kernel.shard_unit(DimId(id));
                let of_shard = |size: u32| {
                    if dim.sharded {
                        let shard = size.div_ceil(world.max(1));
                        shard.checked_next_multiple_of(unit).unwrap_or(shard)
                    } else {
                        size
                    }
                };
                DimGeometry {
                    size,
                    shard: of_shard(size),
                    sharded: dim.sharded,
                    unit,
                    most: of_shard(most.max(size)),
                    together: None,
                }
            })
            .collect();
        for name in shape
            .dims
            .keys()
            .filter(|name| !kernel.dims.iter().any(|dim| dim.name == **name))
        {
            let names: Vec<_> = kernel
                .dims
                .iter()
                .filter(|dim| !dim.unit)
                .map(|dim| dim.name.as_str())
                .collect();
            found.push(
                shape_error(format!("{} has no dimension `{name}`", kernel.name))
                    .hint(format!("it has {}", names.join(", "))),
            );
        }
        let counters = kernel.counters.iter().map(|_| Vec::new()).collect();
        let partitions = kernel.partitions.clone();
        let mut geometry = Geometry {
            world,
            dims,
            partitions,
            counters,
            together: false,
        };
        for (index, counter) in kernel.counters.iter().enumerate() {
            let axes: Vec<u32> = counter
                .dims
                .iter()
                .map(|dim| geometry.axis_cells(*dim))
                .collect();
            let cells = axes
                .iter()
                .fold(1u64, |cells, axis| cells.saturating_mul(u64::from(*axis)));
            geometry.counters[index] = axes;
            if cells > 1 << 28 {
                found.push(
                    shape_error(format!(
                        "{} needs {cells} cells on every rank",
                        counter.name
                    ))
                    .hint("at most 2^28 are possible; larger tiles or chunks need fewer"),
                );
            }
        }
        geometry.check_columns(kernel, most, found);
        geometry
    }

    /// Rejects another number of cell columns than the largest launch has: the cells would move.
    fn check_columns(&self, kernel: &Kernel, most: &Shape, found: &mut Vec<Diagnostic>) {
        for (index, partition) in self.partitions.iter().enumerate() {
            let axis = CounterDim::Items(PartitionId(index as u16));
            let counted = kernel
                .counters
                .iter()
                .any(|counter| counter.dims.contains(&axis));
            let dim = &kernel.dims[usize::from(partition.columns.0)];
            let (size, most) = (self.size(partition.columns), most.size(dim));
            let divided = self.sharded_side(PartitionId(index as u16)) == Some(Side::Columns);
            let of_shard = match divided {
                true => [
                    self.shard_rows(partition.columns),
                    self.most_shard_rows(partition.columns),
                ],
                false => [size, most],
            };
            let moves = |block| {
                let [now, most] = of_shard.map(|columns: u32| columns.div_ceil(block));
                now != most
            };
            if counted && partition.column_block.is_some_and(moves) {
                let message = format!(
                    "{} is {size} in a series of {most}: every column of `{}` has counter cells, which would move",
                    dim.name, partition.name
                );
                let hint = format!("make another series for {} = {size}", dim.name);
                found.push(shape_error(message).hint(hint));
            }
        }
    }

    fn check_memory(&self, kernel: &Kernel, shape: &Shape, found: &mut Vec<Diagnostic>) {
        for name in shape
            .ld
            .keys()
            .filter(|name| !kernel.buffers.iter().any(|buffer| buffer.name == **name))
        {
            let names: Vec<_> = kernel.buffers.iter().map(|b| b.name.as_str()).collect();
            found.push(
                shape_error(format!(
                    "{} has no tensor `{name}` to give a leading dimension",
                    kernel.name
                ))
                .hint(format!("it has {}", names.join(", "))),
            );
        }
        for buffer in &kernel.buffers {
            let contiguous = self.contiguous(buffer);
            let ld = shape.ld.get(&buffer.name).copied().unwrap_or(contiguous);
            if ld < contiguous {
                let of = if buffer.mn_major { "column" } else { "row" };
                found.push(
                    shape_error(format!(
                        "the leading dimension of {} is {ld}, but a {of} has {contiguous} elements",
                        buffer.name
                    ))
                    .hint(format!("give at least {contiguous}")),
                );
            }
            if ld > contiguous && buffer.usage.is_scale() {
                found.push(
                    shape_error(format!(
                        "the leading dimension of {} is {ld}, but its numbers lie side by side",
                        buffer.name
                    ))
                    .hint("give it none"),
                );
            }
            let unit = 16 / buffer.dtype.bytes();
            // A vector or a scale is one row: no aligned row follows.
            if ld % unit != 0 && !buffer.usage.is_repeated() {
                let (of, dim) = if buffer.mn_major {
                    ("column", buffer.rows)
                } else {
                    ("row", buffer.columns)
                };
                let name = &kernel.dims[usize::from(dim.0)].name;
                let bytes = u64::from(ld) * u64::from(buffer.dtype.bytes());
                found.push(
                    shape_error(format!("a {of} of {} is {ld} {} = {bytes} bytes", buffer.name, buffer.dtype))
                        .hint(if shape.ld.contains_key(&buffer.name) {
                            format!("it must be a multiple of 16 bytes: give {} a leading dimension that is a multiple of {unit}", buffer.name)
                        } else {
                            format!("it must be a multiple of 16 bytes: make {name} a multiple of {unit}, or give {} a leading dimension that is", buffer.name)
                        }),
                );
            }
        }
    }

    /// The size of a dimension.
    pub fn size(&self, dim: DimId) -> u32 {
        self.dims[usize::from(dim.0)].size
    }

    /// Number of row shards of a dimension: the world, or one.
    pub fn shards(&self, dim: DimId) -> u32 {
        if self.dims[usize::from(dim.0)].sharded {
            self.world
        } else {
            1
        }
    }

    /// Rows of a full shard.
    pub fn shard_rows(&self, dim: DimId) -> u32 {
        self.dims[usize::from(dim.0)].shard
    }

    /// Rows of a full shard in the largest launch of the series.
    pub fn most_shard_rows(&self, dim: DimId) -> u32 {
        self.dims[usize::from(dim.0)].most
    }

    /// The size of a dimension in the largest launch of the series, with whole shards.
    pub fn most(&self, dim: DimId) -> u32 {
        self.most_shard_rows(dim).saturating_mul(self.shards(dim))
    }

    /// The rows of shard `shard`: short or empty at the end.
    pub fn shard(&self, dim: DimId, shard: u32) -> Extent {
        let dim = self.dims[usize::from(dim.0)];
        if let Some(most) = dim.together {
            // With one row less per shard, or one unit of them, all shards may be full, also those that are short or empty in the largest
            // launch.
            let start = dim.shard.saturating_mul(shard);
            let rows = most
                .saturating_sub(start)
                .clamp(dim.shard.saturating_sub(dim.unit), dim.shard);
            let end = start.saturating_add(rows);
            return Extent { start, end };
        }
        let at = |shard: u32| {
            u64::from(dim.shard)
                .saturating_mul(u64::from(shard))
                .min(u64::from(dim.size))
        };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "bounded by the size, a u32"
        )]
        let extent = Extent {
            start: at(shard) as u32,
            end: at(shard + 1) as u32,
        };
        extent
    }

    /// Elements of a side that a partition's items of shard `shard` may have: the shard's part, or all that is not divided.
    pub fn span(&self, partition: PartitionId, side: Side, shard: u32) -> Extent {
        let dim = self.partitions[partition.index()].dim(side);
        if self.sharded_side(partition) == Some(side) {
            return self.shard(dim, shard);
        }
        let end = self.size(dim);
        Extent { start: 0, end }
    }

    /// As [`Kernel::sharded_side`].
    fn sharded_side(&self, partition: PartitionId) -> Option<Side> {
        let partition = &self.partitions[partition.index()];
        partition.sharded_side(|dim| self.dims[usize::from(dim.0)].sharded)
    }

    /// Rows and columns of the grid of items in one shard: of a full shard if `shard` is `None`.
    pub fn grid(&self, partition: PartitionId, shard: Option<u32>) -> (u32, u32) {
        let blocks = |side: Side| {
            let of = &self.partitions[partition.index()];
            let divided = self.sharded_side(partition) == Some(side);
            let size = match shard {
                None if divided => self.shard_rows(of.dim(side)),
                _ => self.span(partition, side, shard.unwrap_or(0)).len(),
            };
            let block = of.block(side);
            block.map_or(u32::from(size > 0), |block| size.div_ceil(block))
        };
        (blocks(Side::Rows), blocks(Side::Columns))
    }

    /// The shards of a partition: of its rows or of its columns.
    pub fn partition_shards(&self, partition: PartitionId) -> u32 {
        match self.sharded_side(partition) {
            Some(_) => self.world,
            None => 1,
        }
    }

    /// The cells of a counter axis over this partition. Every shard has those of a full shard of the largest launch, so
    /// that a cell's index depends neither on the last shard's size nor on this launch's rows.
    pub fn cells(&self, partition: PartitionId) -> u64 {
        let (rows, columns) = self.cell_grid(partition);
        u64::from(rows) * u64::from(columns) * u64::from(self.partition_shards(partition))
    }

    /// Rows of cells that each shard has along a counter axis over this partition.
    pub fn cell_rows(&self, partition: PartitionId) -> u32 {
        self.cell_grid(partition).0
    }

    /// The index of an item's cell along a counter axis over its partition.
    pub fn cell(&self, partition: PartitionId, item: Item) -> u32 {
        let (rows, columns) = self.cell_grid(partition);
        (item.shard * rows + item.row) * columns + item.column
    }

    fn cell_grid(&self, partition: PartitionId) -> (u32, u32) {
        let columns = self.grid(partition, None).1;
        let partition = &self.partitions[partition.index()];
        let most = match partition.across {
            true => self.most(partition.rows),
            false => self.most_shard_rows(partition.rows),
        };
        (
            partition.row_block.map_or(1, |block| most.div_ceil(block)),
            columns,
        )
    }

    /// Items of a partition over all shards, full shards assumed.
    pub fn items(&self, partition: PartitionId) -> u64 {
        let (rows, columns) = self.grid(partition, None);
        u64::from(rows) * u64::from(columns) * u64::from(self.partition_shards(partition))
    }

    /// The rows and columns of an item.
    pub fn item(&self, partition: PartitionId, item: Item) -> (Extent, Extent) {
        let part = |side: Side, at: u32| {
            let all = self.span(partition, side, item.shard);
            let Some(block) = self.partitions[partition.index()].block(side) else {
                return all;
            };
            let start = all.start + at.saturating_mul(block).min(all.len());
            Extent {
                start,
                end: start.saturating_add(block).min(all.end),
            }
        };
        (part(Side::Rows, item.row), part(Side::Columns, item.column))
    }

    /// The items of `partition` in `shard` that hold any of an extent along a side, as ranges of its grid.
    pub fn overlapping(
        &self,
        partition: PartitionId,
        shard: u32,
        (side, extent): (Side, Extent),
    ) -> (Range<u32>, Range<u32>) {
        let (rows, columns) = self.grid(partition, Some(shard));
        let start = self.span(partition, side, shard).start;
        let along = match self.partitions[partition.index()].block(side) {
            _ if extent.is_empty() => 0..0,
            None => 0..1,
            Some(block) => (extent.start - start) / block..(extent.end - start).div_ceil(block),
        };
        match side {
            Side::Rows => (along, 0..columns),
            Side::Columns => (0..rows, along),
        }
    }

    /// The extents of a counter's axes.
    pub fn counter_axes(&self, counter: CounterId) -> &[u32] {
        &self.counters[counter.index()]
    }

    /// `arrived[3]`, with the index along every axis.
    pub fn cell_name(&self, kernel: &Kernel, counter: CounterId, cell: u32) -> String {
        let mut index = Vec::new();
        let mut rest = cell;
        for size in self.counter_axes(counter).iter().rev() {
            index.push((rest % size).to_string());
            rest /= size;
        }
        index.reverse();
        let name = &kernel.counters[counter.index()].name;
        index
            .iter()
            .fold(name.clone(), |text, at| format!("{text}[{at}]"))
    }

    /// Cells of a counter on each rank.
    pub fn counter_cells(&self, counter: CounterId) -> u32 {
        self.counters[counter.index()].iter().product()
    }

    /// The rows of a buffer that rank `home` holds.
    pub fn held(&self, buffer: &Buffer, home: u32) -> Extent {
        if buffer.shard_only() && self.dims[usize::from(buffer.rows.0)].sharded {
            self.shard(buffer.rows, home)
        } else {
            Extent {
                start: 0,
                end: self.size(buffer.rows),
            }
        }
    }

    /// This geometry with at most `size` of a dimension that is not divided into shards, and as many blocks as that has.
    pub(crate) fn resized(&self, kernel: &Kernel, dim: DimId, size: u32) -> Geometry {
        let mut geometry = self.clone();
        let name = &kernel.dims[usize::from(dim.0)].name;
        for (at, own) in geometry.dims.iter_mut().enumerate() {
            let size = match &kernel.dims[at].blocks {
                _ if at == usize::from(dim.0) => size,
                Some(blocks) if blocks.of == *name => size.div_ceil(blocks.width),
                Some(_) | None => continue,
            };
            (own.size, own.shard, own.most) =
                (size.min(own.size), size.min(own.shard), size.min(own.most));
        }
        geometry.counters = kernel
            .counters
            .iter()
            .map(|counter| {
                counter
                    .dims
                    .iter()
                    .map(|dim| geometry.axis_cells(*dim))
                    .collect()
            })
            .collect();
        geometry
    }

    /// Cells along one axis of a counter, at most 32 bits of them.
    fn axis_cells(&self, axis: CounterDim) -> u32 {
        match axis {
            CounterDim::World => self.world,
            CounterDim::Count(count) => count,
            CounterDim::Items(partition) => {
                u32::try_from(self.cells(partition)).unwrap_or(u32::MAX)
            }
        }
    }

    /// The class: two geometries of a kernel with the same class have the same steps up to the extents of edge items.
    /// It is the grid of every shard, the cells, and K. Overlaps between partitions follow from the grids, since only
    /// the last block of a shard is partial.
    pub fn class(&self) -> Vec<u32> {
        let mut class: Vec<u32> = self
            .dims
            .iter()
            .filter(|dim| !dim.sharded)
            .map(|dim| dim.size)
            .collect();
        for index in 0..self.partitions.len() {
            let partition = PartitionId(index as u16);
            class.push(self.cell_grid(partition).0);
            let shards = self.partition_shards(partition);
            let grids = (0..shards).map(|shard| self.grid(partition, Some(shard)));
            class.extend(grids.flat_map(|(rows, columns)| [rows, columns]));
            // Where shards end within its items follows from their sizes alone.
            let of = &self.partitions[index];
            class.extend(of.across.then(|| self.shard_rows(of.rows)));
            class.extend(of.across.then(|| self.size(of.rows)));
        }
        class
    }
}

fn shape_error(message: String) -> Diagnostic {
    Diagnostic::new(Rule::Shape, None, message)
}
