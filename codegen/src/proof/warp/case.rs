//! The small case that all warps run: a few ranks, ragged shards, and launches of one series.

mod views;

use super::launches::Launches;
use super::step::Box4;
use crate::diag::{Diagnostic, Rule};
use crate::kernel::{DimId, OpKind, RoleKind, visit};
use crate::order::{ByStep, RankTable};
use crate::plan::Plan;
use crate::program::{CounterId, Home, Loc, Pick, StoreMode, TensorId};
use crate::proof::tile::{Accessor, Announced, Before, Order, Part, Wait};
use crate::shape::{Extent, Geometry};
use crate::value::AccId;
use crate::warp::{CONSUMERS, Field, OrderId, Pipeline, Symbol, Values};
use std::cell::RefCell;

/// The one term of a sum that the switch makes of every rank's copy.
pub(super) const EVERY_COPY: u32 = u32::MAX;

/// The numbers of launches of one shape.
pub(super) struct Sizes {
    pub plan: Plan,
    /// Accesses that the tile level puts before each access, and before the signals of each cell.
    order: Order,
    /// Arrivals that the pipeline sends for each that the kernel counts, by counter.
    scale: Vec<u64>,
    /// Arrivals at each cell of each rank, by what the pipeline sends for each signal of the kernel.
    arrivals: Vec<u64>,
}

/// The roles of a kernel that its agents stand for, by their index.
#[derive(Clone, Copy)]
pub(super) struct Roles {
    pub gemm: usize,
    /// The copy engine's, if there is one.
    pub host: Option<usize>,
}

/// The numbers of the case.
pub(super) struct Case<'a> {
    pub pipeline: &'a Pipeline,
    /// The shapes of its launches.
    sizes: Vec<Sizes>,
    /// Index of the plan of each launch.
    order: Vec<usize>,
    /// The orders of ranks that are tables.
    orders: Vec<RankTable>,
    /// Ranks.
    pub world: u32,
    pub roles: Roles,
    /// CTAs of a rank.
    pub blocks: u32,
    first: Vec<u32>,
    /// Cells of a rank.
    pub cells: u32,
}

impl<'a> Case<'a> {
    /// Case of these launches.
    pub fn new(pipeline: &'a Pipeline, launches: Launches) -> Case<'a> {
        let Launches {
            kernel,
            plans,
            order,
        } = launches;
        let mut first = Vec::new();
        let mut cells = 0;
        for index in 0..kernel.counters.len() {
            first.push(cells);
            cells += plans[0].geometry.counter_cells(CounterId(index as u16));
        }
        let role =
            |is: &dyn Fn(RoleKind) -> bool| kernel.roles.iter().position(|role| is(role.kind));
        let gemm = role(&|kind| matches!(kind, RoleKind::Gemm(_)));
        let roles = Roles {
            gemm: gemm.unwrap_or(0),
            host: role(&RoleKind::sequential),
        };
        let sizes = plans.into_iter().map(|plan| Sizes {
            order: Order::of(&kernel, &plan),
            plan,
            scale: Vec::new(),
            arrivals: Vec::new(),
        });
        let sizes = sizes.collect();
        let comm = pipeline.comm.iter().flat_map(|comm| &comm.roles);
        let comm: u32 = comm.map(|role| comm_ctas(role.ctas)).sum();
        let world = kernel.variant.world;
        let orders = pipeline.orders.iter().map(|table| &table.by);
        let orders = orders.map(|by| by.within(world).unwrap_or_else(|| by.clone()));
        let orders = orders.collect();
        let multiplying = if gemm.is_some() { 2 } else { 0 };
        let blocks = (multiplying + comm) * pipeline.cta.ctas();
        let mut case = Case {
            pipeline,
            sizes,
            order,
            orders,
            world,
            roles,
            blocks,
            first,
            cells,
        };
        for plan in 0..case.sizes.len() {
            case.count(plan);
        }
        case
    }

    /// Counts what arrives in launches of a shape.
    fn count(&mut self, plan: usize) {
        let env = Env::new(self, plan, 0, 0);
        let scaled = &self.pipeline.scale;
        let counters = (0..self.first.len() as u16).map(CounterId);
        let scale: Vec<u64> = counters
            .map(|counter| {
                let scale = scaled.iter().find(|(scaled, _)| *scaled == counter);
                scale.map_or(1, |(_, by)| by.eval(&env).into())
            })
            .collect();
        let counted = &self.plan(plan).arrivals;
        let cells = (0..self.world).flat_map(|rank| (0..self.cells).map(move |cell| (rank, cell)));
        let arrivals = cells.map(|(rank, cell)| {
            let (counter, within) = self.counter_of(cell);
            u64::from(counted.of(rank as u16, counter, within)) * scale[counter.index()]
        });
        self.sizes[plan].arrivals = arrivals.collect();
        self.sizes[plan].scale = scale;
    }

    /// Number of shapes of its launches.
    pub fn plans(&self) -> usize {
        self.sizes.len()
    }

    /// Plan of a launch; launches are counted from 1.
    pub fn plan_of(&self, launch: u32) -> usize {
        self.order[launch as usize - 1]
    }

    /// A plan.
    pub fn plan(&self, plan: usize) -> &Plan {
        &self.sizes[plan].plan
    }

    /// Geometry of a plan.
    pub fn geometry(&self, plan: usize) -> &Geometry {
        &self.plan(plan).geometry
    }

    /// Number of launches.
    pub fn last(&self) -> u32 {
        self.order.len() as u32
    }

    /// True if stores add to a tensor.
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

    /// The slots that a sum into an accumulator adds on a rank, and the rank itself where its own term has its turn, in order, and
    /// whether that is made there instead of read from its slot; `None` where no sum fills it.
    pub fn summed(&self, acc: AccId, rank: u32) -> Option<(Vec<u32>, bool)> {
        let kernel = &self.pipeline.kernel;
        let mut found = None;
        for role in &kernel.roles {
            visit(&role.body, &mut |op| {
                let OpKind::Reduce {
                    acc: filled,
                    from,
                    own,
                } = &op.kind
                else {
                    return;
                };
                let all = from.slot == Some(Pick::All);
                let buffer = &kernel.buffers[from.buffer.index()];
                let slots = 0..match all {
                    true => buffer.slots_of_all(self.world),
                    false => buffer.slots(self.world),
                };
                let added = |slot: &u32| all || own.is_some() || *slot != rank;
                if *filled == acc && from.home == Home::Everywhere {
                    found = Some((vec![EVERY_COPY], false));
                } else if *filled == acc {
                    found = Some((slots.filter(added).collect(), own.is_some()));
                }
            });
        }
        found
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

    /// Arrivals that the pipeline sends for each that the kernel counts.
    pub fn scale(&self, plan: usize, counter: CounterId) -> u64 {
        self.sizes[plan].scale[counter.index()]
    }

    /// Arrivals at a rank's cell in one launch.
    pub fn arrivals(&self, launch: u32, rank: u32, cell: u32) -> u64 {
        self.sizes[self.plan_of(launch)].arrivals[(rank * self.cells + cell) as usize]
    }

    /// Arrivals at a rank's cell after so many launches.
    pub fn arrived(&self, launches: u32, rank: u32, cell: u32) -> u64 {
        (1..=launches)
            .map(|launch| self.arrivals(launch, rank, cell))
            .sum()
    }

    /// True if the tile level has that accessor access all of a box.
    pub fn accesses(&self, accessor: &Accessor, at: &Box4) -> bool {
        let blocks = self.blocks(accessor, at).iter();
        let within = |rows: Extent, columns: Extent| {
            common(at.all, span(rows)) * common(at.columns, span(columns))
        };
        let accessed: u64 = blocks.map(|block| within(block.rows, block.columns)).sum();
        accessed >= common(at.all, at.all) * common(at.columns, at.columns)
    }

    /// True if it has another of the kernel's roles do that, on any rank.
    pub fn others_access(&self, accessor: &Accessor, at: &Box4) -> bool {
        let ranks = (0..self.world).flat_map(|rank| {
            let roles = 0..self.pipeline.kernel.roles.len();
            roles.map(move |role| (rank, role))
        });
        let mut others = ranks.map(|(rank, role)| Accessor {
            rank,
            role,
            ..*accessor
        });
        others.any(|other| other != *accessor && self.accesses(&other, at))
    }

    /// Of how many elements the tile level puts conflicting accesses before the access of a box, at least and at most: an
    /// element counts as often as it is accessed.
    pub fn before(&self, accessor: &Accessor, at: &Box4) -> (u64, u64) {
        let blocks = self.blocks(accessor, at);
        blocks.iter().fold((0, 0), |(least, most), block| {
            let elements =
                common(at.all, span(block.rows)) * common(at.columns, span(block.columns));
            let times = |accesses: u32| elements * u64::from(accesses);
            (
                least + times(block.accesses.0),
                most + times(block.accesses.1),
            )
        })
    }

    /// The waits that the tile level puts before the access of a box, each for a cell of the accessor's rank. A box may reach
    /// beyond its tile, into rows that nobody uses: only the waits for all parts of the box are for what its tile has.
    pub fn waits(&self, accessor: &Accessor, at: &Box4) -> impl Iterator<Item = &Wait> {
        let (all, columns) = (at.all, at.columns);
        let blocks = self.blocks(accessor, at).iter();
        let mut parts = blocks.filter(move |block| {
            common(all, span(block.rows)) * common(columns, span(block.columns)) > 0
        });
        let first = parts.next().map_or(&[][..], |part| &part.waits);
        let in_all = move |wait: &&Wait| parts.clone().all(|part| part.waits.contains(wait));
        first.iter().filter(in_all)
    }

    /// The blocks of what the tile level has an accessor access that have rows of a box.
    fn blocks(&self, accessor: &Accessor, at: &Box4) -> &[Before] {
        let Some(blocks) = self.sizes[at.plan].order.before.get(accessor) else {
            return &[];
        };
        // They are in the order of their rows.
        let first = blocks.partition_point(|block| block.rows.end <= at.all.0);
        let end = blocks.partition_point(|block| block.rows.start < at.all.1);
        blocks.get(first..end).unwrap_or(&[])
    }

    /// Accesses that the tile level puts before the signals of a rank's cell in launches of a plan.
    pub fn announced(&self, plan: usize, rank: u32, cell: u32) -> Option<&Announced> {
        let (counter, within) = self.counter_of(cell);
        self.sizes[plan]
            .order
            .announced
            .get(&(rank, counter, within))
    }

    /// The signals that must precede the end of a rank's wait for a part of what arrives in a launch of a plan.
    pub fn parts(&self, plan: usize, rank: u32, (cell, at_least): (u32, u64)) -> &[Part] {
        let (counter, cell) = self.counter_of(cell);
        let wait = Wait {
            counter,
            cell,
            at_least: u32::try_from(at_least / self.scale(plan, counter)).ok(),
        };
        let parts = self.sizes[plan].order.parts.get(&(rank, wait));
        parts.map_or(&[], Vec::as_slice)
    }
}

/// Size of the intersection of two ranges.
pub(super) fn common(a: (u32, u32), b: (u32, u32)) -> u64 {
    u64::from(a.1.min(b.1).saturating_sub(a.0.max(b.0)))
}

pub(super) fn span(extent: Extent) -> (u32, u32) {
    (extent.start, extent.end)
}

/// Values of the variables in one role of one CTA.
pub(super) struct Env<'a> {
    case: &'a Case<'a>,
    pub plan: usize,
    pub rank: u32,
    block: u32,
    /// Few enough to look through.
    vars: Vec<(String, u32)>,
    pub index: u32,
    pub first: u32,
    /// A variable that was asked for before it had a value.
    unknown: RefCell<Option<String>>,
}

impl<'a> Env<'a> {
    pub fn new(case: &'a Case<'a>, plan: usize, rank: u32, block: u32) -> Self {
        let mut env = Env {
            case,
            plan,
            rank,
            block,
            vars: Vec::new(),
            index: 0,
            first: 0,
            unknown: RefCell::new(None),
        };
        let rank = block % case.pipeline.cta.ctas();
        env.set("multicast_rank", rank % case.pipeline.cta.multicast_group());
        env.set("split_rank", rank % case.pipeline.cta.split());
        for (name, value) in &case.pipeline.lets {
            let value = value.eval(&env);
            env.set(name, value);
        }
        env
    }

    /// Gives a variable a value.
    pub fn set(&mut self, name: &str, value: u32) {
        match self.vars.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value,
            None => self.vars.push((name.into(), value)),
        }
    }

    /// As [`Env::set`], of a variable whose name is in two parts.
    pub fn set_of(&mut self, name: &str, end: &str, value: u32) {
        let mut vars = self.vars.iter_mut();
        match vars.find(|(known, _)| known.strip_suffix(end) == Some(name)) {
            Some((_, known)) => *known = value,
            None => self.vars.push((format!("{name}{end}"), value)),
        }
    }

    /// Error in working out the numbers of a step.
    pub fn fault(&self, who: &str, at: Loc) -> Option<Diagnostic> {
        let name = self.unknown.borrow_mut().take()?;
        Some(unknown(who, &name, at))
    }
}

impl Values for Env<'_> {
    fn var(&self, name: &str) -> u32 {
        match self.vars.iter().find(|(known, _)| known == name) {
            Some((_, value)) => *value,
            None => {
                *self.unknown.borrow_mut() = Some(name.into());
                0
            }
        }
    }

    fn field(&self, field: Field) -> u32 {
        let geometry = self.case.geometry(self.plan);
        match field {
            Field::Size(dim) => geometry.size(dim),
            Field::ShardRows(dim) => geometry.shard_rows(dim),
            Field::PartialShard(dim) => {
                let short = |shard: &u32| {
                    (1..geometry.shard_rows(dim)).contains(&geometry.shard(dim, *shard).len())
                };
                (0..self.case.world).find(short).unwrap_or(self.case.world)
            }
            Field::Me => self.rank,
            Field::World => self.case.world,
            Field::First(counter) => self.case.first(counter),
            Field::CellRows(partition) => geometry.cell_rows(partition),
            Field::Line(tensor) => {
                geometry.contiguous(&self.case.pipeline.kernel.buffers[tensor.index()])
            }
            Field::LateJoin => 1,
            Field::Order(_)
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
        self.case.geometry(self.plan).shard(dim, shard).len()
    }

    fn ordered(&self, order: OrderId, step: u32) -> u32 {
        self.case.orders[usize::from(order.0)].at(self.rank, step, self.case.world)
    }

    fn block(&self) -> (u32, u32) {
        (self.block, self.case.blocks)
    }

    fn within(&self) -> u32 {
        self.index.wrapping_sub(self.first)
    }

    fn symbol(&self, symbol: &Symbol, value: u32) -> u32 {
        if matches!(symbol, Symbol::Ctas { .. }) {
            comm_ctas(value)
        } else {
            value
        }
    }
}

/// CTAs of a role that moves data, in the case: at most two, so that each has several batches in turn.
fn comm_ctas(ctas: u32) -> u32 {
    ctas.min(2)
}

/// A number that has no value where it is used.
fn unknown(who: &str, name: &str, at: Loc) -> Diagnostic {
    Diagnostic::new(
        Rule::Bounds,
        at,
        format!("{who} uses `{name}` before it has a value"),
    )
    .note(None, "this is a bug of the compiler, not of the schedule")
    .hint("report it with the schedule's text, the variant and this message")
}

const _: () = assert!(CONSUMERS == 2);
