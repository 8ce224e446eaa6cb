//! The backward pass.

use super::casts::Fp8;
use super::operand::Operand;
use super::{Gradients, Linear, OutputGradient, Parameters, Saved, Source, fits};
use crate::overlap::Parallel;
use crate::step::CODES;
use counterflow::prelude::bf16;
use counterflow::{Error, Tensor};

impl Linear {
    /// Enqueues the gradient of the input, of this rank's gradient of the output, into `dx`; and adds the gradients of the weights
    /// to what the caller has. `dy` is `&` a tensor, or [a place](Linear::gradient_place) that it was written to. Shapes are those of
    /// [`Linear::input_shape`] and [`Linear::output_shape`] for the rows of the forward pass.
    ///
    /// # Errors
    /// [`Error::Usage`], before anything is enqueued, for tensors of another shape, and for a weight's gradient that is absent, or
    /// given where the layer is frozen; what a launch refuses.
    pub fn backward<'a>(
        &self,
        saved: Saved,
        parameters: &Parameters<'_>,
        dy: impl Into<OutputGradient<'a>>,
        dx: &mut Tensor<bf16>,
        gradients: Gradients<'_>,
    ) -> Result<(), Error> {
        let Some(input) = saved.input.clone() else {
            return Err(Error::Usage {
                what: "what another kind of layer has saved".into(),
                legal: "give what this layer's forward pass gave back".into(),
            });
        };
        let wanted = self.input_shape(saved.rows);
        fits("the saved input", input.shape(), wanted)?;
        self.backward_of((&saved, &input), parameters, &dy.into(), dx, gradients)
    }

    /// Backward pass of an input and a gradient that kernels may write where they are wanted.
    pub(crate) fn backward_of(
        &self,
        (saved, source): (&Saved, &dyn Source),
        parameters: &Parameters<'_>,
        dy: &dyn Source,
        dx: &mut Tensor<bf16>,
        gradients: Gradients<'_>,
    ) -> Result<(), Error> {
        self.checks_backward(saved.rows, parameters, dy, &gradients)?;
        fits("dx", dx.shape(), self.input_shape(saved.rows))?;
        if saved.rows == 0 {
            return Ok(());
        }
        let _turn = self.userbuffers.turn();
        let of = (saved, source);
        match self.sums_gradients_of_input() {
            true => self.of_column(of, parameters, dy, dx, gradients),
            false => self.of_own(of, parameters, dy, dx, gradients),
        }
    }

    /// As `backward_of`, where `read` enqueues what reads the gradient of the input. Without rows there is nothing to read.
    pub(crate) fn backward_read(
        &self,
        (saved, source): (&Saved, &dyn Source),
        parameters: &Parameters<'_>,
        dy: &dyn Source,
        gradients: Gradients<'_>,
        read: impl FnOnce(&Tensor<bf16>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut dx = self.lend_input(saved.rows)?;
        let of = (saved, source);
        self.backward_of(of, parameters, dy, &mut dx, gradients)?;
        match saved.rows {
            0 => Ok(()),
            _ => read(&dx),
        }
    }

    /// True if ranks sum the gradients of an input that each has a shard of.
    fn sums_gradients_of_input(&self) -> bool {
        self.config.parallel == Parallel::Column && !self.is_alone()
    }

    fn checks_backward(
        &self,
        rows: usize,
        parameters: &Parameters<'_>,
        dy: &dyn Source,
        gradients: &Gradients<'_>,
    ) -> Result<(), Error> {
        self.checks(rows, parameters)?;
        self.is_last(dy.number(), true)?;
        self.is_no_place(dy)?;
        if let Some(dy) = dy.tensor() {
            fits("dy", dy.shape(), self.output_shape(rows))?;
        }
        self.checks_gradients(gradients)
    }

    fn checks_gradients(&self, gradients: &Gradients<'_>) -> Result<(), Error> {
        match (&gradients.weight, self.config.frozen) {
            (Some(weight), false) => {
                fits("the weight's gradient", weight.shape(), self.weight_shape())?;
            }
            (None, true) => {}
            (given, _) => {
                let not = if given.is_some() { "" } else { "not " };
                return Err(Error::Usage {
                    what: format!("the weight's gradient is {not}given"),
                    legal: "give it, but for a layer whose `LinearConfig::frozen` is set".into(),
                });
            }
        }
        match (&gradients.bias, self.config.bias) {
            (Some(bias), true) => fits("the bias's gradient", bias.shape(), self.bias_shape()),
            (None, _) => Ok(()),
            (Some(_), false) => Err(Error::Usage {
                what: "a bias's gradient is given, and the layer has no bias".into(),
                legal: "leave it out".into(),
            }),
        }
    }

    /// `dx = reduce_scatter(dy · w)` and `dw += dyᵀ · all_gather(x)`.
    fn of_column(
        &self,
        (saved, source): (&Saved, &dyn Source),
        parameters: &Parameters<'_>,
        dy: &dyn Source,
        dx: &mut Tensor<bf16>,
        mut gradients: Gradients<'_>,
    ) -> Result<(), Error> {
        let rows = saved.rows;
        let partial = self.partial.as_ref();
        let mut partial = partial.map(|partial| partial.rows(0..rows)).transpose()?;
        let gradient = self.gradient(rows, dy)?;
        let weight = self.weight_on_its_side(parameters.weight)?;
        // The input of all ranks, unless it was kept or nothing needs it.
        let again = self.again(saved, source)?;
        let moving = again.as_ref().map(|again| self.moving(again)).transpose()?;
        if let Some(moving) = &moving
            && !self.gathers_beside_dgrad
        {
            self.gather(moving, rows)?;
        }
        let launch = self.dgrad.op.on(&**self.rank());
        let launch = launch.tensor("x", &gradient.rows).tensor("w", &weight);
        let launch = match &mut partial {
            Some(partial) => launch.tensor("y", partial),
            None => launch.tensor("y", &mut *dx),
        };
        let launch = match moving.as_ref().filter(|_| self.gathers_beside_dgrad) {
            Some(moving) => launch.tensor("z", moving),
            None => launch,
        };
        launch.rows(rows).launch()?;
        if let (Some(fp8), Some(to)) = (self.in_blocks(), &mut gradients.weight) {
            self.weight_in_blocks(fp8, (saved, source), (dy, &gradient), to)?;
        } else if let Some(to) = gradients.weight {
            let beside = partial.as_ref().filter(|_| self.overlap.bulk_wgrad);
            let beside = beside.map(|partial| (partial, &mut *dx));
            let x = self.input_along_tokens(saved, source, again)?;
            self.weight(rows, gradient.along_tokens(), &x, to, beside)?;
        }
        if let Some(partial) = &partial
            && !self.overlap.bulk_wgrad
        {
            self.sum(partial, dx, None, rows)?;
        }
        if gradients.bias.is_none() {
            return Ok(());
        }
        let dy = Operand::Own(self.whole_gradient(rows, dy)?);
        self.bias(rows, &dy, gradients.bias)
    }

    /// `dx = dy · w` and `dw += dyᵀ · x` of one rank's input; `dy` is gathered where ranks have shards of it.
    fn of_own(
        &self,
        (saved, source): (&Saved, &dyn Source),
        parameters: &Parameters<'_>,
        dy: &dyn Source,
        dx: &mut Tensor<bf16>,
        mut gradients: Gradients<'_>,
    ) -> Result<(), Error> {
        let rows = saved.rows;
        let mut gradient = self.gradient(rows, dy)?;
        let weight = self.weight_on_its_side(parameters.weight)?;
        let launch = self.dgrad.op.on(&**self.rank());
        let launch = launch.tensor("x", &gradient.rows).tensor("w", &weight);
        launch.tensor("y", dx).rows(rows).launch()?;
        if let (Some(fp8), Some(to)) = (self.in_blocks(), &mut gradients.weight) {
            self.weight_in_blocks(fp8, (saved, source), (dy, &gradient), to)?;
        } else if let Some(to) = gradients.weight {
            self.turned_gradient(rows, &mut gradient)?;
            let x = self.input_along_tokens(saved, source, None)?;
            self.weight(rows, gradient.along_tokens(), &x, to, None)?;
        }
        if gradients.bias.is_none() {
            return Ok(());
        }
        match &gradient.rows {
            all @ Operand::All(_) => self.bias(rows, all, gradients.bias),
            Operand::Own(_) | Operand::Coded { .. } => {
                let own = self.whole_gradient(rows, dy)?;
                let rows = own.shape()[0];
                self.bias(rows, &Operand::Own(own), gradients.bias)
            }
        }
    }

    fn in_blocks(&self) -> Option<&Fp8> {
        self.fp8.as_ref().filter(|fp8| fp8.is_in_blocks())
    }

    /// Adds the weight's gradient, beside a sum over ranks of another tensor or not.
    pub(super) fn weight(
        &self,
        rows: usize,
        dy: &Operand,
        x: &Operand,
        gradient: &mut Tensor<f32>,
        beside: Option<(&Tensor<bf16>, &mut Tensor<bf16>)>,
    ) -> Result<(), Error> {
        let Some(wgrad) = &self.wgrad else {
            return Ok(());
        };
        let launch = wgrad.op.on(&**self.rank()).tensor("dy", dy).tensor("x", x);
        let launch = launch.tensor("grad", gradient);
        let launch = match beside {
            Some((partial, sum)) => {
                let launch = launch.tensor("g", partial).tensor("r", sum);
                launch.beside(rows)
            }
            None => launch,
        };
        let depth = match self.fp8 {
            Some(_) => rows.next_multiple_of(CODES),
            None => rows,
        };
        launch.depth(depth).launch().map(drop)
    }

    /// Adds the sum of all rows, which are gathered, or those of this rank.
    fn bias(
        &self,
        rows: usize,
        dy: &Operand,
        gradient: Option<&mut Tensor<f32>>,
    ) -> Result<(), Error> {
        let (Some(bias), Some(gradient)) = (&self.bias, gradient) else {
            return Ok(());
        };
        let first = bias.sums.rows(0..1)?;
        // Ranks have the same sums so far: of those that are added up, one begins with them.
        let begins = bias.over_ranks.is_none() || self.rank().rank() == 0;
        match begins {
            true => first.copy_from(gradient)?,
            false => first.fill(0)?,
        }
        if rows > 0 {
            let ones = bias.ones.rows(0..rows)?;
            let mut sums = bias.sums.clone();
            let launch = bias.built.op.on(&**self.rank());
            let launch = launch.tensor("dy", &ones).tensor("x", dy);
            launch.tensor("grad", &mut sums).depth(rows).launch()?;
        }
        if let Some(over_ranks) = &bias.over_ranks {
            over_ranks.over_ranks(&mut first.clone())?;
        }
        gradient.copy_from(&first)
    }
}
