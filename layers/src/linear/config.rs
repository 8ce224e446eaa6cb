//! What a linear layer is.

use crate::overlap::{Flags, Parallel};

/// Sizes and settings of a [`Linear`](crate::Linear).
#[derive(Clone, PartialEq, Eq, Debug)]
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
            flags: Flags::default(),
            ub_name: None,
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
