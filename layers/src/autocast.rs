//! The scope of a step of FP8 layers.

use crate::userbuffers::Userbuffers;
use counterflow::Error;

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
        self.fp8()?.open(is_first_microbatch)?;
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
        self.userbuffers.fp8()?.next_step()
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        if let Ok(shared) = self.userbuffers.fp8() {
            shared.close();
        }
    }
}
