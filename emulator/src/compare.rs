//! Compares outputs with their reference.

use super::expected::{Expected, ExpectedTensor};
use super::outcome::Outcome;
use counterflow_codegen::program::TensorId;
use std::fmt;

/// Agreement of outputs with their reference.
///
/// [`Expected`](super::Expected) has an example.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Agreement {
    /// The largest distance of an element from its reference.
    pub max_abs: f64,
    /// The largest distance as a share of what rounding allows there: at most 1.
    pub max_of_bound: f64,
    /// Elements compared.
    pub elements: u64,
}

/// The element that is furthest off, relative to what rounding allows.
///
/// [`Expected`](super::Expected) has an example.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Disagreement {
    /// Index of the launch.
    pub launch: usize,
    /// Rank that holds the output.
    pub rank: u32,
    /// Tensor that is compared.
    pub tensor: TensorId,
    /// Slot, where the tensor has several.
    pub slot: Option<u32>,
    /// Element, in global rows and columns; `None` if the run has no such output, or one of another size.
    pub at: Option<(u32, u32)>,
    /// The value there.
    pub got: f32,
    /// The expected value.
    pub expected: f64,
    /// Deviation that is allowed.
    pub bound: f64,
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Disagreement {
            launch,
            rank,
            tensor,
            slot,
            got,
            expected,
            bound,
            ..
        } = self;
        match self.at {
            Some((row, column)) => {
                let slot = slot.map_or_else(String::new, |slot| format!("slot {slot}, "));
                write!(
                    f,
                    "tensor {} on rank {rank} after launch {launch}: {slot}[{row}, {column}] is {got}, expected {expected} ± {bound}",
                    tensor.0
                )
            }
            None => write!(
                f,
                "tensor {} on rank {rank} after launch {launch} is not there, or has another size than its reference",
                tensor.0
            ),
        }
    }
}

impl std::error::Error for Disagreement {}

/// Compares a launch's outputs with their reference, element by element, within each element's bound. NaN never passes.
///
/// # Errors
/// The element that is furthest off.
pub fn compare(outcome: &Outcome, expected: &Expected) -> Result<Agreement, Box<Disagreement>> {
    check(outcome, expected, |got, expected, bound, _| {
        let off = (f64::from(got) - expected).abs();
        if off == 0.0 { 0.0 } else { off / bound }
    })
}

/// Compares bit for bit: for inputs whose sums are exact in every order, such as [`super::integers`].
///
/// # Errors
/// The first element that differs.
pub fn compare_exactly(
    outcome: &Outcome,
    expected: &Expected,
) -> Result<Agreement, Box<Disagreement>> {
    check(outcome, expected, |got, expected, _, tensor| {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "rounded as a store rounds it"
        )]
        let rounded = tensor.dtype.round(expected as f32);
        // Compared as numbers, so that -0 equals 0.
        if got == rounded { 0.0 } else { f64::INFINITY }
    })
}

fn check(
    outcome: &Outcome,
    expected: &Expected,
    off: impl Fn(f32, f64, f64, &ExpectedTensor) -> f64,
) -> Result<Agreement, Box<Disagreement>> {
    let mut agreement = Agreement::default();
    let mut worst: Option<(f64, Disagreement)> = None;
    for tensor in &expected.tensors {
        let mut disagreement = Disagreement {
            launch: expected.launch,
            rank: tensor.rank,
            tensor: tensor.tensor,
            slot: None,
            at: None,
            got: f32::NAN,
            expected: f64::NAN,
            bound: 0.0,
        };
        let output = outcome.output(expected.launch, tensor.rank, tensor.tensor);
        let Some(output) = output.filter(|output| output.values.len() == tensor.values.len())
        else {
            return Err(Box::new(disagreement));
        };
        let columns = tensor.columns.max(1) as usize;
        let elements = output.values.iter().zip(&tensor.values).zip(&tensor.bounds);
        for (index, ((got, value), bound)) in elements.enumerate() {
            let by = off(*got, *value, *bound, tensor);
            agreement.elements += 1;
            agreement.max_abs = agreement.max_abs.max((f64::from(*got) - value).abs());
            agreement.max_of_bound = agreement.max_of_bound.max(by);
            // NaN compares false, and is the worst.
            let within = by <= 1.0;
            let by = if by.is_nan() { f64::INFINITY } else { by };
            if !within && worst.is_none_or(|(known, _)| known < by) {
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "rows and columns are 32 bits"
                )]
                let (row, column) = ((index / columns) as u32, (index % columns) as u32);
                // Slots lie one below the other.
                let rows = tensor.rows.len().max(1);
                let several = tensor.values.len() > rows as usize * columns;
                disagreement.slot = several.then_some(row / rows);
                disagreement.at = Some((tensor.rows.start + row % rows, column));
                (disagreement.got, disagreement.expected) = (*got, *value);
                disagreement.bound = *bound;
                worst = Some((by, disagreement));
            }
        }
    }
    match worst {
        None => Ok(agreement),
        Some((_, worst)) => Err(Box::new(worst)),
    }
}
