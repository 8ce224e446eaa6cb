//! Ranks kernels by the model. Each is examined only as closely as its place needs.

use crate::error::Error;
use counterflow_codegen::kernel::{Block, Kernel, Role};
use counterflow_codegen::lower::Written;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::order::TileOrder;
use counterflow_codegen::plan::{Grid, Plan};
use counterflow_codegen::program::Var;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked};
use counterflow_timeline::model::{self, Outlines};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// True if a variant may be among the fastest. Cluster split-K costs the exchange of partial sums, which gains nothing
/// if each SM has two tiles anyway.
///
/// [`Ranking`] has an example.
pub fn worth_asking(kernel: &Kernel, grid: &Grid, machine: &Machine) -> bool {
    let shared = kernel.gemm().is_some_and(|kind| kind.split > 1);
    !shared || grid.tiles < 2 * u64::from(machine.sms)
}

/// The model's time of a launch, in seconds, on a GPU at its power limit, as in training. Infinite if it cannot be
/// predicted or is not [worth asking about](worth_asking).
///
/// [`Ranking`] has an example.
pub fn predicted(kernel: &Checked<Kernel>, plan: &Checked<Plan>, machine: &Machine) -> f64 {
    time(kernel, plan, machine)
}

/// As [`predicted`], of a plan that need not be verified.
pub(super) fn time(kernel: &Kernel, plan: &Plan, machine: &Machine) -> f64 {
    if !worth_asking(kernel, &plan.grid, machine) {
        return f64::INFINITY;
    }
    model::seconds(kernel, plan, &hot(machine)).unwrap_or(f64::INFINITY)
}

/// The part of a GPU that `machine` is, at the power limit.
fn hot(machine: &Machine) -> Machine {
    machine.at_power_limit()
}

/// Predictions that differ by less are equal: two runs differ by as much.
const ALIKE: f64 = 1.01;

/// True if the model can hardly tell two kernels apart: they differ only in the order of tiles, which decides what the
/// caches hold, and their predictions are equal.
///
/// [`Ranking`] has an example.
pub fn alike(a: (&Kernel, &Ranked), b: (&Kernel, &Ranked)) -> bool {
    let (less, more) = (a.1.seconds.min(b.1.seconds), a.1.seconds.max(b.1.seconds));
    more <= ALIKE * less && reordered(a.0, b.0)
}

/// True if two kernels differ only in the order of tiles.
///
/// [`Ranking`] has an example.
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

/// A ranked kernel.
///
/// [`Ranking`] has an example.
#[derive(Clone, Debug)]
pub struct Ranked {
    /// Index among the given kernels.
    pub which: usize,
    /// Time by [`predicted`], in seconds.
    pub seconds: f64,
    /// Plan of the kernel.
    pub plan: Checked<Plan>,
}

/// The legal kernels for a shape, sorted by [`predicted`]: none is more than 1 % slower than one after it.
///
/// A kernel is planned and simulated only when [`model::outline`] leaves no other that may be better by more than that, and its
/// plan is verified only when it is given out. Most predictions are never made.
///
/// ```
/// use counterflow::codegen::{lower::lower, verify};
/// use counterflow::tuned::{self, Ranked, Ranking};
/// use counterflow::{Error, Machine, Shape, Variant, schedules::ag_gemm};
///
/// let (program, shape, machine) = (ag_gemm(), Shape::new(4096, 1024, 1024), Machine::h200());
/// let variants = [(128, 256), (128, 128)].map(|tiles| Variant::new(2).set("tiles", tiles));
/// let lowered = variants.iter().map(|variant| Ok(verify::kernel(lower(&program, variant)?)?));
/// let kernels = lowered.collect::<Result<Vec<_>, Error>>()?;
/// let all: Vec<Ranked> = Ranking::new(&kernels, &shape, &machine).collect();
/// let [first, second] = &all[..] else { panic!("both are legal") };
/// println!("{} takes {} s", variants[first.which], first.seconds);
/// let [a, b] = [first, second].map(|ranked| &kernels[ranked.which]);
/// assert!(tuned::worth_asking(a, &first.plan.grid, &machine));
/// assert_eq!(tuned::predicted(a, &first.plan, &machine), first.seconds);
/// assert!(!tuned::reordered(a, b) && !tuned::alike((a, first), (b, second)), "other tiles");
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Ranking<'a> {
    kernels: Kernels<'a>,
    shape: &'a Shape,
    machine: &'a Machine,
    hot: Machine,
    open: BinaryHeap<Reverse<Standing>>,
    /// The kernels that were examined closely.
    settled: Vec<Option<Settled>>,
    /// Number of kernels that were examined closely.
    examined: usize,
    /// The first rejection, with the place of its kernel in the order of examination: 0 for those that have no outline.
    refused: Option<(usize, Error)>,
}

/// Index of a kernel, with the orders of tiles in which it differs from another one.
pub(super) type Reordered = (usize, Vec<(Var, TileOrder)>);

/// A prediction, of a plan that is not verified yet.
#[derive(Clone, Copy, Debug)]
struct Settled {
    seconds: f64,
    /// Place in the order of examination, from 1.
    nth: usize,
}

/// Kernels of a ranking.
#[derive(Debug)]
enum Kernels<'a> {
    Given(Vec<&'a Checked<Kernel>>),
    /// A schedule may have thousands of variants, of which a few are examined closely: those are lowered again.
    Written(&'a Written, &'a [Variant]),
}

impl Kernels<'_> {
    fn get(&self, which: usize) -> Result<Checked<Kernel>, Error> {
        match self {
            Kernels::Given(kernels) => Ok(kernels[which].clone()),
            Kernels::Written(written, variants) => lowered(written, &variants[which]),
        }
    }
}

/// The choices of a variant up to the checked kernel.
pub(super) fn lowered(written: &Written, variant: &Variant) -> Result<Checked<Kernel>, Error> {
    Ok(verify::kernel(written.lower(&variant.choices)?)?)
}

/// A kernel's sort key. Among equals the first given comes first. Times are positive, and the bits of positive floats
/// sort as the numbers do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Standing {
    bits: u64,
    which: usize,
}

impl Standing {
    fn new(which: usize, seconds: f64) -> Standing {
        Standing {
            bits: seconds.to_bits(),
            which,
        }
    }
}

impl<'a> Ranking<'a> {
    /// The ranking of `kernels` for `shape` on the part of a GPU that `machine` is.
    pub fn new(
        kernels: impl IntoIterator<Item = &'a Checked<Kernel>>,
        shape: &'a Shape,
        machine: &'a Machine,
    ) -> Ranking<'a> {
        let kernels: Vec<_> = kernels.into_iter().collect();
        let mut ranking = Ranking::of(Kernels::Given(Vec::new()), kernels.len(), shape, machine);
        for (which, kernel) in kernels.iter().enumerate() {
            ranking.add(kernel, &[(which, Vec::new())]);
        }
        ranking.kernels = Kernels::Given(kernels);
        ranking
    }

    /// The ranking of those variants of a schedule that are [added](Ranking::add).
    pub(super) fn of_variants(
        (written, variants): (&'a Written, &'a [Variant]),
        shape: &'a Shape,
        machine: &'a Machine,
    ) -> Ranking<'a> {
        let kernels = Kernels::Written(written, variants);
        Ranking::of(kernels, variants.len(), shape, machine)
    }

    fn of(
        kernels: Kernels<'a>,
        count: usize,
        shape: &'a Shape,
        machine: &'a Machine,
    ) -> Ranking<'a> {
        Ranking {
            settled: vec![None; count],
            examined: 0,
            kernels,
            shape,
            machine,
            hot: hot(machine),
            open: BinaryHeap::new(),
            refused: None,
        }
    }

    /// Places a kernel by its outline, once for each kernel that differs from it in those orders of tiles alone.
    pub(super) fn add(&mut self, kernel: &Checked<Kernel>, orders: &[Reordered]) {
        match Outlines::new(kernel, self.shape, &self.hot) {
            Ok(outlines) => {
                let worth = worth_asking(kernel, &outlines.grid(), self.machine);
                let least = |orders: &[_]| match worth {
                    true => outlines.least(orders),
                    false => f64::INFINITY,
                };
                let placed = orders.iter();
                let placed = placed.map(|(which, orders)| Standing::new(*which, least(orders)));
                self.open.extend(placed.map(Reverse));
            }
            Err(error) => self.refuse(0, error.into()),
        }
    }

    /// Keeps the error of the kernel that was examined first.
    fn refuse(&mut self, nth: usize, error: Error) {
        if self.refused.as_ref().is_none_or(|(first, _)| nth < *first) {
            self.refused = Some((nth, error));
        }
    }

    /// The prediction of a kernel.
    fn settle(&self, which: usize) -> Result<f64, Error> {
        let kernel = self.kernels.get(which)?;
        let plan = Plan::new(&kernel, self.shape, self.machine)?;
        Ok(time(&kernel, &plan, self.machine))
    }

    /// The verified plan of a kernel.
    fn plan(&self, which: usize) -> Result<Checked<Plan>, Error> {
        let kernel = self.kernels.get(which)?;
        Ok(verify::plan(&kernel, self.shape, self.machine)?)
    }

    /// Error of the first kernel that was rejected.
    ///
    /// ```
    /// use counterflow::codegen::{lower::lower, verify};
    /// use counterflow::{Machine, Shape, Variant, schedules::gemm, tuned::Ranking};
    ///
    /// let (shape, machine) = (Shape::new(64, 64, 7), Machine::h200()); // rows of 14 bytes
    /// let kernels = [verify::kernel(lower(&gemm(), &Variant::new(1))?)?];
    /// let mut ranking = Ranking::new(&kernels, &shape, &machine);
    /// assert!(ranking.next().is_none());
    /// println!("{}", ranking.refused().expect("a reason"));
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn refused(self) -> Option<Error> {
        self.refused.map(|(_, error)| error)
    }
}

impl Iterator for Ranking<'_> {
    type Item = Ranked;

    fn next(&mut self) -> Option<Ranked> {
        while let Some(Reverse(Standing { which, .. })) = self.open.pop() {
            if let Some(Settled { seconds, nth }) = self.settled[which] {
                match self.plan(which) {
                    Ok(plan) => {
                        return Some(Ranked {
                            which,
                            seconds,
                            plan,
                        });
                    }
                    Err(error) => self.refuse(nth, error),
                }
                continue;
            }
            self.examined += 1;
            let nth = self.examined;
            match self.settle(which) {
                Ok(seconds) => {
                    // It comes before kernels that can only be slightly faster.
                    self.open
                        .push(Reverse(Standing::new(which, seconds / ALIKE)));
                    self.settled[which] = Some(Settled { seconds, nth });
                }
                Err(error) => self.refuse(nth, error),
            }
        }
        None
    }
}
