//! How a tensor of a layer becomes codes.

use super::coded::Coded;
use super::recipe::{Recipe, Role};
use super::scope::{History, Shared};
use counterflow::prelude::bf16;
use counterflow::quantise::{self, DeviceHistory, Scaling};
use counterflow::rule::Fp8;
use counterflow::{Communicator, Error, Tensor};
use std::sync::{Arc, PoisonError};

/// A tensor of a layer, with the history that its scale may come from.
#[derive(Debug)]
pub(crate) struct Cast {
    recipe: quantise::Recipe,
    history: Option<Arc<History>>,
}

impl Cast {
    pub fn new(shared: &Shared, recipe: &Recipe, role: Role) -> Result<Cast, Error> {
        let quantiser = recipe.quantiser(role);
        let history = recipe.history(role);
        let history = history.map(|history| shared.history(quantiser, history));
        Ok(Cast {
            recipe: quantiser,
            history: history.transpose()?,
        })
    }

    /// The type of the codes.
    pub fn to(&self) -> Fp8 {
        self.recipe.rule.to
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
        let recipe = match turned {
            Some(_) => self.recipe.with_transposed(),
            None => self.recipe,
        };
        let one = recipe.granularity() == quantise::Granularity::PerTensor;
        let quantiser = shared.quantiser(recipe)?;
        let reduced = is_gathered && one && recipe.scaling != Scaling::Delayed && rank.world() > 1;
        if reduced {
            quantiser.on(rank, shape).x(x).measure()?;
            shared.amaxes.over_ranks(&[quantiser.amax()])?;
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
