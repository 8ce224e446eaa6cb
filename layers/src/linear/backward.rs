//! The backward pass.

use super::forward::take;
use super::{Gradients, Linear, Parameters, Saved, Source, fits};
use crate::overlap::Parallel;
use counterflow::op::Argument;
use counterflow::prelude::bf16;
use counterflow::{Error, Tensor, UserBuffer};

/// Rows of this rank's own memory, or of all ranks in the heap.
#[derive(Clone, Copy)]
enum Rows<'a> {
    Own(&'a Tensor<bf16>),
    All(&'a UserBuffer<bf16>),
}

impl<'a> From<Rows<'a>> for Argument<'a> {
    fn from(rows: Rows<'a>) -> Argument<'a> {
        match rows {
            Rows::Own(tensor) => tensor.into(),
            Rows::All(buffer) => buffer.into(),
        }
    }
}

impl Linear {
    /// Enqueues the gradient of the input, of this rank's gradient of the output, into `dx`; and adds the gradients of the weights
    /// to what the caller has. Shapes are those of [`Linear::input_shape`] and [`Linear::output_shape`] for the rows of the
    /// forward pass.
    ///
    /// # Errors
    /// [`Error::Usage`], before anything is enqueued, for tensors of another shape, and for a weight's gradient that is absent, or
    /// given where the layer is frozen; what a launch refuses, or with `ub_bulk_wgrad` [`OpBuilder::build`](counterflow::OpBuilder::build):
    /// an op is built when a number of rows comes for the first time.
    pub fn backward(
        &self,
        saved: Saved,
        parameters: &Parameters<'_>,
        dy: &Tensor<bf16>,
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
        self.backward_of(&saved, &input, parameters, dy, dx, gradients)
    }

    /// Backward pass of an input that a kernel may write again where it is wanted.
    pub(crate) fn backward_of(
        &self,
        saved: &Saved,
        source: &dyn Source,
        parameters: &Parameters<'_>,
        dy: &Tensor<bf16>,
        dx: &mut Tensor<bf16>,
        gradients: Gradients<'_>,
    ) -> Result<(), Error> {
        let rows = saved.rows;
        self.checks(rows, parameters)?;
        fits("dy", dy.shape(), self.output_shape(rows))?;
        fits("dx", dx.shape(), self.input_shape(rows))?;
        self.checks_gradients(&gradients)?;
        if rows == 0 {
            return Ok(());
        }
        let _turn = self.userbuffers.turn();
        if self.rank().world() == 1 {
            return self.alone((rows, source), parameters, dy, dx, gradients);
        }
        match self.config.parallel {
            Parallel::Column => self.of_column((saved, source), parameters, dy, dx, gradients),
            Parallel::Row => self.of_row((rows, source), parameters, dy, dx, gradients),
        }
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

    /// One rank has all.
    fn alone(
        &self,
        (rows, source): (usize, &dyn Source),
        parameters: &Parameters<'_>,
        dy: &Tensor<bf16>,
        dx: &mut Tensor<bf16>,
        gradients: Gradients<'_>,
    ) -> Result<(), Error> {
        let launch = self.dgrad.op.on(&**self.rank());
        let launch = launch.tensor("x", dy).tensor("w", parameters.weight);
        launch.tensor("y", dx).rows(rows).launch()?;
        if let Some(weight) = gradients.weight {
            let x = self.whole(rows, source)?;
            self.weight(rows, Rows::Own(dy), Rows::Own(&x), weight, None)?;
        }
        self.bias(rows, Rows::Own(dy), gradients.bias)
    }

    /// `dx = reduce_scatter(dy · w)` and `dw += dyᵀ · all_gather(x)`.
    fn of_column(
        &self,
        (saved, source): (&Saved, &dyn Source),
        parameters: &Parameters<'_>,
        dy: &Tensor<bf16>,
        dx: &mut Tensor<bf16>,
        gradients: Gradients<'_>,
    ) -> Result<(), Error> {
        let rows = saved.rows;
        let mut own = self.landing(rows)?;
        let partial = self.partial.as_ref();
        let mut partial = partial.map(|partial| partial.rows(0..rows)).transpose()?;
        // The input of all ranks, unless it was kept or nothing needs it.
        let again = !self.config.frozen && saved.gathered.is_none();
        let again = again.then(|| self.put(rows, self.sides[1], source));
        let all = again.transpose()?;
        if let Some(all) = &all
            && !self.overlap.bulk_dgrad
        {
            self.gather(all, rows)?;
        }
        let launch = self.dgrad.op.on(&**self.rank());
        let launch = launch.tensor("x", dy).tensor("w", parameters.weight);
        let launch = match &mut partial {
            Some(partial) => launch.tensor("y", partial),
            None => launch.tensor("y", &mut own),
        };
        let launch = match all.as_ref().filter(|_| self.overlap.bulk_dgrad) {
            Some(all) => launch.tensor("z", all),
            None => launch,
        };
        launch.rows(rows).launch()?;
        if let Some(weight) = gradients.weight {
            let beside = partial.as_ref().filter(|_| self.overlap.bulk_wgrad);
            let beside = beside.map(|partial| (partial, &mut own));
            let again = all.as_ref().map(Rows::All);
            let kept = saved.gathered.as_deref().map(Rows::Own);
            // Of one that is not frozen, either is there.
            if let Some(x) = again.or(kept) {
                self.weight(rows, Rows::Own(dy), x, weight, beside)?;
            }
        }
        if let Some(partial) = &partial
            && !self.overlap.bulk_wgrad
        {
            self.sum(partial, &mut own, None, rows)?;
        }
        take(&own, dx)?;
        self.bias(rows, Rows::Own(dy), gradients.bias)
    }

    /// `dx = all_gather(dy) · w` and `dw += all_gather(dy)ᵀ · x`.
    fn of_row(
        &self,
        (rows, source): (usize, &dyn Source),
        parameters: &Parameters<'_>,
        dy: &Tensor<bf16>,
        dx: &mut Tensor<bf16>,
        gradients: Gradients<'_>,
    ) -> Result<(), Error> {
        let all = self.put(rows, self.sides[0], dy)?;
        if !self.overlap.dgrad_ag {
            self.gather(&all, rows)?;
        }
        let launch = self.dgrad.op.on(&**self.rank());
        let launch = launch.tensor("x", &all).tensor("w", parameters.weight);
        launch.tensor("y", dx).rows(rows).launch()?;
        if let Some(weight) = gradients.weight {
            let x = self.whole(rows, source)?;
            self.weight(rows, Rows::All(&all), Rows::Own(&x), weight, None)?;
        }
        self.bias(rows, Rows::All(&all), gradients.bias)
    }

    /// Adds the weight's gradient, beside a sum over ranks of another tensor or not.
    fn weight(
        &self,
        rows: usize,
        dy: Rows<'_>,
        x: Rows<'_>,
        gradient: &mut Tensor<f32>,
        beside: Option<(&Tensor<bf16>, &mut UserBuffer<bf16>)>,
    ) -> Result<(), Error> {
        let Some(wgrad) = &self.wgrad else {
            return Ok(());
        };
        let built = wgrad.of(self.rank(), rows)?;
        let launch = built.op.on(&**self.rank()).tensor("dy", dy).tensor("x", x);
        let launch = launch.tensor("grad", gradient);
        let launch = match beside {
            Some((partial, own)) => launch.tensor("g", partial).tensor("r", own),
            None => launch,
        };
        launch.depth(rows).launch().map(drop)
    }

    /// Adds the sum of all rows.
    fn bias(
        &self,
        rows: usize,
        dy: Rows<'_>,
        gradient: Option<&mut Tensor<f32>>,
    ) -> Result<(), Error> {
        let (Some(bias), Some(gradient)) = (&self.bias, gradient) else {
            return Ok(());
        };
        let first = bias.sums.rows(0..1)?;
        first.copy_from(gradient)?;
        let ones = bias.ones.rows(0..rows)?;
        let mut sums = bias.sums.clone();
        let launch = bias.built.op.on(&**self.rank());
        let launch = launch.tensor("dy", &ones).tensor("x", dy);
        launch.tensor("grad", &mut sums).depth(rows).launch()?;
        gradient.copy_from(&first)
    }
}
