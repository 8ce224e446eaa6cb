//! The values that the host passes at launch, from a plan: numbers, arrivals and tensor maps.

use crate::kernel::{DimId, OpKind, Role, visit};
use crate::machine::Machine;
use crate::order::ByStep;
use crate::plan::Plan;
use crate::program::CounterId;
use crate::warp::{Expr, Field, MOST_STEPS, MapId, OrderId, Pipeline, Values, View};

/// The numbers of a tensor map, in elements and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapShape {
    /// {columns, rows in a shard, shards or slots, ranks}. The first two are swapped if rows are contiguous.
    pub dims: [u64; 4],
    /// Bytes from a row to the next and from a shard to the next. From a rank to the next it is the heap's stride.
    pub strides: [u64; 2],
    /// {columns, rows, 1, 1} of a box.
    pub boxed: [u32; 4],
    /// True if it is of 16 bytes that are zero, since the tensor has no elements. TMA reads the rest as zero, too.
    pub zeros: bool,
}

impl MapShape {
    /// In the place of a tensor without elements.
    fn zeros(element: u32, boxed: [u32; 4]) -> MapShape {
        MapShape {
            dims: [u64::from(LINE / element), 1, 1, 1],
            strides: [LINE.into(); 2],
            boxed,
            zeros: true,
        }
    }
}

/// Bytes of the smallest line that TMA reads.
const LINE: u32 = 16;

impl Pipeline {
    /// A field's value on `rank`; `None` for addresses, the heap's stride and tables.
    pub fn value(&self, field: Field, plan: &Plan, machine: &Machine, rank: u32) -> Option<u64> {
        let geometry = &plan.geometry;
        Some(match field {
            Field::Size(dim) => size(plan, dim).into(),
            Field::ShardRows(dim) => geometry.shard_rows(dim).into(),
            Field::PartialShard(dim) => partial_shard(plan, dim).into(),
            Field::Me => rank.into(),
            Field::World => geometry.world.into(),
            Field::First(counter) => first_cell(plan, counter).into(),
            Field::CellRows(partition) => geometry.cell_rows(partition).into(),
            Field::Line(tensor) => {
                let element = self.kernel.buffers[tensor.index()].dtype.bytes();
                plan.pitch(&self.kernel, tensor) / u64::from(element)
            }
            Field::LateJoin => self.late_join(plan, machine).into(),
            Field::Order(_)
            | Field::Heap
            | Field::HeapEverywhere
            | Field::Stride
            | Field::Counters
            | Field::Arrivals
            | Field::Finished
            | Field::Vector(_) => {
                return None;
            }
        })
    }

    /// The ranks that an order visits from `rank`, step by step: what [`Field::Order`] holds. Behind them are zeros.
    pub fn ordered(&self, order: OrderId, plan: &Plan, rank: u32) -> [u8; MOST_STEPS as usize] {
        let (world, by) = (plan.geometry.world, &self.order_table(order).by);
        let mut table = [0; MOST_STEPS as usize];
        for (at, step) in table.iter_mut().zip(0..world) {
            // The tile level refuses ranks that do not exist, and there are at most 128.
            *at = u8::try_from(by.at(rank, step, world)).unwrap_or(u8::MAX);
        }
        table
    }

    /// Cells of all counters on each rank, counter by counter.
    pub fn cells(&self, plan: &Plan) -> u32 {
        first_cell(plan, CounterId(self.kernel.counters.len() as u16))
    }

    /// Arrivals at each cell of `rank` in one launch: the numbers that [`Field::Arrivals`] points at.
    pub fn arrivals(&self, plan: &Plan, rank: u32) -> Vec<u32> {
        let mut table = Vec::with_capacity(self.cells(plan) as usize);
        for index in 0..self.kernel.counters.len() {
            let counter = CounterId(index as u16);
            let scale = self.scale(counter, plan);
            let cells = 0..plan.geometry.counter_cells(counter);
            table.extend(cells.map(|cell| plan.arrivals.of(rank as u16, counter, cell) * scale));
        }
        table
    }

    /// Arrivals that a cell of the counter gets for each that the kernel counts.
    pub fn scale(&self, counter: CounterId, plan: &Plan) -> u32 {
        let scale = self.scale.iter().find(|(scaled, _)| *scaled == counter);
        scale.map_or(1, |(_, by)| {
            by.eval(&Numbers {
                pipeline: self,
                plan,
            })
        })
    }

    /// A map's numbers on `rank`. The sibling for the partial shard, `short`, has a shape even without such a shard.
    pub fn map_shape(&self, map: MapId, short: bool, plan: &Plan, rank: u32) -> MapShape {
        let map = self.map(map);
        let buffer = &self.kernel.buffers[map.tensor.index()];
        let geometry = &plan.geometry;
        let columns = u64::from(geometry.size(buffer.columns));
        let pitch = plan.pitch(&self.kernel, map.tensor);
        let divided = map.divided(&self.kernel);
        // Of what the ranks divide: elements of a full shard, and how many shards there are.
        let of_shard = u64::from(geometry.shard_rows(divided));
        let (world, shards) = (
            u64::from(geometry.world),
            u64::from(geometry.shards(divided)),
        );
        let held = u64::from(geometry.held(buffer, rank).len());
        let (long, middle, ranks) = match map.view {
            View::Flat => (held, 1, 1),
            View::Shards | View::ColumnShards => (of_shard, shards, 1),
            View::SharedShards => (of_shard, shards, world),
            View::SharedSlots => (of_shard, u64::from(buffer.slots(geometry.world)), world),
            View::SharedSlotShards => {
                let slots = u64::from(buffer.slots(geometry.world));
                (of_shard, slots * shards, world)
            }
            View::SharedShard => (of_shard, 1, world),
            View::SharedRows => {
                let rows = u64::from(geometry.size(buffer.rows));
                (rows, u64::from(buffer.slots(geometry.world)), world)
            }
        };
        let partial_shard = partial_shard(plan, divided);
        let long = if short && partial_shard < geometry.world {
            geometry.shard(divided, partial_shard).len().into()
        } else {
            long
        };
        let (rows, across, plane) = match map.view {
            View::ColumnShards => (held, long, of_shard * u64::from(buffer.dtype.bytes())),
            View::Flat
            | View::Shards
            | View::SharedShards
            | View::SharedSlots
            | View::SharedSlotShards
            | View::SharedShard
            | View::SharedRows => {
                // If rows are contiguous, every shard is a separate matrix, whose lines are its columns.
                let lines = match map.view {
                    _ if buffer.mn_major => columns,
                    View::SharedRows => of_shard * shards,
                    View::Flat
                    | View::Shards
                    | View::ColumnShards
                    | View::SharedShards
                    | View::SharedSlots
                    | View::SharedSlotShards
                    | View::SharedShard => of_shard,
                };
                (long, columns, lines.max(1) * pitch)
            }
        };
        let mut boxed = [map.box_columns, map.box_rows, 1, 1];
        if buffer.mn_major {
            boxed.swap(0, 1);
        }
        if geometry.is_empty(buffer) {
            return MapShape::zeros(buffer.dtype.bytes(), boxed);
        }
        let mut shape = MapShape {
            // TMA's encoder rejects an empty map, so encode one row that nobody visits.
            dims: [across.max(1), rows.max(1), middle.max(1), ranks],
            strides: [pitch, plane],
            boxed,
            zeros: false,
        };
        if buffer.mn_major {
            shape.dims.swap(0, 1);
        }
        shape
    }

    /// The waves of tiles while the comm CTAs are busy.
    fn late_join(&self, plan: &Plan, machine: &Machine) -> u32 {
        let comm = self.comm.as_ref().filter(|_| plan.geometry.world > 1);
        let Some(comm) = comm else {
            return 0;
        };
        let geometry = &plan.geometry;
        let copied = |role: &Role| {
            let mut bytes = 0;
            visit(&role.body, &mut |op| {
                if let OpKind::Copy { src, .. } = &op.kind {
                    let buffer = &self.kernel.buffers[src.buffer.index()];
                    bytes += u64::from(geometry.shard_rows(buffer.rows))
                        * u64::from(geometry.size(buffer.columns))
                        * u64::from(buffer.dtype.bytes());
                }
            });
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let bytes = (bytes * u64::from(geometry.world - 1)) as f64;
            bytes
        };
        let roles = self.kernel.roles.iter();
        let all: f64 = (roles.filter(|role| !role.kind.sequential()).map(copied)).sum();
        // All share the link, and the slowest role decides.
        let moved = comm.roles.iter().map(|of| {
            let bytes = copied(&self.kernel.roles[of.role]);
            bytes / (machine.link_push_cta * f64::from(of.ctas))
        });
        let moved = moved.fold(all / machine.link_push, f64::max);
        let elements = f64::from(self.tile().rows) * f64::from(self.tile().columns);
        let wave = if self.tiling().operands().is_empty() {
            // A tile is read at least once, and written.
            let each = elements * f64::from(2 * self.tiling().widest());
            each * f64::from(machine.sms) / machine.memory
        } else {
            let k = self.kernel.buffers[self.map(MapId(0)).tensor.index()].columns;
            let flops = 2.0 * elements * f64::from(size(plan, k));
            flops / machine.flops_of(self.dtype(), f64::from(machine.sms))
        };
        let waves = (moved + machine.sm.launch_latency) / wave;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to what a grid can have"
        )]
        let waves = waves.ceil().clamp(0.0, 65535.0) as u32;
        waves
    }
}

/// A size as a kernel takes it. Where products have no depth, it multiplies one step of zeros by zeros: see
/// [`MapShape::zeros`].
fn size(plan: &Plan, dim: DimId) -> u32 {
    plan.geometry.size(dim).max(1)
}

/// The first cell of a counter among all cells of a rank.
fn first_cell(plan: &Plan, counter: CounterId) -> u32 {
    let before = (0..counter.0).map(|index| plan.geometry.counter_cells(CounterId(index)));
    before.sum()
}

/// The partial shard. The world size if there is none.
fn partial_shard(plan: &Plan, dim: DimId) -> u32 {
    let geometry = &plan.geometry;
    let short =
        |shard: &u32| (1..geometry.shard_rows(dim)).contains(&geometry.shard(dim, *shard).len());
    (0..geometry.shards(dim))
        .find(short)
        .unwrap_or(geometry.world)
}

/// Numbers that depend only on the plan.
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
            Field::Size(dim) => size(self.plan, dim),
            Field::ShardRows(dim) => self.plan.geometry.shard_rows(dim),
            Field::World => self.plan.geometry.world,
            Field::PartialShard(_)
            | Field::Me
            | Field::First(_)
            | Field::CellRows(_)
            | Field::Line(_)
            | Field::LateJoin
            | Field::Order(_)
            | Field::Heap
            | Field::HeapEverywhere
            | Field::Stride
            | Field::Counters
            | Field::Arrivals
            | Field::Finished
            | Field::Vector(_) => 0,
        }
    }
    fn rows_of(&self, dim: DimId, shard: u32) -> u32 {
        self.plan.geometry.shard(dim, shard).len()
    }
    fn ordered(&self, _: OrderId, _: u32) -> u32 {
        0
    }
    fn block(&self) -> (u32, u32) {
        (0, 1)
    }
    fn within(&self) -> u32 {
        0
    }
}
