//! One linear layer on a rank, with its part of matrices that every rank knows.

use super::model::tensor;
use super::reference::Matrix;
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
use counterflow_layers::overlap::{Flags, Parallel};
use counterflow_layers::{Gradients, Linear, LinearConfig, Parameters, Saved, Userbuffers};
use std::ops::Range;

/// A layer with one of TransformerEngine's names.
pub fn linear(parallel: Parallel, features: [usize; 2], flags: Flags) -> LinearConfig {
    let (name, base) = match parallel {
        Parallel::Column => ("fc1", LinearConfig::column(features[0], features[1])),
        Parallel::Row => ("fc2", LinearConfig::row(features[0], features[1])),
    };
    LinearConfig {
        flags,
        ub_name: Some(name.into()),
        ..base
    }
}

/// A linear layer of a rank with its weight, and gradients that start from 0.
pub struct Held {
    pub layer: Linear,
    pub weight: Tensor<bf16>,
    bias: Option<Tensor<bf16>>,
    pub of_weight: Tensor<f32>,
}

/// A rank's part of a matrix: rows are divided if the other side is not.
pub fn own(
    rank: &Communicator,
    of: &Matrix,
    [rows, columns]: [usize; 2],
) -> Result<Tensor<bf16>, Error> {
    let [of_rows, of_columns] = own_part(rank, of, [rows, columns]);
    tensor(rank, [rows, columns], &of.part(of_rows, of_columns))
}

/// Its rows and columns.
pub fn own_part(
    rank: &Communicator,
    of: &Matrix,
    [rows, columns]: [usize; 2],
) -> [Range<usize>; 2] {
    let me = rank.rank();
    let of_rows = match rows == of.rows() {
        true => 0..rows,
        false => rank.shard(me, of.rows()),
    };
    let first = match columns == of.columns {
        true => 0,
        false => columns * me as usize,
    };
    [of_rows, first..first + columns]
}

impl Held {
    pub fn new(
        buffers: &Userbuffers,
        config: &LinearConfig,
        weight: &Matrix,
        bias: Option<&Matrix>,
    ) -> Result<Held, Error> {
        let rank = buffers.rank();
        let layer = Linear::new(buffers, config)?;
        let bias = bias.map(|bias| own(rank, bias, layer.bias_shape()));
        Ok(Held {
            weight: own(rank, weight, layer.weight_shape())?,
            bias: bias.transpose()?,
            of_weight: rank.zeros(layer.weight_shape())?,
            layer,
        })
    }

    pub fn parameters(&self) -> Parameters<'_> {
        Parameters {
            weight: &self.weight,
            bias: self.bias.as_ref(),
        }
    }

    pub fn forward(&self, rank: &Communicator, x: &Matrix) -> Result<(Tensor<bf16>, Saved), Error> {
        let rows = x.rows();
        let x = own(rank, x, self.layer.input_shape(rows))?;
        let mut y = rank.zeros(self.layer.output_shape(rows))?;
        y.fill(0xff)?; // NaN
        let saved = self.layer.forward(rows, &x, &self.parameters(), &mut y)?;
        Ok((y, saved))
    }

    pub fn backward(
        &mut self,
        rank: &Communicator,
        saved: Saved,
        dy: &Matrix,
    ) -> Result<Tensor<bf16>, Error> {
        let rows = dy.rows();
        let dy = own(rank, dy, self.layer.output_shape(rows))?;
        let mut dx = rank.zeros(self.layer.input_shape(rows))?;
        dx.fill(0xff)?;
        let frozen = self.layer.config().frozen;
        let gradients = Gradients {
            weight: (!frozen).then_some(&mut self.of_weight),
            bias: None,
        };
        let parameters = Parameters {
            weight: &self.weight,
            bias: self.bias.as_ref(),
        };
        self.layer
            .backward(saved, &parameters, &dy, &mut dx, gradients)?;
        Ok(dx)
    }
}
