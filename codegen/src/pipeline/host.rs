//! What the host passes at launch, worked out from a plan: numbers, arrivals and tensor maps. Addresses are the
//! host's own.

use super::{Expr, Field, MapId, Pipeline, Values, View};
use crate::kernel::{DimId, OpKind, visit};
use crate::model::Machine;
use crate::plan::{COUNTER_LINE, Plan};
use crate::program::CounterId;

/// The numbers of a tensor map, in elements and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapShape {
    /// {columns, rows in a chunk, chunks or slots, ranks}; the first two change places where rows are contiguous.
    pub dims: [u64; 4],
    /// Bytes from a row to the next and from a chunk to the next; from a rank to the next it is the heap's stride.
    pub strides: [u64; 2],
    /// {columns, rows, 1, 1} of a box.
    pub boxed: [u32; 4],
    /// Bytes from the tensor's start (on rank 0, if it is everyone's) to the map's.
    pub offset: u64,
}

impl Pipeline {
    /// A field's value on `rank`; `None` for addresses and the heap's stride.
    pub fn value(&self, field: Field, plan: &Plan, machine: &Machine, rank: u32) -> Option<u64> {
        let geometry = &plan.geometry;
        Some(match field {
            Field::Size(dim) => geometry.size(dim).into(),
            Field::ChunkRows(dim) => geometry.chunk_rows(dim).into(),
            Field::Tail(dim) => tail(plan, dim).into(),
            Field::Me => rank.into(),
            Field::World => geometry.world.into(),
            Field::First(counter) => self.first_cell(plan, counter),
            Field::CellRows(partition) => {
                let item = &self.kernel.partitions[partition.index()];
                let columns = item
                    .column_block
                    .map_or(1, |block| geometry.size(item.columns).div_ceil(block));
                let chunks = geometry.partition_chunks(partition);
                geometry.cells(partition) / u64::from(columns.max(1)) / u64::from(chunks.max(1))
            }
            Field::Join => self.join(plan, machine).into(),
            Field::Counters => self.counters_at(plan),
            Field::Heap | Field::Stride | Field::Arrivals | Field::Finished | Field::Vector(_) => {
                return None;
            }
        })
    }

    /// How much arrives at each cell of `rank` in one launch: what [`Field::Arrivals`] points at.
    pub fn arrivals(&self, plan: &Plan, rank: u32) -> Vec<u32> {
        let at = self.counters_at(plan);
        let cells = plan.heap.bytes.saturating_sub(at) / COUNTER_LINE;
        let mut table = vec![0; usize::try_from(cells).unwrap_or(0)];
        for index in 0..self.kernel.counters.len() {
            let counter = CounterId(index as u16);
            let scale = self.scale.iter().find(|(scaled, _)| *scaled == counter);
            let scale = scale.map_or(1, |(_, by)| {
                by.eval(&Numbers {
                    pipeline: self,
                    plan,
                })
            });
            let first = usize::try_from(self.first_cell(plan, counter)).unwrap_or(0);
            for cell in 0..plan.geometry.counter_cells(counter) {
                table[first + cell as usize] = plan.arrivals.of(rank as u16, counter, cell) * scale;
            }
        }
        table
    }

    /// A map's numbers on `rank`. The sibling for the short chunk has some shape even where there is no such chunk.
    pub fn map_shape(&self, map: MapId, short: bool, plan: &Plan, rank: u32) -> MapShape {
        let map = self.map(map);
        let buffer = &self.kernel.buffers[map.tensor.index()];
        let geometry = &plan.geometry;
        let bytes = u64::from(buffer.dtype.bytes());
        let columns = u64::from(geometry.size(buffer.columns));
        let ld = plan
            .shape
            .ld
            .get(&buffer.name)
            .copied()
            .map_or(columns, u64::from);
        let chunk_rows = u64::from(geometry.chunk_rows(buffer.rows));
        let (world, chunks) = (
            u64::from(geometry.world),
            u64::from(geometry.chunks(buffer.rows)),
        );
        let held = u64::from(geometry.held(buffer, rank).len());
        let (rows, middle, ranks) = match map.view {
            View::Flat => (held, 1, 1),
            View::Chunks => (chunk_rows, chunks, 1),
            View::SharedChunks => (chunk_rows, chunks, world),
            View::SharedSlots => (chunk_rows, u64::from(buffer.slots(geometry.world)), world),
            View::SharedChunk => (chunk_rows, 1, world),
        };
        let mut shape = MapShape {
            dims: [columns, rows.max(1), middle, ranks],
            strides: [ld * bytes, chunk_rows.max(1) * ld * bytes],
            boxed: [map.box_columns, map.box_rows, 1, 1],
            offset: 0,
        };
        if buffer.rows_contiguous {
            let ld = plan.shape.ld.get(&buffer.name).copied();
            let ld = u64::from(ld.unwrap_or_else(|| geometry.contiguous(buffer)));
            shape.dims.swap(0, 1);
            shape.boxed.swap(0, 1);
            shape.strides = [ld * bytes, columns * ld * bytes];
        }
        let chunk = tail(plan, buffer.rows);
        if short && chunk < geometry.world {
            shape.dims[1] = u64::from(geometry.chunk(buffer.rows, chunk).len());
            shape.dims[2] = 1;
            shape.offset = u64::from(chunk) * shape.strides[1];
        }
        shape
    }

    /// Where the counters start in the heap: behind the symmetric buffers.
    fn counters_at(&self, plan: &Plan) -> u64 {
        let buffers = self
            .kernel
            .buffers
            .iter()
            .filter(|buffer| buffer.kind.symmetric())
            .count();
        plan.heap
            .entries
            .get(buffers)
            .map_or(plan.heap.bytes, |(_, offset, _)| *offset)
    }

    fn first_cell(&self, plan: &Plan, counter: CounterId) -> u64 {
        let buffers = self
            .kernel
            .buffers
            .iter()
            .filter(|buffer| buffer.kind.symmetric())
            .count();
        let entry = plan.heap.entries.get(buffers + counter.index());
        entry.map_or(0, |(_, offset, _)| {
            (*offset - self.counters_at(plan)) / COUNTER_LINE
        })
    }

    /// Waves of tiles that pass while the CTAs that move data are busy.
    fn join(&self, plan: &Plan, machine: &Machine) -> u32 {
        let Some(comm) = self.comm.filter(|_| plan.geometry.world > 1) else {
            return 0;
        };
        let geometry = &plan.geometry;
        let mut bytes = 0;
        for role in self
            .kernel
            .roles
            .iter()
            .filter(|role| !role.kind.sequential())
        {
            visit(&role.body, &mut |op| {
                if let OpKind::Copy { src, .. } = &op.kind {
                    let buffer = &self.kernel.buffers[src.buffer.index()];
                    bytes += u64::from(geometry.chunk_rows(buffer.rows))
                        * u64::from(geometry.size(buffer.columns))
                        * u64::from(buffer.dtype.bytes());
                }
            });
        }
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let bytes = (bytes * u64::from(geometry.world - 1)) as f64;
        let rate = (machine.link_push_cta * f64::from(comm.ctas)).min(machine.link_push);
        let k = self.kernel.buffers[self.map(MapId(0)).tensor.index()].columns;
        let flops = 2.0
            * f64::from(self.tile.rows)
            * f64::from(self.tile.columns)
            * f64::from(geometry.size(k));
        let wave = flops * f64::from(machine.sms) / machine.flops_of(self.dtype);
        let waves = (bytes / rate + machine.launch_latency) / wave;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to what a grid can have"
        )]
        let waves = waves.ceil().clamp(0.0, 65535.0) as u32;
        waves
    }
}

/// The chunk that has some rows, but not all; the world if there is none.
fn tail(plan: &Plan, dim: DimId) -> u32 {
    let geometry = &plan.geometry;
    let short =
        |chunk: &u32| (1..geometry.chunk_rows(dim)).contains(&geometry.chunk(dim, *chunk).len());
    (0..geometry.chunks(dim))
        .find(short)
        .unwrap_or(geometry.world)
}

/// Numbers that depend on nothing but the plan.
struct Numbers<'a> {
    pipeline: &'a Pipeline,
    plan: &'a Plan,
}

impl Values for Numbers<'_> {
    fn var(&self, name: &str) -> u32 {
        let known = self.pipeline.lets.iter().find(|(known, _)| known == name);
        known.map_or(0, |(_, value): &(String, Expr)| value.eval(self))
    }
    fn field(&self, field: Field) -> u32 {
        match field {
            Field::Size(dim) => self.plan.geometry.size(dim),
            Field::ChunkRows(dim) => self.plan.geometry.chunk_rows(dim),
            Field::World => self.plan.geometry.world,
            Field::Tail(_)
            | Field::Me
            | Field::First(_)
            | Field::CellRows(_)
            | Field::Join
            | Field::Heap
            | Field::Stride
            | Field::Counters
            | Field::Arrivals
            | Field::Finished
            | Field::Vector(_) => 0,
        }
    }
    fn rows_of(&self, dim: DimId, chunk: u32) -> u32 {
        self.plan.geometry.chunk(dim, chunk).len()
    }
    fn block(&self) -> (u32, u32) {
        (0, 1)
    }
    fn within(&self) -> u32 {
        0
    }
}
