//! A layer's step in a CUDA graph: on GPUs alone. Side kernels of emulated ranks are done when they are launched, so no graph records them.

use super::memory::{Running, SHAPES, SHAPES_IN_FP8, Shapes, flags};
use super::{are_on_gpus, each, gpus, userbuffers_of};
use counterflow::{Communicator, Error};
use counterflow_layers::{
    DelayedScaling, Float8BlockScaling, Float8CurrentScaling, QuantizationMode, Recipe,
    TransformerLayerConfig, Userbuffers,
};
use std::io::Write;
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
        let [_, waited] = counted();
        let graph = rank.capture_own(|| running.step(shapes.most))?;
        assert!(!graph.is_empty());
        rank.barrier()?;
        // The graph has memory of its own; a replay takes none.
        let taken = counted();
        assert_eq!(taken[1], waited, "a recording waits");
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
    let found = running.bits()?;
    rank.barrier()?;
    Ok(found)
}

/// The same of a step whose passes a replay comes between: that of a forward pass of the same layers' sizes with another input, which
/// borrowed and gave back before all that the step borrows.
fn interleaved(
    rank: &Arc<Communicator>,
    buffers: &Userbuffers,
    (shapes, fp8, on): (Shapes, Option<Recipe>, bool),
    in_graph: bool,
) -> Result<Vec<u32>, Error> {
    let made = || Running::new(rank, buffers, shapes, (flags(on), fp8), without_dropout);
    let (mut running, mut other) = (made()?, made()?);
    let rows = shapes.most;
    other.x.fill(0x3f)?;
    running.step(rows)?;
    other.step(rows)?;
    rank.synchronize()?;
    rank.barrier()?;
    let forward = |other: &mut Running| other.forward(rows).map(drop);
    let graph = rank.capture_own(|| other.in_step(forward))?;
    rank.barrier()?;
    running.in_step(|running| {
        let saved = running.forward(rows)?;
        if in_graph {
            graph.launch(&**rank)?;
        }
        running.backward(rows, saved)
    })?;
    rank.synchronize()?;
    let found = running.bits()?;
    rank.barrier()?;
    Ok(found)
}

type Bits = fn(
    &Arc<Communicator>,
    &Userbuffers,
    (Shapes, Option<Recipe>, bool),
    bool,
) -> Result<Vec<u32>, Error>;

#[test]
fn a_step_in_a_graph_has_the_bits_of_a_step() {
    same_bits("a layer's step in a graph", bits);
}

#[test]
fn a_replay_between_the_passes_of_a_step_leaves_its_activations() {
    same_bits("a replay between a layer's passes", interleaved);
}

fn same_bits(what: &str, bits: Bits) {
    if !are_on_gpus(2) {
        assert_eq!(
            gpus(),
            None,
            "{what}: REQUIRE_GPU names fewer than two GPUs"
        );
        // Past the test harness, which keeps what a passing test prints.
        let said = format!("\nSKIPPED: {what}: REQUIRE_GPU names no two GPUs\n");
        let _ = std::io::stderr().write_all(said.as_bytes());
        // All the same it compiles for a run on GPUs, if two ranks are to.
        let fills = std::env::var("COUNTERFLOW_FILL").unwrap_or_default();
        let ranks = fills.split(':').next().unwrap_or_default();
        if !ranks.parse().is_ok_and(|ranks: u32| ranks >= 2) {
            return;
        }
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
            if !are_on_gpus(2) {
                // Emulated ranks capture nothing: they compile what GPUs will need.
                return Running::new(rank, &buffers, shapes, (flags(on), fp8), without_dropout)
                    .map(drop);
            }
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
        println!("  {what}: {recipe}, overlap {on}");
    }
}
