//! What does not change during a run: the kernel, the plans, the grids memory is tracked on, the cells that need care.

use super::clocks::{Epoch, HOST};
use super::failure::{CellName, Rect, Site};
use crate::kernel::{Block, Kernel, Op, OpKind};
use crate::plan::Plan;
use crate::program::{CounterId, TensorId};
use crate::shape::Extent;
use crate::unroll::{EVERYWHERE, Span, StepKind};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

/// A buffer's rows and columns, cut wherever a rectangle of some plan begins or ends: within a cell of this grid all
/// elements share their history.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Grid {
    pub rows: Vec<u32>,
    pub columns: Vec<u32>,
}

impl Grid {
    /// The grid rows and columns an extent covers; both ends must be cuts.
    pub fn cover(cuts: &[u32], extent: Extent) -> Range<usize> {
        cuts.partition_point(|cut| *cut < extent.start)
            ..cuts.partition_point(|cut| *cut < extent.end)
    }
}

/// A signal that a wait for less than all cannot have missed: rank, role and step.
pub(super) type Needed = (u16, u16, u32);

/// A wait for less than all that arrives: launch, home, flat cell and how much.
type Partial = (usize, u16, usize, u32);

pub(super) struct Setup<'a> {
    pub kernel: &'a Kernel,
    /// By launch and rank.
    pub plans: Vec<Vec<&'a Plan>>,
    pub world: usize,
    pub roles: usize,
    /// Grids of all buffers for each distinct geometry.
    pub grids: Vec<Vec<Grid>>,
    /// Which of them, by launch and rank.
    grid_of: Vec<Vec<usize>>,
    /// First cell of each counter, and how many there are on a rank.
    cell_base: Vec<usize>,
    pub cells: usize,
    /// Cells that more than one rank signals in these launches, by home and flat cell.
    shared: Vec<Vec<bool>>,
    partial: BTreeMap<Partial, Rc<[Needed]>>,
    /// Without any dot, what a rank contributes to a sum is its input.
    pub inputs_contribute: bool,
}

impl<'a> Setup<'a> {
    pub fn new(kernel: &'a Kernel, launches: &[Vec<&'a Plan>]) -> Setup<'a> {
        let world = launches
            .first()
            .and_then(|plans| plans.first())
            .map_or(0, |plan| plan.geometry.world as usize);
        let plans: Vec<Vec<&Plan>> = launches
            .iter()
            .map(|plans| match plans.as_slice() {
                [one] => vec![*one; world],
                many => many.to_vec(),
            })
            .collect();
        for plan in plans.iter().flatten() {
            assert_eq!(
                plan.agents.len(),
                world * kernel.roles.len(),
                "a plan of another kernel or world"
            );
        }
        assert!(
            plans.iter().all(|plans| plans.len() == world),
            "a launch has one plan, or one a rank"
        );
        let (grids, grid_of) = grids(kernel, &plans);
        let mut cell_base = Vec::new();
        let mut cells = 0;
        for counter in counters(kernel) {
            cell_base.push(cells);
            let most = plans
                .iter()
                .flatten()
                .map(|plan| plan.geometry.counter_cells(counter));
            cells += most.max().unwrap_or(0) as usize;
        }
        let mut setup = Setup {
            kernel,
            world,
            roles: kernel.roles.len(),
            grids,
            grid_of,
            cell_base,
            cells,
            shared: Vec::new(),
            partial: BTreeMap::new(),
            inputs_contribute: !kernel.roles.iter().any(|role| has_dot(&role.body)),
            plans,
        };
        setup.shared = setup.find_shared();
        setup.partial = setup.find_partial();
        setup
    }

    pub fn plan(&self, launch: u32, rank: u16) -> &'a Plan {
        self.plans[launch as usize][usize::from(rank)]
    }

    pub fn launches(&self) -> u32 {
        self.plans.len() as u32
    }

    pub fn grid_index(&self, launch: u32, rank: u16) -> usize {
        self.grid_of[launch as usize][usize::from(rank)]
    }

    /// A cell's place among all of its rank's.
    pub fn flat(&self, counter: CounterId, cell: u32) -> usize {
        self.cell_base[counter.index()] + cell as usize
    }

    /// How much that plan adds to a cell in one launch.
    pub fn arrivals(plan: &Plan, home: u16, counter: CounterId, cell: u32) -> u64 {
        if cell < plan.geometry.counter_cells(counter) {
            u64::from(plan.arrivals.of(home, counter, cell))
        } else {
            0
        }
    }

    /// Whether more than one rank signals that cell.
    pub fn is_shared(&self, home: u16, flat: usize) -> bool {
        self.shared[usize::from(home)][flat]
    }

    /// The signals that a wait for `amount`, less than all, cannot have missed.
    pub fn needed(&self, launch: u32, home: u16, flat: usize, amount: u32) -> Rc<[Needed]> {
        let key = (launch as usize, home, flat, amount);
        self.partial
            .get(&key)
            .cloned()
            .unwrap_or_else(|| Rc::from([]))
    }

    /// The rows of a buffer that `home` holds in that launch.
    pub fn held(&self, launch: u32, home: u16, buffer: TensorId) -> Extent {
        let plan = self.plan(launch, home);
        plan.geometry
            .held(&self.kernel.buffers[buffer.index()], u32::from(home))
    }

    pub fn site(&self, at: &Epoch, does: &'static str) -> Site {
        let (role, op) = if at.role == HOST {
            ("host", None)
        } else {
            let role = usize::from(at.role);
            let step = self
                .plan(at.launch, at.rank)
                .agent(u32::from(at.rank), role)
                .steps[at.step as usize];
            (
                self.kernel.roles[role].kind.name(),
                Some((step.op, self.kernel.loc(step.op))),
            )
        };
        Site {
            rank: at.rank,
            role,
            launch: at.launch as usize,
            op,
            does,
        }
    }

    pub fn rect(&self, span: &Span, home: u16) -> Rect {
        Rect {
            buffer: self.kernel.buffers[span.buffer.index()].name.clone(),
            home,
            slot: span.slot,
            rows: span.rows,
            columns: span.columns,
        }
    }

    pub fn cell_name(&self, home: u16, counter: CounterId, cell: u32) -> CellName {
        CellName {
            counter: self.kernel.counters[counter.index()].name.clone(),
            home,
            cell,
        }
    }

    fn find_shared(&self) -> Vec<Vec<bool>> {
        let mut first: Vec<Vec<Option<u16>>> = vec![vec![None; self.cells]; self.world];
        let mut shared = vec![vec![false; self.cells]; self.world];
        let mut seen: Vec<*const Plan> = Vec::new();
        for plan in self.plans.iter().flatten() {
            if seen.contains(&std::ptr::from_ref(*plan)) {
                continue;
            }
            seen.push(*plan);
            for agent in &plan.agents {
                for step in &agent.steps {
                    if let StepKind::Signal {
                        counter,
                        home,
                        cell,
                        ..
                    } = step.kind
                    {
                        let flat = self.flat(counter, cell);
                        let one = first[usize::from(home)][flat].get_or_insert(agent.rank);
                        shared[usize::from(home)][flat] |= *one != agent.rank;
                    }
                }
            }
        }
        shared
    }

    /// For every wait for less than all: the signals without which (and without what follows them in their agent)
    /// the others would not add up to it.
    fn find_partial(&self) -> BTreeMap<Partial, Rc<[Needed]>> {
        let mut found = BTreeMap::new();
        for (launch, plans) in self.plans.iter().enumerate() {
            for (home, plan) in plans.iter().enumerate() {
                let home = home as u16;
                for agent in plan.agents.iter().filter(|agent| agent.rank == home) {
                    for step in &agent.steps {
                        let StepKind::Wait {
                            counter,
                            cell,
                            at_least: Some(amount),
                        } = step.kind
                        else {
                            continue;
                        };
                        let flat = self.flat(counter, cell);
                        let all = Setup::arrivals(plan, home, counter, cell);
                        if u64::from(amount) < all {
                            found
                                .entry((launch, home, flat, amount))
                                .or_insert_with(|| needed(plans, home, counter, cell, amount));
                        }
                    }
                }
            }
        }
        found
    }
}

fn needed(plans: &[&Plan], home: u16, counter: CounterId, cell: u32, amount: u32) -> Rc<[Needed]> {
    // Rank, role, phase, item, step, amount.
    let mut signals: Vec<(u16, u16, u32, usize, u32, u32)> = Vec::new();
    for (rank, plan) in plans.iter().enumerate() {
        for agent in plan.agents.iter().filter(|a| usize::from(a.rank) == rank) {
            for (index, item) in agent.items.iter().enumerate() {
                for at in item.start..item.end {
                    match agent.steps[at as usize].kind {
                        StepKind::Signal {
                            counter: c,
                            home: h,
                            cell: i,
                            amount,
                        } if (c, h, i) == (counter, home, cell) => {
                            signals.push((agent.rank, agent.role, item.phase, index, at, amount));
                        }
                        StepKind::Signal { .. }
                        | StepKind::Wait { .. }
                        | StepKind::Copy { .. }
                        | StepKind::Dot { .. }
                        | StepKind::Reduce { .. }
                        | StepKind::Load { .. }
                        | StepKind::Store { .. } => {}
                    }
                }
            }
        }
    }
    signals
        .iter()
        .filter(|s| {
            let without: u64 = signals
                .iter()
                .filter(|other| {
                    let follows = (other.0, other.1) == (s.0, s.1)
                        && (other.2 > s.2 || (other.3 == s.3 && other.4 >= s.4));
                    !follows
                })
                .map(|other| u64::from(other.5))
                .sum();
            without < u64::from(amount)
        })
        .map(|s| (s.0, s.1, s.4))
        .collect()
}

fn counters(kernel: &Kernel) -> impl Iterator<Item = CounterId> + '_ {
    (0..kernel.counters.len()).map(|index| CounterId(index as u16))
}

fn has_dot(body: &[Block]) -> bool {
    fn in_ops(body: &[Op]) -> bool {
        body.iter().any(|op| match &op.kind {
            OpKind::Dot { .. } => true,
            OpKind::ForRanks { body, .. } | OpKind::ForSplits { body, .. } => in_ops(body),
            OpKind::If {
                then, otherwise, ..
            } => in_ops(then) || in_ops(otherwise),
            OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::Copy { .. }
            | OpKind::Reduce { .. }
            | OpKind::Load { .. }
            | OpKind::Store { .. } => false,
        })
    }
    body.iter().any(|block| match block {
        Block::ForRanks { body, .. } => has_dot(body),
        Block::If {
            then, otherwise, ..
        } => has_dot(then) || has_dot(otherwise),
        Block::Items { body, .. } | Block::Once { body } => in_ops(body),
        Block::Join => false,
    })
}

/// The rectangles a step touches.
pub(super) fn spans(kind: &StepKind) -> [Option<&Span>; 2] {
    match kind {
        StepKind::Wait { .. } | StepKind::Signal { .. } => [None, None],
        StepKind::Copy { dst, src } => [Some(dst), Some(src)],
        StepKind::Dot { a, b, .. } => [Some(a), Some(b)],
        StepKind::Reduce { from, .. } | StepKind::Load { from, .. } => [Some(from), None],
        StepKind::Store { dst, .. } => [Some(dst), None],
    }
}

/// One set of grids for each distinct geometry, cut by every plan that has it.
fn grids(kernel: &Kernel, plans: &[Vec<&Plan>]) -> (Vec<Vec<Grid>>, Vec<Vec<usize>>) {
    let mut distinct: Vec<Vec<&Plan>> = Vec::new();
    let grid_of = plans
        .iter()
        .map(|plans| {
            plans
                .iter()
                .map(|plan| {
                    let same = |known: &Vec<&Plan>| {
                        known[0].geometry == plan.geometry && known[0].shape.ld == plan.shape.ld
                    };
                    let index = distinct.iter().position(same).unwrap_or_else(|| {
                        distinct.push(Vec::new());
                        distinct.len() - 1
                    });
                    if !distinct[index]
                        .iter()
                        .any(|known| std::ptr::eq(*known, *plan))
                    {
                        distinct[index].push(plan);
                    }
                    index
                })
                .collect()
        })
        .collect();
    let grids = distinct
        .iter()
        .map(|plans| grids_of(kernel, plans))
        .collect();
    (grids, grid_of)
}

fn grids_of(kernel: &Kernel, plans: &[&Plan]) -> Vec<Grid> {
    let geometry = &plans[0].geometry;
    let mut cuts: Vec<(BTreeSet<u32>, BTreeSet<u32>)> = kernel
        .buffers
        .iter()
        .map(|buffer| {
            let chunks = geometry.chunks(buffer.rows);
            let mut rows = BTreeSet::from([0, geometry.size(buffer.rows)]);
            rows.extend((0..chunks).map(|chunk| geometry.chunk(buffer.rows, chunk).start));
            (rows, BTreeSet::from([0, geometry.size(buffer.columns)]))
        })
        .collect();
    for plan in plans {
        for step in plan.agents.iter().flat_map(|agent| &agent.steps) {
            for span in spans(&step.kind).into_iter().flatten() {
                let (rows, columns) = &mut cuts[span.buffer.index()];
                rows.extend([span.rows.start, span.rows.end]);
                columns.extend([span.columns.start, span.columns.end]);
            }
        }
    }
    cuts.into_iter()
        .map(|(rows, columns)| Grid {
            rows: rows.into_iter().collect(),
            columns: columns.into_iter().collect(),
        })
        .collect()
}

/// The ranks whose memory a span is in.
pub(super) fn homes(span: &Span, world: usize) -> Range<u16> {
    if span.home == EVERYWHERE {
        0..world as u16
    } else {
        span.home..span.home + 1
    }
}
