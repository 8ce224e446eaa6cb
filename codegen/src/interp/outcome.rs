//! The inputs and results of a run.

use super::policy::Policy;
use crate::program::TensorId;
use crate::shape::Extent;

/// An input to fill, row by row.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// For which launch.
    pub launch: usize,
    /// On which rank.
    pub rank: u32,
    /// Which tensor.
    pub tensor: TensorId,
    /// Its name.
    pub name: &'a str,
    /// The rows: the rank's own chunk of a gathered tensor, all of another.
    pub rows: Extent,
    /// How many columns.
    pub columns: u32,
}

/// A tensor as it was at the end of a launch.
#[derive(Clone, PartialEq, Debug)]
pub struct Output {
    /// Which launch.
    pub launch: usize,
    /// On which rank.
    pub rank: u32,
    /// Which tensor.
    pub tensor: TensorId,
    /// The rows the rank holds.
    pub rows: Extent,
    /// Row by row: all slots, one below the other.
    pub values: Vec<f32>,
}

/// The result of a run.
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
