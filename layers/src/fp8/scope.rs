//! What the FP8 layers of a group share, and the scope of a step.

use super::amaxes::Amaxes;
use crate::side::CodeKernels;
use crate::userbuffers::Userbuffers;
use counterflow::quantise::{self, Delayed, DeviceHistory, Quantiser};
use counterflow::{Communicator, Error};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// More rows and columns than a matrix has: quantisers of these recipes need no memory that grows with them.
const MOST: [usize; 2] = [1 << 22; 2];

/// Amaxes of a tensor, with what ends their steps.
#[derive(Debug)]
pub(crate) struct History {
    pub state: Mutex<DeviceHistory>,
    quantiser: Arc<Quantiser<'static>>,
}

/// What the FP8 layers of a group share.
#[derive(Debug)]
pub(crate) struct Shared {
    rank: Arc<Communicator>,
    pub kernels: CodeKernels,
    pub amaxes: Amaxes,
    /// By recipe.
    quantisers: Mutex<Vec<Arc<Quantiser<'static>>>>,
    /// In the order in which layers were made, which is that of every rank.
    histories: Mutex<Vec<Weak<History>>>,
    /// Of a scope that is open: whether it is the first microbatch.
    open: Mutex<Option<Option<bool>>>,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Collective.
    pub fn new(rank: &Arc<Communicator>) -> Result<Shared, Error> {
        let kernels = CodeKernels::load(rank)?;
        Ok(Shared {
            amaxes: Amaxes::new(rank, &kernels)?,
            rank: rank.clone(),
            kernels,
            quantisers: Mutex::default(),
            histories: Mutex::default(),
            open: Mutex::default(),
        })
    }

    pub fn quantiser(&self, recipe: quantise::Recipe) -> Result<Arc<Quantiser<'static>>, Error> {
        let mut all = locked(&self.quantisers);
        if let Some(found) = all.iter().find(|of| *of.recipe() == recipe) {
            return Ok(found.clone());
        }
        let built = Arc::new(Quantiser::shared(&self.rank, recipe, MOST)?);
        all.push(built.clone());
        Ok(built)
    }

    pub fn history(
        &self,
        recipe: quantise::Recipe,
        history: Delayed,
    ) -> Result<Arc<History>, Error> {
        let quantiser = self.quantiser(recipe)?;
        let history = Arc::new(History {
            state: Mutex::new(quantiser.history(history)?),
            quantiser,
        });
        locked(&self.histories).push(Arc::downgrade(&history));
        Ok(history)
    }

    /// True if the step that is open is the first microbatch, if that was said.
    ///
    /// # Errors
    /// [`Error::Usage`] if none is open.
    pub fn is_first_microbatch(&self) -> Result<Option<bool>, Error> {
        locked(&self.open).ok_or_else(|| Error::Usage {
            what: "a layer of FP8 outside of a step".into(),
            legal: "open one, `userbuffers.autocast(None)?`, and end it behind the backward pass"
                .into(),
        })
    }

    fn end(&self) -> Result<(), Error> {
        let mut histories = locked(&self.histories);
        histories.retain(|history| history.strong_count() > 0);
        let histories: Vec<_> = histories.iter().filter_map(Weak::upgrade).collect();
        let amax = |history: &Arc<History>| locked(&history.state).amax();
        let amaxes: Vec<_> = histories.iter().map(amax).collect();
        self.amaxes.over_ranks(&amaxes)?;
        for history in &histories {
            let mut state = locked(&history.state);
            history.quantiser.next_step(&*self.rank, &mut state)?;
        }
        Ok(())
    }
}

/// A step of FP8 layers: TransformerEngine's `autocast`. Layers whose [`LinearConfig::fp8`](crate::LinearConfig) has a recipe run inside of
/// one. A step may be a microbatch, or all of an optimiser's step.
///
/// It ends behind the backward pass: then the amaxes that layers saw are reduced over the group, and delayed scaling has its next scales.
/// One that is dropped leaves the scales as they are.
#[derive(Debug)]
#[must_use = "a step ends by `end`"]
pub struct Autocast {
    userbuffers: Userbuffers,
}

impl Userbuffers {
    /// Opens a step of FP8 layers. `is_first_microbatch` is TransformerEngine's: `Some(true)` quantises weights, which layers keep;
    /// `Some(false)` takes those that they kept, although weights may have changed since; `None` quantises them in each forward pass.
    ///
    /// ```
    /// use counterflow::{Communicator, Error, prelude::bf16};
    /// use counterflow_layers::{DelayedScaling, Initialize, Linear, LinearConfig, Parameters, QuantizationMode, Userbuffers};
    /// use std::sync::Arc;
    ///
    /// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
    /// rank.reserve(8 << 20)?;
    /// let modes = vec![QuantizationMode::Fp8];
    /// let userbuffers = Userbuffers::initialize(&rank, &Initialize { quantization_modes: modes, ..Initialize::new([16, 32], 1) })?;
    /// let config = LinearConfig { fp8: Some(DelayedScaling::default().into()), ..LinearConfig::column(32, 64) };
    /// let layer = Linear::new(&userbuffers, &config)?;
    /// let weight = rank.zeros::<bf16>(layer.weight_shape())?;
    /// let (x, mut y) = (rank.zeros(layer.input_shape(16))?, rank.zeros(layer.output_shape(16))?);
    /// for microbatch in 0..2 {
    ///     let step = userbuffers.autocast(Some(microbatch == 0))?;
    ///     let saved = layer.forward(16, &x, &Parameters { weight: &weight, bias: None }, &mut y)?;
    ///     // … and `layer.backward(saved, …)`.
    ///     step.end()?;
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] without [`QuantizationMode::Fp8`](crate::QuantizationMode), and where one is open.
    pub fn autocast(&self, is_first_microbatch: Option<bool>) -> Result<Autocast, Error> {
        let mut open = locked(&self.fp8()?.open);
        if open.is_some() {
            return Err(Error::Usage {
                what: "a step of FP8 within another".into(),
                legal: "end the one that is open first".into(),
            });
        }
        *open = Some(is_first_microbatch);
        drop(open);
        Ok(Autocast {
            userbuffers: self.clone(),
        })
    }
}

impl Autocast {
    /// Ends the step. Collective: all ranks end the same steps.
    ///
    /// # Errors
    /// What a launch refuses.
    pub fn end(self) -> Result<(), Error> {
        let _turn = self.userbuffers.turn();
        self.userbuffers.fp8()?.end()
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        if let Ok(shared) = self.userbuffers.fp8() {
            *locked(&shared.open) = None;
        }
    }
}
