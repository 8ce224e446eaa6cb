//! Kernels from the one on that the model likes best, each looked at no closer than its place needs.

use crate::error::Error;
use counterflow_codegen::kernel::{Block, Kernel, Role};
use counterflow_codegen::model::{self, Machine};
use counterflow_codegen::order::TileOrder;
use counterflow_codegen::plan::{Grid, Plan};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::verify::{self, Checked};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Whether a variant may be among the fastest: CTAs that share the steps of tiles add what they send each other, for
/// nothing where each SM has two tiles anyway.
pub fn worth_asking(kernel: &Kernel, grid: &Grid, machine: &Machine) -> bool {
    let shared = kernel.gemm().is_some_and(|kind| kind.split > 1);
    !shared || grid.tiles < 2 * u64::from(machine.sms)
}

/// What the model says a launch takes on a GPU at its power limit, where those are that train: in seconds. What it
/// cannot predict takes for ever, and so does what is not [worth asking about](worth_asking).
pub fn predicted(kernel: &Checked<Kernel>, plan: &Checked<Plan>, machine: &Machine) -> f64 {
    if !worth_asking(kernel, &plan.grid, machine) {
        return f64::INFINITY;
    }
    model::seconds(kernel, plan, &hot(machine)).unwrap_or(f64::INFINITY)
}

/// As much of a GPU at its power limit as `machine` has of a cool one.
fn hot(machine: &Machine) -> Machine {
    Machine {
        sms: machine.sms,
        ..Machine::h200_at_power_limit()
    }
}

/// Predictions that differ by less are alike: two runs differ by as much.
const ALIKE: f64 = 1.01;

/// Whether the model sees next to nothing between two kernels: they differ in no more than the order in which tiles are
/// visited, which decides what the caches hold, and take as long.
pub fn alike(a: (&Kernel, &Ranked), b: (&Kernel, &Ranked)) -> bool {
    let (less, more) = (a.1.seconds.min(b.1.seconds), a.1.seconds.max(b.1.seconds));
    more <= ALIKE * less && reordered(a.0, b.0)
}

/// Whether two kernels differ in no more than the order in which tiles are visited.
pub fn reordered(a: &Kernel, b: &Kernel) -> bool {
    a.partitions == b.partitions && unordered(a) == unordered(b)
}

/// The roles of a kernel, with one order of tiles for all loops.
fn unordered(kernel: &Kernel) -> Vec<Role> {
    fn walk(body: &mut [Block]) {
        for block in body {
            match block {
                Block::ForRanks { body, .. } => walk(body),
                Block::If {
                    then, otherwise, ..
                } => {
                    walk(then);
                    walk(otherwise);
                }
                Block::Items { order, .. } => *order = TileOrder::RowMajor,
                Block::Once { .. } | Block::Join => {}
            }
        }
    }
    let mut roles = kernel.roles.clone();
    roles.iter_mut().for_each(|role| walk(&mut role.body));
    roles
}

/// A kernel in its place.
#[derive(Clone, Debug)]
pub struct Ranked {
    /// Which of the given kernels.
    pub which: usize,
    /// What [`predicted`] says of it.
    pub seconds: f64,
    /// Its numbers.
    pub plan: Checked<Plan>,
}

/// The legal ones of some kernels for a shape, by what [`predicted`] says of them: none takes 1 % longer than one after
/// it.
///
/// A kernel is planned, verified and simulated only once [`model::outline`] leaves no other that is better by more than
/// that: most predictions are never made.
#[derive(Debug)]
pub struct Ranking<'a> {
    kernels: Vec<&'a Checked<Kernel>>,
    shape: &'a Shape,
    machine: &'a Machine,
    hot: Machine,
    open: BinaryHeap<Reverse<Place>>,
    /// Those that were looked at closely.
    settled: Vec<Option<Ranked>>,
    refused: Option<Error>,
}

/// Where a kernel stands, the first given first among equals: times are positive, and the bits of positive numbers are
/// in their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    bits: u64,
    which: usize,
}

impl<'a> Ranking<'a> {
    /// Of `kernels` for `shape` on as much of a GPU as `machine` has.
    pub fn new(
        kernels: impl IntoIterator<Item = &'a Checked<Kernel>>,
        shape: &'a Shape,
        machine: &'a Machine,
    ) -> Ranking<'a> {
        let kernels: Vec<_> = kernels.into_iter().collect();
        let mut ranking = Ranking {
            settled: vec![None; kernels.len()],
            kernels: Vec::new(),
            shape,
            machine,
            hot: hot(machine),
            open: BinaryHeap::new(),
            refused: None,
        };
        for (which, kernel) in kernels.iter().enumerate() {
            match model::outline(kernel, shape, &ranking.hot) {
                Ok(outline) if worth_asking(kernel, &outline.grid, machine) => {
                    ranking.place(which, outline.least);
                }
                Ok(_) => ranking.place(which, f64::INFINITY),
                Err(error) => ranking.refuse(error.into()),
            }
        }
        ranking.kernels = kernels;
        ranking
    }

    fn place(&mut self, which: usize, seconds: f64) {
        self.open.push(Reverse(Place {
            bits: seconds.to_bits(),
            which,
        }));
    }

    fn refuse(&mut self, error: Error) {
        self.refused.get_or_insert(error);
    }

    /// Why the first that was refused is not legal.
    pub fn refused(self) -> Option<Error> {
        self.refused
    }
}

impl Iterator for Ranking<'_> {
    type Item = Ranked;

    fn next(&mut self) -> Option<Ranked> {
        while let Some(Reverse(Place { which, .. })) = self.open.pop() {
            if let Some(ranked) = self.settled[which].take() {
                return Some(ranked);
            }
            let kernel = self.kernels[which];
            match verify::plan(kernel, self.shape, self.machine) {
                Ok(plan) => {
                    let seconds = predicted(kernel, &plan, self.machine);
                    // It goes before whatever can only be a little faster.
                    self.place(which, seconds / ALIKE);
                    self.settled[which] = Some(Ranked {
                        which,
                        seconds,
                        plan,
                    });
                }
                Err(error) => self.refuse(error.into()),
            }
        }
        None
    }
}
