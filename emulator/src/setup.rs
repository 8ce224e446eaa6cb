//! The constants of a run: the kernel, the plans, the grids of memory, and the cells that several ranks signal.

mod cuts;
mod partial;

pub(super) use cuts::Cuts;

use super::clocks::{Epoch, HOST};
use super::failure::{CellName, Failure, FailureKind, Rect, Site};
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{CounterId, TensorId};
use counterflow_codegen::region::Span;
use counterflow_codegen::shape::Extent;
use counterflow_codegen::unroll::StepKind;
use counterflow_codegen::verify::Checked;
use counterflow_codegen::verify::Series;
use cuts::grids;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The plans, one per launch, if the series made all of them.
pub(super) fn of_series<'a>(
    series: &Series,
    launches: &[&'a Checked<Plan>],
) -> Result<Vec<Vec<&'a Plan>>, Failure> {
    match series.owns(launches.iter().copied()) {
        Ok(()) => Ok(launches.iter().map(|plan| vec![&***plan]).collect()),
        Err(refused) => Err(Failure {
            kind: Box::new(FailureKind::OtherSeries { refused }),
            seed: 0,
            steps: 0,
            schedule: Vec::new(),
        }),
    }
}

/// A signal without which a wait for less than all cannot end: rank, role and step.
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
    pub grids: Vec<Vec<Cuts>>,
    /// The grid's index, by launch and rank.
    grid_of: Vec<Vec<usize>>,
    /// First cell of each counter, and how many there are on a rank.
    cell_base: Vec<usize>,
    pub cells: usize,
    /// Cells that more than one rank signals in these launches, by home and flat cell.
    shared: Vec<Vec<bool>>,
    partial: BTreeMap<Partial, Rc<[Needed]>>,
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
            "a launch has one plan, or one per rank"
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

    /// A cell's index among all cells of its rank.
    pub fn flat(&self, counter: CounterId, cell: u32) -> usize {
        self.cell_base[counter.index()] + cell as usize
    }

    /// Number that a plan adds to a cell in one launch.
    pub fn arrivals(plan: &Plan, home: u16, counter: CounterId, cell: u32) -> u64 {
        if cell < plan.geometry.counter_cells(counter) {
            u64::from(plan.arrivals.of(home, counter, cell))
        } else {
            0
        }
    }

    /// True if more than one rank signals that cell.
    pub fn is_shared(&self, home: u16, flat: usize) -> bool {
        self.shared[usize::from(home)][flat]
    }

    /// The signals without which a wait for `amount`, less than all, cannot end.
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
            ("host".into(), None)
        } else {
            let role = usize::from(at.role);
            let step = self
                .plan(at.launch, at.rank)
                .agent(u32::from(at.rank), role)
                .steps[at.step as usize];
            (
                self.kernel.roles[role].name.clone(),
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

    pub fn rect(&self, span: &Span) -> Rect {
        Rect {
            buffer: self.kernel.buffers[span.buffer.index()].name.clone(),
            home: span.home,
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
}

fn counters(kernel: &Kernel) -> impl Iterator<Item = CounterId> + '_ {
    (0..kernel.counters.len()).map(|index| CounterId(index as u16))
}
