//! Expected outputs: values, error bounds, and their source.

use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::TensorId;
use counterflow_codegen::shape::Extent;
use std::fmt;

/// Expected outputs of one launch.
///
/// ```
/// use counterflow_emulator::{self as interp, Agreement, Disagreement, Expected, ExpectedTensor, Options, Says};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (series, plan) = example::proven();
/// let mut outcome = interp::run(&series, &[&plan], &Options::seed(7), interp::uniform(7))?;
/// let expected: Expected = interp::reference(series.kernel(), &plan, 0, interp::uniform(7))?;
/// let agreement: Agreement = interp::compare(&outcome, &expected)?;
/// assert!(agreement.max_of_bound <= 1.0);
/// let y: &ExpectedTensor = &expected.tensors[1];
/// assert_eq!((y.says, y.says.key()), (Says::Schedule, "statements"));
/// println!("compared with {}", y.says.phrase());
///
/// outcome.outputs[0].values[0] += 1.0;
/// let off: Disagreement = *interp::compare(&outcome, &expected).unwrap_err();
/// assert_eq!(off.at, Some((0, 0)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Expected {
    /// Index of the launch.
    pub launch: usize,
    /// Every gathered tensor and output of every rank.
    pub tensors: Vec<ExpectedTensor>,
}

/// One rank's expected tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct ExpectedTensor {
    /// The rank.
    pub rank: u32,
    /// Tensor that is expected.
    pub tensor: TensorId,
    /// Element type of the tensor.
    pub dtype: Dtype,
    /// Source of the expectation.
    pub says: Says,
    /// The rows the rank holds.
    pub rows: Extent,
    /// Number of columns.
    pub columns: u32,
    /// Row by row: all slots, one below the other.
    pub values: Vec<f64>,
    /// The error bound of each.
    pub bounds: Vec<f64>,
}

/// The source of an expected output.
///
/// [`Expected`] has an example. [`Says::key`] is for programs, [`Says::phrase`] for people:
///
/// ```
/// use counterflow_emulator::Says;
///
/// assert_eq!((Says::Type.key(), Says::Type.phrase()), ("type", "what its type promises"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Says {
    /// The user's own reference.
    User,
    /// The promise of the tensor's type, whatever the schedule does to keep it.
    Type,
    /// The statements of the schedule, one after another.
    Schedule,
}

impl Says {
    /// Name in JSON.
    pub const fn key(self) -> &'static str {
        match self {
            Says::User => "reference",
            Says::Type => "type",
            Says::Schedule => "statements",
        }
    }

    /// Description for people.
    pub const fn phrase(self) -> &'static str {
        match self {
            Says::User => "your reference",
            Says::Type => "what its type promises",
            Says::Schedule => "the schedule's statements, executed one after another",
        }
    }
}

/// Reason that there is nothing to compare an output with.
///
/// ```
/// use counterflow_emulator::{self as interp, NoReference};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (_, plan) = example::proven();
/// let mut kernel = plan.kernel().clone();
/// let program = example::ag_gemm().reference(|_| Err("not yet".into()));
/// kernel.program = std::sync::Arc::new(program);
/// let none: NoReference = interp::reference(&kernel, &plan, 0, interp::uniform(0)).unwrap_err();
/// assert_eq!((&none.of[..], &none.why[..]), ("x", "not yet"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoReference {
    /// The tensor, or the schedule.
    pub of: String,
    /// Explanation for the user.
    pub why: String,
}

impl fmt::Display for NoReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no reference for {}: {}", self.of, self.why)
    }
}

impl std::error::Error for NoReference {}
