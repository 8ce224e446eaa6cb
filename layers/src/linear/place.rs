//! Memory that the gradient of a layer's output is written to, so that nothing copies it to where ranks gather it.

use super::source::{Place, Source};
use super::{Linear, exceeds};
use crate::overlap::Parallel;
use crate::scratch::Lent;
use counterflow::prelude::bf16;
use counterflow::{Error, Tensor, UserBuffer};
use std::ops::{Deref, DerefMut};

/// Memory for this rank's gradient of a layer's output: [`Linear::gradient_place`] gives it.
///
/// It is a [`Tensor`] to write to, such as by the backward pass of the layer behind. A row-parallel layer of bf16 gathers what is there
/// from there; a tensor that is given in its place is copied first. All layers of a group have one such place, one after the other: once
/// another place is asked for, or another gradient was given, this one's contents are gone, and every layer of the group refuses it. Every
/// layer refuses the tensor without its place as a gradient, too (`&*place`, a handle or rows of it): nothing tells whose gradient lies there.
///
/// ```
/// use counterflow::Communicator;
/// use counterflow_layers::{Gradients, Initialize, Linear, LinearConfig, Parameters, Userbuffers};
/// use std::sync::Arc;
///
/// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
/// rank.reserve(4 << 20)?;
/// let userbuffers = Userbuffers::initialize(&rank, &Initialize::new([16, 32], 1))?;
/// let proj = Linear::new(&userbuffers, &LinearConfig::row(32, 32))?;
/// let (weight, x) = (rank.zeros(proj.weight_shape())?, rank.zeros(proj.input_shape(7))?);
/// let (mut y, mut dx) = (rank.zeros(proj.output_shape(7))?, rank.zeros(x.shape())?);
/// let parameters = Parameters { weight: &weight, bias: None };
/// let saved = proj.forward(7, &x, &parameters, &mut y)?;
///
/// let dy = proj.gradient_place(7)?;
/// dy.copy_from(&y)?; // or the `dx` of the layer behind: `behind.backward(…, &mut dy, …)`
/// let mut of_weight = rank.zeros(weight.shape())?;
/// let gradients = Gradients { weight: Some(&mut of_weight), bias: None };
/// proj.backward(saved, &parameters, &dy, &mut dx, gradients)?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Debug)]
pub struct GradientPlace {
    memory: Lent<bf16>,
    /// Its number among those that come to the buffer, if it is there; 0 before it has come.
    number: Option<u64>,
}

impl GradientPlace {
    /// Memory from which the rows are copied.
    pub(crate) fn of(memory: Lent<bf16>) -> GradientPlace {
        GradientPlace {
            memory,
            number: None,
        }
    }
}

impl Deref for GradientPlace {
    type Target = Tensor<bf16>;

    fn deref(&self) -> &Tensor<bf16> {
        &self.memory
    }
}

impl DerefMut for GradientPlace {
    fn deref_mut(&mut self) -> &mut Tensor<bf16> {
        &mut self.memory
    }
}

/// A gradient of a layer's output: `&` a tensor, or the place that the layer gave for it.
#[derive(Clone, Copy, Debug)]
pub struct OutputGradient<'a> {
    rows: &'a Tensor<bf16>,
    number: Option<u64>,
}

impl<'a> Deref for OutputGradient<'a> {
    type Target = Tensor<bf16>;

    fn deref(&self) -> &Tensor<bf16> {
        self.rows
    }
}

impl<'a> From<&'a Tensor<bf16>> for OutputGradient<'a> {
    fn from(rows: &'a Tensor<bf16>) -> Self {
        OutputGradient { rows, number: None }
    }
}

impl<'a> From<&'a GradientPlace> for OutputGradient<'a> {
    fn from(place: &'a GradientPlace) -> Self {
        OutputGradient {
            rows: &place.memory,
            number: place.number,
        }
    }
}

impl Source for OutputGradient<'_> {
    fn put(&self, to: Place<'_>) -> Result<(), Error> {
        self.rows.put(to)
    }

    fn tensor(&self) -> Option<&Tensor<bf16>> {
        Some(self.rows)
    }

    fn number(&self) -> Option<u64> {
        self.number
    }
}

impl Linear {
    /// True if ranks gather the gradients of an output, as elements.
    fn gathers_gradients(&self) -> bool {
        self.config.parallel == Parallel::Row && !self.is_alone() && self.fp8.is_none()
    }

    /// Memory for the gradient of this rank's output, [`Linear::output_shape`], in a call of so many rows over all ranks. It has anything
    /// in it. Where nothing would be copied anyway, as in a column-parallel layer or in FP8, it is memory as any other.
    ///
    /// # Errors
    /// [`Error::Usage`] for more rows than the buffers have.
    pub fn gradient_place(&self, rows: usize) -> Result<GradientPlace, Error> {
        let mut place = self.next_gradient(rows)?;
        self.has_come(&mut place);
        Ok(place)
    }

    /// That place before anything is written there: the gradient that is there now may be needed first. Once it is not, the caller
    /// says that the next one [has come](Linear::has_come).
    pub(crate) fn next_gradient(&self, rows: usize) -> Result<GradientPlace, Error> {
        exceeds(rows, self.userbuffers.shape()[0])?;
        if !self.gathers_gradients() {
            return self.lend_output(rows).map(GradientPlace::of);
        }
        let own = self.rank().shard(self.rank().rank(), rows);
        let place = self.gradients(rows)?.rows(own)?;
        Ok(GradientPlace {
            memory: self.rank().tensor_of(&place)?.into(),
            number: Some(0),
        })
    }

    /// From now on it is the last gradient that came.
    pub(crate) fn has_come(&self, place: &mut GradientPlace) {
        let number = place.number.is_some();
        place.number = number.then(|| self.userbuffers.another_gradient());
    }

    /// The buffer that gradients of an output are gathered in.
    fn gradients(&self, rows: usize) -> Result<UserBuffer<bf16>, Error> {
        let whole = self.each(rows) * self.rank().world() as usize;
        self.userbuffers.gradients([whole, self.sides[0]])
    }

    /// Refuses a place whose contents are gone: of a number that is not the last, or not where it should be.
    pub(super) fn is_last(&self, number: Option<u64>, there: bool) -> Result<(), Error> {
        let last = number.is_none_or(|number| self.userbuffers.is_last_gradient(number));
        match last && there {
            true => Ok(()),
            false => Err(Error::Usage {
                what: "a place for a gradient, after another gradient or for other rows".into(),
                legal: "ask for a place for each gradient, with its rows, and give it to its layer before the next one".into(),
            }),
        }
    }

    /// Refuses memory of a place that is given as a tensor: it has no number, so nobody could tell whose gradient is there.
    pub(super) fn is_no_place(&self, dy: &dyn Source) -> Result<(), Error> {
        let plain = dy.tensor().filter(|_| dy.number().is_none());
        match plain.is_some_and(|plain| self.userbuffers.holds_gradient(plain)) {
            false => Ok(()),
            true => Err(Error::Usage {
                what: "a gradient's place as a plain tensor".into(),
                legal: "give the `GradientPlace` itself (`&place`, not `&*place`): it knows whether its contents are still there".into(),
            }),
        }
    }

    /// That buffer, with this rank's rows: they are there, or are put there.
    pub(super) fn put_gradient(
        &self,
        rows: usize,
        dy: &dyn Source,
    ) -> Result<UserBuffer<bf16>, Error> {
        let all = self.gradients(rows)?;
        let own = self.rank().shard(self.rank().rank(), rows);
        match (dy.number(), dy.tensor()) {
            (Some(number), Some(there)) => {
                let place = all.rows(own)?.address();
                self.is_last(Some(number), there.address() == place)?;
            }
            _ => {
                self.userbuffers.another_gradient();
                if !own.is_empty() {
                    dy.put(Place::Buffer(&mut all.rows(own)?))?;
                }
            }
        }
        Ok(all)
    }
}
