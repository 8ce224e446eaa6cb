//! Kernels from the one on that the model likes best, each looked at no closer than its place needs.

use crate::error::Error;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::model::{self, Machine};
use counterflow_codegen::plan::Plan;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::verify::{self, Checked};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What the model says a launch takes on a GPU at its power limit, where those are that train: in seconds. What it
/// cannot predict takes for ever.
pub fn predicted(kernel: &Checked<Kernel>, plan: &Checked<Plan>, machine: &Machine) -> f64 {
    model::seconds(kernel, plan, &hot(machine)).unwrap_or(f64::INFINITY)
}

/// As much of a GPU at its power limit as `machine` has of a cool one.
fn hot(machine: &Machine) -> Machine {
    Machine {
        sms: machine.sms,
        ..Machine::h200_at_power_limit()
    }
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

/// The legal ones of some kernels for a shape, by what [`predicted`] says of them, the first given first among equals.
///
/// A kernel is planned, verified and simulated only once [`model::least`] leaves no other before it: the order is
/// that of all predictions, most of which are never made.
#[derive(Debug)]
pub struct Ranking<'a> {
    kernels: Vec<&'a Checked<Kernel>>,
    shape: &'a Shape,
    machine: &'a Machine,
    hot: Machine,
    open: BinaryHeap<Reverse<Place>>,
    /// Plans of those that were looked at closely.
    plans: Vec<Option<Checked<Plan>>>,
    refused: Option<Error>,
}

/// Where a kernel stands: times are positive, and the bits of positive numbers are in their order. Among equals those
/// that may turn out to be slower are looked at first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    bits: u64,
    settled: bool,
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
            plans: vec![None; kernels.len()],
            kernels: Vec::new(),
            shape,
            machine,
            hot: hot(machine),
            open: BinaryHeap::new(),
            refused: None,
        };
        for (which, kernel) in kernels.iter().enumerate() {
            // What the verifier will be asked for, not what the model takes it for.
            match model::least(kernel, shape, &ranking.hot) {
                Ok(seconds) => ranking.place(which, seconds, false),
                Err(error) => ranking.refuse(error.into()),
            }
        }
        ranking.kernels = kernels;
        ranking
    }

    fn place(&mut self, which: usize, seconds: f64, settled: bool) {
        self.open.push(Reverse(Place {
            bits: seconds.to_bits(),
            settled,
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
        while let Some(Reverse(place)) = self.open.pop() {
            let which = place.which;
            if let Some(plan) = self.plans[which].take_if(|_| place.settled) {
                return Some(Ranked {
                    which,
                    seconds: f64::from_bits(place.bits),
                    plan,
                });
            }
            let kernel = self.kernels[which];
            match verify::plan(kernel, self.shape, self.machine) {
                Ok(plan) => {
                    let seconds = model::seconds(kernel, &plan, &self.hot);
                    self.place(which, seconds.unwrap_or(f64::INFINITY), true);
                    self.plans[which] = Some(plan);
                }
                Err(error) => self.refuse(error.into()),
            }
        }
        None
    }
}
