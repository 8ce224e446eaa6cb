//! Layers take no more of the heap than their configurations say.

use super::{each, userbuffers_of};
use crate::wide::wide;
use counterflow::{Communicator, Error};
use counterflow_layers::overlap::ModuleFlags;
use counterflow_layers::{
    Activation, DelayedScaling, Float8BlockScaling, LayerNormMlp, LayerNormMlpConfig, Norm,
    Normalization, QuantizationMode, Recipe,
};
use std::sync::Arc;

/// At which the counters of five layers without overlap have no room near each other, so that the last ones share no scratch.
const HIDDEN: usize = 2048;
const FFN: usize = 64;

fn mlp(on: bool, fp8: Option<Recipe>) -> LayerNormMlpConfig {
    let flags = ModuleFlags {
        ub_tp_comm_overlap: on,
        ..ModuleFlags::default()
    };
    LayerNormMlpConfig {
        activation: Activation::SwiGlu,
        flags: flags.flags(),
        fp8,
        ..LayerNormMlpConfig::new(HIDDEN, FFN, Norm::new(Normalization::RmsNorm))
    }
}

fn takes_what_it_says(rank: &Arc<Communicator>, fp8: Option<Recipe>) -> Result<(), Error> {
    let mode = fp8.map_or(QuantizationMode::None, |_| QuantizationMode::Fp8);
    let buffers = userbuffers_of(rank, [HIDDEN, HIDDEN], "", vec![mode])?;
    let mut layers = Vec::new();
    for on in [true, false, false, false, false, false] {
        let config = mlp(on, fp8);
        let before = rank.heap_use().used;
        let told = config.workspace(&buffers)?.heap;
        rank.reserve(rank.heap_use().reserved + told)?;
        layers.push(LayerNormMlp::new(&buffers, &config)?);
        let heap = rank.heap_use();
        let taken = heap.used - before;
        assert!(taken <= told, "overlap {on}: {taken} of {told}\n{heap}");
    }
    Ok(())
}

#[test]
fn layers_take_what_they_say() {
    let recipes: [Option<Recipe>; 3] = [
        None,
        Some(DelayedScaling::default().into()),
        Some(Float8BlockScaling::default().into()),
    ];
    // One of them without `WIDE=1`.
    let sample = if wide() { 0..3 } else { 1..2 };
    for fp8 in recipes.into_iter().take(sample.end).skip(sample.start) {
        each(2, |rank| takes_what_it_says(rank, fp8)).expect("two ranks");
    }
}
