//! All that a layer's steps need is built and loaded when the layer is made.

use super::cases::{self, FEATURES};
use super::memory::{Running, SHAPES, SHAPES_IN_FP8, Shapes};
use super::{each, userbuffers_of};
use crate::wide::{in_turn, wide};
use counterflow::{Communicator, Error};
use counterflow_layers::overlap::{ModuleFlags, Parallel};
use counterflow_layers::{
    DelayedScaling, Float8BlockScaling, Float8CurrentScaling, GradientSum, Gradients, Linear,
    LinearConfig, Parameters, QuantizationMode, Recipe, RngTracker, TransformerLayer,
    TransformerLayerConfig, Userbuffers, VocabParallelCrossEntropy, VocabParallelEmbedding,
};
use std::sync::Arc;

/// Modules that the rank has loaded, and ops that it has built.
fn ready(rank: &Communicator) -> [u64; 2] {
    let built = rank.op_counts().iter().map(|counts| counts.built).sum();
    [rank.modules_loaded(), built]
}

fn recipes() -> [Option<Recipe>; 4] {
    [
        None,
        Some(DelayedScaling::default().into()),
        Some(Float8CurrentScaling::default().into()),
        Some(Float8BlockScaling::default().into()),
    ]
}

fn mode(fp8: Option<Recipe>) -> Vec<QuantizationMode> {
    vec![fp8.map_or(QuantizationMode::None, |_| QuantizationMode::Fp8)]
}

/// Every flag that there is, or none.
fn flags(on: bool, rs_dgrad: bool) -> ModuleFlags {
    ModuleFlags {
        ub_tp_comm_overlap: on,
        ub_overlap_rs_dgrad: rs_dgrad,
        ..ModuleFlags::default()
    }
}

/// Two transformer layers: norms, attention, an MLP, products of either kind.
fn of_layers(
    rank: &Arc<Communicator>,
    (shapes, fp8): (Shapes, Option<Recipe>),
    (flags, again): (ModuleFlags, bool),
) -> Result<(), Error> {
    let config = match flags.ub_overlap_rs_dgrad {
        true => "qkv_dgrad: {method: ring_exchange}\nfc1_dgrad: {method: ring_exchange}",
        false => "",
    };
    let shape = [shapes.most, shapes.sizes.hidden];
    let buffers = userbuffers_of(rank, shape, config, mode(fp8))?;
    let change: fn(&mut TransformerLayerConfig) = match again {
        true => |config| config.mlp.recompute_activation = true,
        false => |_| {},
    };
    let mut running = Running::new(rank, &buffers, shapes, (flags, fp8), change)?;
    let before = ready(rank);
    for rows in [shapes.most].into_iter().chain(shapes.others) {
        running.in_step(|running| {
            let saved = running.forward(rows)?;
            let saved = match again {
                false => saved,
                true => {
                    drop(saved);
                    running.forward(rows)?
                }
            };
            running.backward(rows, saved)
        })?;
        assert_eq!(ready(rank), before, "modules and ops after {rows} rows");
    }
    Ok(())
}

#[test]
fn no_step_of_layers_builds_or_loads_anything() {
    for (nth, fp8) in recipes().into_iter().enumerate() {
        let shapes = fp8.map_or(SHAPES, |_| SHAPES_IN_FP8);
        let all = [
            (false, false, false),
            (true, false, true),
            (true, true, false),
        ];
        // Without `WIDE` each second recipe has some flags, in turn; a linear layer has all.
        if !wide() && nth % 2 == 1 {
            continue;
        }
        let some = all.into_iter().enumerate();
        let some = some.filter(|(at, _)| wide() || *at == (nth + 2) % all.len());
        for (_, (on, rs_dgrad, again)) in some {
            let what = (flags(on, rs_dgrad), again);
            let done = each(2, |rank| of_layers(rank, (shapes, fp8), what));
            let recipe = fp8.map_or("bf16".into(), |fp8| fp8.to_string());
            done.unwrap_or_else(|error| panic!("{recipe}, {what:?}: {error}"));
        }
    }
}

/// Steps of a linear layer by itself.
fn of_linear(
    rank: &Arc<Communicator>,
    buffers: &Userbuffers,
    config: &LinearConfig,
) -> Result<(), Error> {
    let layer = Linear::new(buffers, config)?;
    let (weight, bias) = (
        rank.zeros(layer.weight_shape())?,
        rank.zeros(layer.bias_shape())?,
    );
    let mut of_weight = rank.zeros::<f32>(layer.weight_shape())?;
    let mut of_bias = rank.zeros::<f32>(layer.bias_shape())?;
    let parameters = Parameters {
        weight: &weight,
        bias: config.bias.then_some(&bias),
    };
    let before = ready(rank);
    for rows in [16, 8, 16] {
        let of_rows = |shape| rank.zeros(shape);
        let (x, mut y) = (
            of_rows(layer.input_shape(rows))?,
            of_rows(layer.output_shape(rows))?,
        );
        let step = config.fp8.map(|_| buffers.autocast(None)).transpose()?;
        let saved = layer.forward(rows, &x, &parameters, &mut y)?;
        let mut dx = rank.zeros(x.shape())?;
        let gradients = Gradients {
            weight: (!config.frozen).then_some(&mut of_weight),
            bias: config.bias.then_some(&mut of_bias),
        };
        layer.backward(saved, &parameters, &y, &mut dx, gradients)?;
        step.map_or(Ok(()), |step| step.end())?;
        assert_eq!(ready(rank), before, "modules and ops after {rows} rows");
    }
    Ok(())
}

#[test]
fn no_step_of_a_linear_layer_builds_or_loads_anything() {
    let recipes = recipes();
    for (nth, fp8) in recipes.into_iter().enumerate() {
        for parallel in in_turn([Parallel::Column, Parallel::Row], nth) {
            // Without `WIDE` a third of the cases of one kind of layers has one recipe each, in turn.
            let all = cases::of(parallel).into_iter().enumerate();
            let all = all.filter(|(at, _)| wide() || at % (3 * recipes.len()) == 3 * nth);
            // Scales of blocks do not allow it.
            let kept = |layer: &LinearConfig| layer.keep_gathered;
            let blocks = fp8.is_some_and(|fp8| fp8 == Float8BlockScaling::default().into());
            for (_, case) in all.filter(|(_, case)| !(blocks && kept(&case.layer))) {
                let config = LinearConfig {
                    fp8,
                    ..case.layer.clone()
                };
                let done = each(2, |rank| {
                    let shape = [16, FEATURES[0]];
                    let buffers = userbuffers_of(rank, shape, case.config, mode(fp8))?;
                    of_linear(rank, &buffers, &config)
                });
                let recipe = fp8.map_or("bf16".into(), |fp8| fp8.to_string());
                done.unwrap_or_else(|error| panic!("{}, {recipe}: {error}", case.name));
            }
        }
    }
}

#[test]
fn nothing_beside_layers_builds_or_loads_in_a_step() {
    let done = each(2, |rank| {
        let buffers = userbuffers_of(rank, [16, 32], "", mode(None))?;
        let embedding = VocabParallelEmbedding::new(&buffers, [64, 32])?;
        let loss = VocabParallelCrossEntropy::new(rank, 16)?;
        let sum = GradientSum::new(rank, 1024)?;
        let before = ready(rank);
        for rows in [16, 6] {
            let ids = rank.zeros::<u32>([1, rows])?;
            let weight = rank.zeros(embedding.weight_shape())?;
            let mut y = rank.zeros(embedding.output_shape(rows))?;
            embedding.forward(&ids, &weight, &mut y)?;
            let mut gradient = rank.zeros(embedding.weight_shape())?;
            embedding.backward(&ids, &y, &mut gradient)?;
            let logits = rank.zeros([rows, 32])?;
            let (mut losses, mut to) = (rank.zeros([1, rows])?, rank.zeros([rows, 32])?);
            loss.of(&logits, &ids, 1.0, &mut losses, &mut to)?;
        }
        for elements in [1024, 64, 32, 16, 8] {
            sum.over_ranks(&mut rank.zeros([1, elements])?)?;
        }
        assert_eq!(ready(rank), before, "modules and ops");
        Ok(())
    });
    done.expect("two ranks");
}

/// When a layer is there on one rank, no rank loads for it any more: what this rank launches then may wait for a peer.
#[test]
fn ranks_meet_behind_the_last_load_of_a_layer() {
    let ranks: Vec<_> = Communicator::emulated(2).expect("ranks");
    let ranks: Vec<_> = ranks.into_iter().map(Arc::new).collect();
    let all = &ranks;
    let shapes = SHAPES_IN_FP8;
    let made = |rank: &Arc<Communicator>| {
        let fp8 = Some(DelayedScaling::default().into());
        let buffers = userbuffers_of(rank, [shapes.most, shapes.sizes.hidden], "", mode(fp8))?;
        let mut config = shapes.sizes.layer();
        (config.fp8, config.flags) = (fp8, flags(true, false));
        let rng = Arc::new(RngTracker::new(1, rank.rank()));
        let _layer = TransformerLayer::new(&buffers, &config, &rng)?;
        let loaded: Vec<u64> = all.iter().map(|rank| rank.modules_loaded()).collect();
        rank.barrier()?;
        let own = rank.modules_loaded();
        assert!(
            own > 0 && loaded.iter().all(|loaded| *loaded == own),
            "{own}: {loaded:?}"
        );
        Ok::<(), Error>(())
    };
    std::thread::scope(|scope| {
        let made = &made;
        let threads: Vec<_> = all
            .iter()
            .map(|rank| scope.spawn(move || made(rank)))
            .collect();
        for thread in threads {
            thread.join().expect("no panic").expect("a layer");
        }
    });
}
