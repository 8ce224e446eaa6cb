//! What a linear layer is.

use crate::fp8::Recipe;
use crate::overlap::{Flags, Parallel};
use crate::userbuffers::QuantizationMode;

/// Sizes and settings of a [`Linear`](crate::Linear).
#[derive(Clone, PartialEq, Debug)]
pub struct LinearConfig {
    /// Division of the weight between ranks.
    pub parallel: Parallel,
    /// Columns of the input over all ranks: a multiple of 8, and in a row-parallel layer of 8 times the ranks.
    pub in_features: usize,
    /// Columns of the output over all ranks: a multiple of 8, and in a column-parallel layer of 8 times the ranks.
    pub out_features: usize,
    /// True if a bias is added to the output: once, whatever the number of ranks.
    pub bias: bool,
    /// True if the weight gets no gradient. Then nothing is gathered for it, and the bulk flags fall away.
    pub frozen: bool,
    /// True if a column-parallel layer saves the gathered input for the backward pass, instead of gathering it again.
    pub keep_gathered: bool,
    /// Recipe of the layer's FP8 products. `None`: products of bf16. Then the features of a rank are multiples of 16, and the layer runs
    /// in steps: [`Userbuffers::autocast`](crate::Userbuffers::autocast).
    pub fp8: Option<Recipe>,
    /// Overlap of the products.
    pub flags: Flags,
    /// The name by which the configuration has the layer's products: needed where anything is overlapped.
    pub ub_name: Option<String>,
}

impl LinearConfig {
    fn new(parallel: Parallel, in_features: usize, out_features: usize) -> LinearConfig {
        LinearConfig {
            parallel,
            in_features,
            out_features,
            bias: false,
            frozen: false,
            keep_gathered: false,
            fp8: None,
            flags: Flags::default(),
            ub_name: None,
        }
    }

    /// The mode whose settings its products have.
    pub(crate) fn mode(&self) -> QuantizationMode {
        match self.fp8 {
            Some(_) => QuantizationMode::Fp8,
            None => QuantizationMode::None,
        }
    }

    /// A column-parallel layer: without a bias, and nothing overlapped.
    pub fn column(in_features: usize, out_features: usize) -> LinearConfig {
        LinearConfig::new(Parallel::Column, in_features, out_features)
    }

    /// A row-parallel layer: without a bias, and nothing overlapped.
    pub fn row(in_features: usize, out_features: usize) -> LinearConfig {
        LinearConfig::new(Parallel::Row, in_features, out_features)
    }
}
