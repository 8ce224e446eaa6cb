//! The emulator as a device: every rank of a checked plan in this process, compared with an f64 reference.

use crate::error::Error;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::TensorId;
use counterflow_codegen::verify::{Checked, Series};
use counterflow_emulator::{
    self as interp, Disagreement, Expected, Failure, NoReference, Options, Outcome, Says, Tables,
};
use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Comparison of one launch's outputs with the reference.
///
/// [`Run`] has an example.
#[derive(Clone, Debug)]
pub struct Compared {
    /// The largest distance of an element from its reference.
    pub max_error: f64,
    /// The largest distance as a share of what rounding allows at that element: at most 1.
    pub of_allowed: f64,
    /// The root of the squared distances over the root of the squared reference.
    pub relative: f64,
    /// Elements compared.
    pub elements: u64,
    /// Reference of each tensor, by name.
    pub with: BTreeMap<String, Says>,
}

/// Launches run one after another on every rank.
///
/// ```
/// use counterflow::codegen::{lower::lower, verify};
/// use counterflow::cpu::{self, Compared, Run};
/// use counterflow::{Machine, Shape, Variant, schedules::ag_gemm};
///
/// let shape = Shape::new(64, 32, 16);
/// let kernel = verify::kernel(lower(&ag_gemm(), &Variant::new(2))?)?;
/// let series = verify::series(&kernel, &shape, &Machine::h200())?;
/// let plan = series.plan(&shape)?;
/// let run: Run = cpu::run(&series, vec![&plan, &plan], 7)?; // two launches, one after another
/// let second: Compared = run.compare(1)?.expect("a reference");
/// assert!(second.of_allowed < 1.0, "within what rounding allows");
/// assert_eq!(run.compare_all()?.len(), 2);
/// println!("{} elements, at most {} off; {} steps", second.elements, second.max_error, run.steps());
///
/// // Other orders of the same steps, without numbers.
/// (0..4).try_for_each(|seed| cpu::interleave(&series, &[&plan], seed))?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Debug)]
pub struct Run<'a> {
    series: &'a Series,
    plans: Vec<&'a Checked<Plan>>,
    seed: u64,
    outcome: Outcome,
}

/// Runs `plans` of a series one after another. `seed` determines the numbers and the interleaving.
///
/// [`Run`] has an example.
///
/// # Errors
/// A plan of another series, or a failure in the emulator, which a checked plan should not have.
pub fn run<'a>(
    series: &'a Series,
    plans: Vec<&'a Checked<Plan>>,
    seed: u64,
) -> Result<Run<'a>, Error> {
    let options = Options::seed(seed);
    let outcome = interp::run(series, &plans, &options, interp::uniform(seed)).map_err(found)?;
    Ok(Run {
        series,
        plans,
        seed,
        outcome,
    })
}

/// Runs the same launches without numbers in another interleaving, and only tracks accesses.
///
/// [`Run`] has an example.
///
/// # Errors
/// As [`run`].
pub fn interleave(series: &Series, plans: &[&Checked<Plan>], seed: u64) -> Result<(), Error> {
    let options = Options::seed(seed).tags_only();
    interp::run(series, plans, &options, |_, _| {}).map_err(found)?;
    Ok(())
}

fn found(failure: Failure) -> Error {
    Error::Rejected(Diagnostics::from(failure.diagnostic()))
}

impl<'a> Run<'a> {
    /// Another device's results of the same launches and numbers.
    pub(crate) fn of(
        series: &'a Series,
        plans: Vec<&'a Checked<Plan>>,
        seed: u64,
        outcome: Outcome,
    ) -> Run<'a> {
        Run {
            series,
            plans,
            seed,
            outcome,
        }
    }
}

impl Run<'_> {
    /// Compares one launch with its reference, or says why it has none.
    ///
    /// # Errors
    /// [`Error::Wrong`], with the element that is furthest off.
    pub fn compare(&self, launch: usize) -> Result<Result<Compared, NoReference>, Error> {
        self.compare_in(&mut Tables::default(), launch)
    }

    fn compare_in(
        &self,
        tables: &mut Tables,
        launch: usize,
    ) -> Result<Result<Compared, NoReference>, Error> {
        let (kernel, plan) = (self.series.kernel(), self.plans[launch]);
        let inputs = interp::uniform(self.seed);
        let expected = match interp::reference_in(tables, kernel, plan, launch, inputs) {
            Ok(expected) => expected,
            Err(none) => return Ok(Err(none)),
        };
        let agreement =
            interp::compare(&self.outcome, &expected).map_err(|off| self.wrong(&off))?;
        Ok(Ok(Compared {
            max_error: agreement.max_abs,
            of_allowed: agreement.max_of_bound,
            relative: self.relative(&expected),
            elements: agreement.elements,
            with: expected
                .tensors
                .iter()
                .map(|tensor| (self.name(tensor.tensor).to_owned(), tensor.says))
                .collect(),
        }))
    }

    /// Compares all launches, one after another or two at once.
    ///
    /// # Errors
    /// As [`Run::compare`], of the first launch that has one.
    pub fn compare_all(&self) -> Result<Vec<Result<Compared, NoReference>>, Error> {
        let next = AtomicUsize::new(0);
        let some = || {
            let mut tables = Tables::default();
            let one = || {
                let launch = next.fetch_add(1, Ordering::Relaxed);
                let further = launch < self.plans.len();
                further.then(|| (launch, self.compare_in(&mut tables, launch)))
            };
            std::iter::from_fn(one).collect::<Vec<_>>()
        };
        let mut all = thread::scope(|scope| {
            let others: Vec<_> = (1..self.at_once()).map(|_| scope.spawn(some)).collect();
            let mut all = some();
            for other in others {
                let other = other.join();
                all.extend(other.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            all
        });
        all.sort_by_key(|(launch, _)| *launch);
        all.into_iter().map(|(_, compared)| compared).collect()
    }

    /// Number of launches that are compared at once: what is done one after another for a launch is done beside
    /// another's products. More would have fewer launches after each other in memory that is mapped already.
    fn at_once(&self) -> usize {
        const MOST: u64 = 2;
        /// Bytes that their references take together, about.
        const BYTES: u64 = 4 << 30;
        /// Bytes of an element of an operand.
        const INPUT: u64 = 4;
        /// Of a result: its number and error bound, in a tile, in memory and as expected.
        const OUTPUT: u64 = 48;
        let bytes = |plan: &&Checked<Plan>| {
            let [m, n, k] = [plan.shape.m, plan.shape.n, plan.shape.k].map(u64::from);
            let of_rank = m * n * OUTPUT + (m * k + n * k) * INPUT;
            of_rank * u64::from(plan.geometry.world)
        };
        let largest = self.plans.iter().map(bytes).max().unwrap_or(0);
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let most = (BYTES / largest.max(1)).clamp(1, MOST) as usize;
        most.min(cores).min(self.plans.len())
    }

    fn name(&self, tensor: TensorId) -> &str {
        &self.series.kernel().buffers[tensor.index()].name
    }

    fn relative(&self, expected: &Expected) -> f64 {
        let (mut off, mut all) = (0.0, 0.0);
        for tensor in &expected.tensors {
            let output = self
                .outcome
                .output(expected.launch, tensor.rank, tensor.tensor);
            let values = output.map_or(&[][..], |output| &output.values);
            for (got, value) in values.iter().zip(&tensor.values) {
                off += (f64::from(*got) - value).powi(2);
                all += value.powi(2);
            }
        }
        if all > 0.0 { (off / all).sqrt() } else { 0.0 }
    }

    fn wrong(&self, off: &Disagreement) -> Error {
        let name = self.name(off.tensor);
        let place = off
            .at
            .map(|(row, column)| format!("[{row}, {column}]"))
            .unwrap_or_default();
        Error::Wrong {
            what: format!(
                "{name}{place} on rank {} after launch {} is {}, but the reference is {} ± {:.1e}",
                off.rank,
                off.launch + 1,
                off.got,
                off.expected,
                off.bound
            ),
            help: format!("seed {} reproduces it: `--seed` of the tool", self.seed),
        }
    }

    /// Steps that all ranks took together.
    pub fn steps(&self) -> u64 {
        self.outcome.steps
    }
}
