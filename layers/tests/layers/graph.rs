//! A layer's step in a CUDA graph: on GPUs alone. Side kernels of emulated ranks are done when they are launched, so no graph records them.

use super::memory::{Running, SHAPES, SHAPES_IN_FP8, Shapes, flags};
use super::{each, is_on_gpus, userbuffers_of};
use counterflow::{Communicator, Error};
use counterflow_layers::{
    DelayedScaling, Float8BlockScaling, Float8CurrentScaling, QuantizationMode, Recipe,
    TransformerLayerConfig, Userbuffers,
};
use std::sync::Arc;

/// No graph has copies by copy engine: SMs move what is gathered.
const BY_SMS: &str = "qkv_fprop: {use_ce: 0}\nfc1_fprop: {use_ce: 0}\nproj_dgrad: {use_ce: 0}\nfc2_dgrad: {use_ce: 0}";
/// Steps as they are before the graph is captured, and replays.
const STEPS: [usize; 2] = [2, 3];

/// Masks of dropout are those of a launch, in each replay: without, steps are alike.
fn without_dropout(config: &mut TransformerLayerConfig) {
    (config.hidden_dropout, config.attention.dropout) = (0.0, 0.0);
}

/// The bits of outputs and gradients after all steps.
fn bits(
    rank: &Arc<Communicator>,
    buffers: &Userbuffers,
    (shapes, fp8, on): (Shapes, Option<Recipe>, bool),
    in_graph: bool,
) -> Result<Vec<u32>, Error> {
    let mut running = Running::new(rank, buffers, shapes, (flags(on), fp8), without_dropout)?;
    let [before, replays] = STEPS;
    for _ in 0..before {
        running.step(shapes.most)?;
    }
    // What was built for the first step is there on all ranks.
    rank.synchronize()?;
    rank.barrier()?;
    if in_graph {
        let counted = || [rank.tensors_allocated(), rank.host_waits()];
        let taken = counted();
        let graph = rank.capture_own(|| running.step(shapes.most))?;
        assert!(!graph.is_empty());
        rank.barrier()?;
        for _ in 0..replays {
            graph.launch(&**rank)?;
        }
        assert_eq!(counted(), taken, "it allocates or waits");
    } else {
        for _ in 0..replays {
            running.step(shapes.most)?;
        }
    }
    rank.synchronize()?;
    let mut found = Vec::new();
    for tensor in running.ys.iter().chain(&running.dxs) {
        found.extend(tensor.read()?.into_iter().map(|x| u32::from(x.to_bits())));
    }
    for gradient in &running.held.gradients {
        found.extend(gradient.read()?.into_iter().map(f32::to_bits));
    }
    rank.barrier()?;
    Ok(found)
}

#[test]
fn a_step_in_a_graph_has_the_bits_of_a_step() {
    if !is_on_gpus() {
        eprintln!("SKIPPED: a layer's step in a graph: REQUIRE_GPU names no GPUs");
        return;
    }
    let recipes: [Option<Recipe>; 4] = [
        None,
        Some(DelayedScaling::default().into()),
        Some(Float8CurrentScaling::default().into()),
        Some(Float8BlockScaling::default().into()),
    ];
    for (fp8, on) in recipes
        .into_iter()
        .flat_map(|fp8| [(fp8, true), (fp8, false)])
    {
        let shapes = fp8.map_or(SHAPES, |_| SHAPES_IN_FP8);
        let done = each(2, |rank| {
            let mode = fp8.map_or(QuantizationMode::None, |_| QuantizationMode::Fp8);
            let shape = [shapes.most, shapes.sizes.hidden];
            let buffers = userbuffers_of(rank, shape, BY_SMS, vec![mode])?;
            let [one, other] =
                [false, true].map(|in_graph| bits(rank, &buffers, (shapes, fp8, on), in_graph));
            let (one, other) = (one?, other?);
            assert!(one.iter().any(|bits| *bits != 0));
            let first = one.iter().zip(&other).position(|(a, b)| a != b);
            assert_eq!(first, None, "other bits");
            Ok(())
        });
        let recipe = fp8.map_or("bf16".into(), |fp8| fp8.to_string());
        done.unwrap_or_else(|error| panic!("{recipe}, overlap {on}: {error}"));
        println!("  a layer's step in a graph: {recipe}, overlap {on}");
    }
}
