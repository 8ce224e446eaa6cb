//! The inputs and results of a run.

use super::policy::Policy;
use counterflow_codegen::program::TensorId;
use counterflow_codegen::shape::Extent;

/// An input to fill, row by row.
///
/// ```
/// use counterflow_emulator::{self as interp, Input, Options};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (series, plan) = example::proven();
/// // Ones in `x`, and the rank's number in `w`.
/// let inputs = |input: Input, values: &mut [f32]| {
///     values.fill(if input.name == "x" { 1.0 } else { input.rank as f32 });
/// };
/// let outcome = interp::run(&series, &[&plan], &Options::seed(0), inputs)?;
/// # drop(outcome);
/// # Ok::<(), counterflow_emulator::Failure>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Index of the launch.
    pub launch: usize,
    /// Rank that holds the output.
    pub rank: u32,
    /// Tensor of the output.
    pub tensor: TensorId,
    /// Name of the tensor.
    pub name: &'a str,
    /// The rows: the rank's own shard of a gathered tensor, all of another.
    pub rows: Extent,
    /// Number of columns.
    pub columns: u32,
}

/// A tensor as it was at the end of a launch.
///
/// [`Outcome`] has an example.
#[derive(Clone, PartialEq, Debug)]
pub struct Output {
    /// Index of the launch.
    pub launch: usize,
    /// Rank that holds the output.
    pub rank: u32,
    /// Tensor of the output.
    pub tensor: TensorId,
    /// The rows the rank holds.
    pub rows: Extent,
    /// Row by row: all slots, one below the other.
    pub values: Vec<f32>,
}

/// The result of a run.
///
/// ```
/// use counterflow_emulator::{self as interp, Options, Outcome, Output};
/// use counterflow_codegen::program::TensorId;
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (series, plan) = example::proven();
/// let outcome: Outcome = interp::run(&series, &[&plan], &Options::seed(0), |_, values| values.fill(1.0))?;
/// let y: &Output = outcome.output(0, 1, TensorId(2)).expect("rank 1's y after launch 0");
/// assert!(y.values.iter().all(|value| *value == 16.0));
/// println!("{} steps by {:?}", outcome.steps, outcome.policy);
/// # Ok::<(), counterflow_emulator::Failure>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Every gathered tensor and output of every rank and launch, in the order in which launches ended. Empty without
    /// numbers.
    pub outputs: Vec<Output>,
    /// Steps taken.
    pub steps: u64,
    /// The policy that chose them.
    pub policy: Policy,
}

impl Outcome {
    /// One tensor of one rank after one launch.
    pub fn output(&self, launch: usize, rank: u32, tensor: TensorId) -> Option<&Output> {
        self.outputs
            .iter()
            .find(|o| (o.launch, o.rank, o.tensor) == (launch, rank, tensor))
    }
}
