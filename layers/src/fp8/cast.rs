//! How a tensor of a layer becomes codes.

use super::coded::{Coded, OwnCodes};
use super::recipe::{Recipe, Role};
use super::scope::{History, Shared};
use crate::side::CodedNormKernels;
use counterflow::op::Argument;
use counterflow::prelude::{bf16, e4m3};
use counterflow::quantise::{self, DeviceHistory, Quantiser, Scaling};
use counterflow::rule::Fp8;
use counterflow::{Communicator, Error, Tensor};
use std::sync::{Arc, PoisonError};

/// γ and β of a norm. RMSNorm has no β.
type Affine<'a> = (&'a Tensor<bf16>, Option<&'a Tensor<bf16>>);

/// A tensor of a layer, with the history that its scale may come from.
#[derive(Debug)]
pub(crate) struct Cast {
    recipe: quantise::Recipe,
    /// Of rows alone, and of rows with their transposed copy.
    quantisers: [Arc<Quantiser<'static>>; 2],
    history: Option<History>,
}

impl Cast {
    /// Loads what its launches need.
    pub fn new(shared: &Shared, recipe: &Recipe, role: Role) -> Result<Cast, Error> {
        let quantiser = recipe.quantiser(role);
        let history = recipe.history(role);
        let history = history.map(|history| shared.history(history));
        Ok(Cast {
            recipe: quantiser,
            quantisers: [
                shared.quantiser(quantiser)?,
                shared.quantiser(quantiser.with_transposed())?,
            ],
            history: history.transpose()?,
        })
    }

    /// The type of the codes.
    pub fn to(&self) -> Fp8 {
        self.recipe.rule.to
    }

    /// Enqueues codes and scales of rows that a norm makes in the same kernel, which follows this tensor's recipe; `kept` gets the codes,
    /// too. False: nothing was done.
    pub fn launch_normed(
        &self,
        kernels: &CodedNormKernels,
        (x, affine): (&Tensor<bf16>, Affine<'_>),
        (to, kept): (&mut Coded, Option<&mut Tensor<e4m3>>),
        statistics: &mut Tensor<f32>,
    ) -> Result<bool, Error> {
        let rows = (x, affine);
        match to {
            Coded::AllE4M3(all) => {
                let to = (&mut all.codes().clone(), kept, all.scales());
                self.by_history(kernels, rows, to, statistics)
            }
            Coded::E4M3(own) if self.history.is_some() => {
                let to = (&mut own.codes().clone(), kept, own.scales());
                self.by_history(kernels, rows, to, statistics)
            }
            // Codes with scales of blocks are not kept.
            Coded::AllInBlocks(_) | Coded::E4M3(_) if kept.is_some() => Ok(false),
            Coded::AllInBlocks(all) => {
                let (mut codes, mut scales) = (all.codes().clone(), all.scales().clone());
                let line = scales.shape()[1];
                let scales = (&mut scales, line);
                kernels.in_blocks(x.shape(), x, affine, &mut codes, scales, statistics)?;
                Ok(true)
            }
            Coded::E4M3(own) => {
                let (mut codes, mut scales) = (own.codes().clone(), own.scales().clone());
                let line = scales.shape()[1];
                let scales = (&mut scales, line);
                kernels.in_blocks(x.shape(), x, affine, &mut codes, scales, statistics)?;
                Ok(true)
            }
            Coded::AllE5M2(_) | Coded::E5M2(_) => Ok(false),
        }
    }

    fn by_history<'a>(
        &self,
        kernels: &CodedNormKernels,
        (x, affine): (&Tensor<bf16>, Affine<'_>),
        (codes, kept, scale): (
            impl Into<Argument<'a>>,
            Option<&mut Tensor<e4m3>>,
            &Tensor<f32>,
        ),
        statistics: &mut Tensor<f32>,
    ) -> Result<bool, Error> {
        let Some(history) = &self.history else {
            return Ok(false);
        };
        let mut history = history.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (codes, mut scale): (Argument<'_>, _) = (codes.into(), scale.clone());
        let to = (codes, kept, &mut scale);
        kernels.delayed_twice(x.shape(), x, affine, to, &mut history, statistics)?;
        Ok(true)
    }

    /// Enqueues codes by the scale that the tensor's history has, in a kernel that makes the tensor, too. False: the scale comes from no
    /// history, and nothing was done.
    pub fn launch_made(
        &self,
        launch: impl FnOnce(&mut DeviceHistory) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let Some(history) = &self.history else {
            return Ok(false);
        };
        let mut history = history.state.lock().unwrap_or_else(PoisonError::into_inner);
        launch(&mut history).map(|()| true)
    }

    /// Enqueues codes with scales of blocks of `x`, and of the transposed copy in pieces of so many rows.
    pub fn launch_pieces(
        &self,
        rank: &Communicator,
        x: &Tensor<bf16>,
        to: &mut Coded,
        (pieces, scales): (&Tensor<e4m3>, &mut Tensor<f32>),
        rows: Option<usize>,
    ) -> Result<(), Error> {
        let mut pieces = OwnCodes::of(self.to(), pieces)?;
        let launch = to.written(self.quantisers[1].on(rank, x.shape()).x(x));
        let launch = match &mut pieces {
            OwnCodes::E4M3(pieces) => launch.transposed(pieces),
            OwnCodes::E5M2(pieces) => launch.transposed(pieces),
        };
        let launch = launch.transposed_scales(scales);
        let launch = match rows {
            Some(rows) => launch.pieces(rows),
            None => launch,
        };
        launch.launch().map(drop)
    }

    /// Enqueues codes and scales of `x`, and of its transposed copy where there is one. The one scale of rows that ranks gather is that
    /// of all ranks: then every rank calls it.
    pub fn launch(
        &self,
        rank: &Communicator,
        shared: &Shared,
        x: &Tensor<bf16>,
        (to, turned): (&mut Coded, Option<&mut Coded>),
        is_gathered: bool,
    ) -> Result<(), Error> {
        let shape = x.shape();
        let quantiser = &self.quantisers[usize::from(turned.is_some())];
        let recipe = &self.recipe;
        let one = recipe.granularity() == quantise::Granularity::PerTensor;
        let reduced = is_gathered && one && recipe.scaling != Scaling::Delayed && rank.world() > 1;
        if reduced {
            quantiser.on(rank, shape).x(x).measure()?;
            shared.amaxes.largest(&mut quantiser.amax())?;
        }
        let launch = to.written(quantiser.on(rank, shape).x(x));
        let launch = match turned {
            Some(turned) => turned.turned(launch, !one),
            None => launch,
        };
        if reduced {
            return launch.cast().map(drop);
        }
        let Some(history) = &self.history else {
            return launch.launch().map(drop);
        };
        let mut history = history.state.lock().unwrap_or_else(PoisonError::into_inner);
        let history: &mut DeviceHistory = &mut history;
        launch.history(history).launch().map(drop)
    }
}
