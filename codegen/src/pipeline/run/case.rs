//! The small case that all warps run: three ranks, ragged chunks, two launches.

use super::super::{BOX_COLUMNS, CONSUMERS, Field, Pipeline, UNIT, Values, View};
use crate::diag::Diagnostics;
use crate::kernel::{DimId, OpKind, visit};
use crate::model::Machine;
use crate::plan::Plan;
use crate::program::{CounterId, StoreMode, TensorId};
use crate::shape::Shape;
use crate::variant::Variant;
use std::collections::HashMap;

/// Ranks of the case.
pub(super) const WORLD: u32 = 3;
/// Launches of the case: the second shows what the first forgot.
pub(super) const LAUNCHES: u32 = 2;

/// The numbers of the case.
pub(super) struct Case<'a> {
    pub pipeline: &'a Pipeline,
    pub plan: Plan,
    /// CTAs of a rank.
    pub blocks: u32,
    /// What products multiply.
    pub operands: Vec<TensorId>,
    first: Vec<u32>,
    /// Cells of a rank.
    pub cells: u32,
}

impl<'a> Case<'a> {
    /// Of so many steps, instead of one more than the ring has stages.
    pub fn new(pipeline: &'a Pipeline, steps: Option<u32>) -> Result<Case<'a>, Diagnostics> {
        let mut kernel = (*pipeline.kernel).clone();
        kernel.variant = Variant {
            world: WORLD,
            ..kernel.variant
        };
        let tile = pipeline.tile;
        // Chunks of one and a half tiles, the last one two rows short; columns that no tile divides; and one step more
        // of K than the ring has stages. Along either, the last of a cluster's tiles is wholly outside, and there are
        // more of them, so that each warpgroup has several in turn; of what its CTAs load half the rows each of, the last
        // has more than one half. A copied piece has two units.
        let rows = tile.rows + tile.rows / 2;
        let (down, across) = pipeline.cluster;
        let [x_in_halves, w_in_halves] = {
            let [x_rows, w_rows] = kernel.variant.layout.rows_contiguous();
            [across > 1 && !x_rows, down > 1 && !w_rows].map(u32::from)
        };
        let m = rows * WORLD - 2 + tile.rows / 4 * x_in_halves;
        let (n, k) = (
            tile.columns * pipeline.beside() + tile.columns / 2 * w_in_halves + 8,
            if let Some(steps) = steps {
                (steps - 1) * tile.k + 8
            } else if pipeline.comm.is_some() {
                (UNIT + 1) * BOX_COLUMNS
            } else {
                // Where steps are shared, each has as many as the ring has stages, and one of them one more.
                pipeline.split * pipeline.rings[0].slots * tile.k + 8
            },
        );
        let mut shape = Shape::new(m, n, k);
        for buffer in kernel
            .buffers
            .iter()
            .filter(|buffer| buffer.rows_contiguous)
        {
            // Lines of whole 16 bytes, however many rows there are.
            shape
                .ld
                .insert(buffer.name.clone(), m.max(n).next_multiple_of(8));
        }
        let plan = Plan::new(&kernel, &shape, &Machine::h200())?;
        let mut first = Vec::new();
        let mut cells = 0;
        for index in 0..kernel.counters.len() {
            first.push(cells);
            cells += plan.geometry.counter_cells(CounterId(index as u16));
        }
        let blocks = (2 + comm_ctas(pipeline)) * pipeline.ctas();
        let mut operands = Vec::new();
        for role in &kernel.roles {
            visit(&role.body, &mut |op| {
                if let OpKind::Dot { a, b, .. } = &op.kind {
                    operands = vec![a.buffer, b.buffer];
                }
            });
        }
        Ok(Case {
            pipeline,
            plan,
            blocks,
            operands,
            first,
            cells,
        })
    }

    /// Whether stores add to a tensor.
    pub fn adds(&self, tensor: TensorId) -> bool {
        let mut adds = false;
        for role in &self.pipeline.kernel.roles {
            visit(&role.body, &mut |op| {
                adds |= matches!(
                    &op.kind,
                    OpKind::Store {
                        dst,
                        mode: StoreMode::Add,
                        ..
                    } if dst.buffer == tensor
                );
            });
        }
        adds
    }

    /// The first cell of a counter.
    pub fn first(&self, counter: CounterId) -> u32 {
        self.first[counter.index()]
    }

    /// The counter of a cell, and the cell's number in it.
    pub fn counter_of(&self, cell: u32) -> (CounterId, u32) {
        let counter = self
            .first
            .iter()
            .rposition(|first| *first <= cell)
            .unwrap_or(0);
        (CounterId(counter as u16), cell - self.first[counter])
    }

    /// Whether the host's copies signal a cell: they are not part of the case.
    pub fn host_signals(&self, cell: u32) -> bool {
        let (counter, _) = self.counter_of(cell);
        let mut found = false;
        for role in self
            .pipeline
            .kernel
            .roles
            .iter()
            .filter(|role| role.kind.sequential())
        {
            visit(&role.body, &mut |op| {
                if let OpKind::Signal { cells, .. } = &op.kind {
                    found |= cells.counter == counter;
                }
            });
        }
        found
    }

    /// How much arrives at a rank's cell in one launch, by what the pipeline sends for each signal of the kernel.
    pub fn arrivals(&self, rank: u32, cell: u32) -> u64 {
        let (counter, within) = self.counter_of(cell);
        let amount = u64::from(self.plan.arrivals.of(rank as u16, counter, within));
        let scale = self
            .pipeline
            .scale
            .iter()
            .find(|(scaled, _)| *scaled == counter);
        let env = Env::new(self, rank, 0);
        amount * scale.map_or(1, |(_, by)| u64::from(by.eval(&env)))
    }

    /// The rows that a plane of a tensor's map has in memory, and those of them that a store may touch.
    pub fn rows(&self, tensor: TensorId, view: View, chunk: u32, rank: u32) -> (u32, u32) {
        let buffer = &self.pipeline.kernel.buffers[tensor.index()];
        let geometry = &self.plan.geometry;
        match view {
            View::Flat => {
                let held = geometry.held(buffer, rank).len();
                (held, held)
            }
            View::Chunks => (
                geometry.chunk_rows(buffer.rows),
                geometry.chunk(buffer.rows, chunk).len(),
            ),
            View::SharedChunks | View::SharedSlots | View::SharedChunk => {
                let rows = geometry.chunk_rows(buffer.rows);
                (rows, rows)
            }
        }
    }
}

/// What variables stand for in one role of one CTA.
pub(super) struct Env<'a> {
    case: &'a Case<'a>,
    pub rank: u32,
    block: u32,
    pub vars: HashMap<String, u32>,
    pub index: u32,
    pub first: u32,
}

impl<'a> Env<'a> {
    pub fn new(case: &'a Case<'a>, rank: u32, block: u32) -> Self {
        let mut env = Env {
            case,
            rank,
            block,
            vars: HashMap::new(),
            index: 0,
            first: 0,
        };
        let (rank, beside) = (block % case.pipeline.ctas(), case.pipeline.beside());
        env.vars.insert("half".into(), rank % beside);
        env.vars.insert("share".into(), rank / beside);
        for (name, value) in &case.pipeline.lets {
            let value = value.eval(&env);
            env.vars.insert(name.clone(), value);
        }
        env
    }
}

impl Values for Env<'_> {
    fn var(&self, name: &str) -> u32 {
        self.vars.get(name).copied().unwrap_or(0)
    }

    fn field(&self, field: Field) -> u32 {
        let geometry = &self.case.plan.geometry;
        match field {
            Field::Size(dim) => geometry.size(dim),
            Field::ChunkRows(dim) => geometry.chunk_rows(dim),
            Field::Tail(dim) => {
                let short = |chunk: &u32| {
                    (1..geometry.chunk_rows(dim)).contains(&geometry.chunk(dim, *chunk).len())
                };
                (0..WORLD).find(short).unwrap_or(WORLD)
            }
            Field::Me => self.rank,
            Field::World => WORLD,
            Field::First(counter) => self.case.first(counter),
            Field::CellRows(partition) => {
                let (rows, _) = geometry.grid(partition, None);
                rows
            }
            Field::Join => 1,
            Field::Heap
            | Field::Stride
            | Field::Counters
            | Field::Arrivals
            | Field::Finished
            | Field::Vector(_) => 0,
        }
    }

    fn rows_of(&self, dim: DimId, chunk: u32) -> u32 {
        self.case.plan.geometry.chunk(dim, chunk).len()
    }

    fn block(&self) -> (u32, u32) {
        (self.block, self.case.blocks)
    }

    fn within(&self) -> u32 {
        self.index.wrapping_sub(self.first)
    }

    fn symbol(&self, name: &str, value: u32) -> u32 {
        if name == "COMM_CTAS" {
            comm_ctas(self.case.pipeline)
        } else {
            value
        }
    }
}

/// CTAs of the case that move data: at most two, so that each has several units in turn.
pub(super) fn comm_ctas(pipeline: &Pipeline) -> u32 {
    pipeline.comm.map_or(0, |comm| comm.ctas.min(2))
}

const _: () = assert!(CONSUMERS == 2);
