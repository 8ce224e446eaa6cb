//! The forward pass.

use super::operand::Operand;
use super::{Linear, Parameters, Saved, Source, fits};
use crate::overlap::Parallel;
use crate::step::Built;
use counterflow::op::Launch;
use counterflow::prelude::bf16;
use counterflow::{Error, Op, Tensor, UserBuffer};

impl Linear {
    /// Enqueues `y` for so many rows over all ranks, of this rank's input, [`Linear::input_shape`], into its output,
    /// [`Linear::output_shape`]. All that `y` had is written over.
    ///
    /// What is given back is for the backward pass. A forward pass that is made again for it overlaps as the first one did.
    ///
    /// # Errors
    /// [`Error::Usage`], before anything is enqueued, for tensors of another shape and for more rows than the buffers have; what a
    /// launch refuses ([`Launch::launch`]).
    pub fn forward(
        &self,
        rows: usize,
        x: &Tensor<bf16>,
        parameters: &Parameters<'_>,
        y: &mut Tensor<bf16>,
    ) -> Result<Saved, Error> {
        self.checks(rows, parameters)?;
        fits("x", x.shape(), self.input_shape(rows))?;
        self.forward_of(rows, x, parameters, y)
    }

    /// Forward pass of rows that a kernel may write where they are wanted.
    pub(crate) fn forward_of(
        &self,
        rows: usize,
        source: &dyn Source,
        parameters: &Parameters<'_>,
        y: &mut Tensor<bf16>,
    ) -> Result<Saved, Error> {
        self.checks(rows, parameters)?;
        fits("y", y.shape(), self.output_shape(rows))?;
        let mut saved = Saved {
            rows,
            input: source.tensor().cloned(),
            gathered: None,
            kept: None,
        };
        if rows == 0 {
            return Ok(saved);
        }
        let _turn = self.userbuffers.turn();
        let weight = self.weight_operand(parameters.weight)?;
        let x = self.input(rows, source, &mut saved)?;
        let product = |bias| self.product(&weight, parameters.bias.filter(|_| bias));
        if self.config.parallel == Parallel::Column || self.is_alone() {
            let launch = product(true).tensor("x", &x).tensor("y", y);
            launch.rows(rows).launch()?;
            self.keep(rows, &x, &mut saved)?;
            return Ok(saved);
        }
        match &self.partial {
            None => {
                let launch = product(true).tensor("x", &x).tensor("y", y);
                launch.rows(rows).launch()?;
            }
            Some(partial) => {
                let mut partial = partial.rows(0..rows)?;
                let launch = product(false).tensor("x", &x).tensor("y", &mut partial);
                launch.rows(rows).launch()?;
                self.sum(&partial, y, parameters.bias, rows)?;
            }
        }
        Ok(saved)
    }

    /// A launch of the output's product, with its weights.
    fn product<'a>(&'a self, weight: &'a Operand, bias: Option<&'a Tensor<bf16>>) -> Launch<'a> {
        let launch = self.fprop.op.on(&**self.rank()).tensor("w", weight);
        match bias {
            Some(bias) => launch.tensor("bias", bias),
            None => launch,
        }
    }

    /// Gathers them, where no product does.
    pub(super) fn gather(&self, all: &UserBuffer<bf16>, rows: usize) -> Result<(), Error> {
        let op = needed(&self.gather)?;
        let launch = op.on(&**self.rank()).tensor("x", all);
        launch.rows(rows).launch().map(drop)
    }

    /// The same of scales.
    pub(super) fn gather_scales(&self, all: &UserBuffer<f32>, rows: usize) -> Result<(), Error> {
        let op = needed(&self.gather_scales)?;
        let launch = op.on(&**self.rank()).tensor("x", all);
        launch.rows(rows).launch().map(drop)
    }

    /// Sums what products have left, where none does.
    pub(super) fn sum(
        &self,
        partial: &Tensor<bf16>,
        own: &mut Tensor<bf16>,
        bias: Option<&Tensor<bf16>>,
        rows: usize,
    ) -> Result<(), Error> {
        let op = needed(&self.sum)?;
        let launch = op.on(&**self.rank()).tensor("g", partial).tensor("y", own);
        let launch = match bias {
            Some(bias) => launch.tensor("bias", bias),
            None => launch,
        };
        launch.rows(rows).launch().map(drop)
    }
}

/// An op that the layer's plan has.
fn needed(built: &Option<Built>) -> Result<&Op, Error> {
    built
        .as_ref()
        .map(|built| &built.op)
        .ok_or_else(|| Error::Usage {
            what: "a layer without an op that it needs".into(),
            legal: "report it".into(),
        })
}
