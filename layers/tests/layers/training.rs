//! Two layers of a transformer learn on emulated ranks: the same with and without overlap, and as one rank to rounding. And what a
//! training loop asks of layers: forward passes that are made again, dropout, sums of gradients, kernels of the caller's.

use super::model::{Held, Path, Sizes, close, tensor, weights};
use super::reference::Matrix;
use super::{each, userbuffers, userbuffers_of};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
use counterflow_layers::overlap::ModuleFlags;
use counterflow_layers::side::AttentionKernels;
use counterflow_layers::side::twin::{AttentionShape, Mask};
use counterflow_layers::{
    Activation, CoreAttention, DelayedScaling, Float8BlockScaling, Float8CurrentScaling,
    GradientSum, Normalization, QuantizationMode, Recipe, RngTracker, TransformerLayer,
    TransformerLayerGradients, TransformerLayerParameters,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SIZES: Sizes = Sizes {
    hidden: 32,
    ffn: 48,
    heads: 6,
    groups: 6,
    depth: 16,
    kind: Normalization::RmsNorm,
    activation: Activation::SwiGlu,
    bias: false,
    causal: true,
    rope: true,
};
/// Rows of two sequences, in turn.
const ROWS: [usize; 2] = [14, 10];
const BATCH: usize = 2;
/// With scales of blocks ranks have whole 16s of features, and whole 4s of rows.
const SIZES_IN_BLOCKS: Sizes = Sizes {
    ffn: 64,
    heads: 4,
    groups: 2,
    ..SIZES
};
const ROWS_IN_BLOCKS: [usize; 2] = [16, 8];
/// Batches, which come again and again.
const EPOCH: usize = 4;

const ON: ModuleFlags = ModuleFlags {
    ub_tp_comm_overlap: true,
    ub_overlap_ag: true,
    ub_overlap_rs: true,
    ub_overlap_rs_dgrad: false,
    ub_bulk_dgrad: true,
    ub_bulk_wgrad: true,
};
const OFF: ModuleFlags = ModuleFlags {
    ub_tp_comm_overlap: false,
    ..ON
};

fn layer(
    rank: &Arc<Communicator>,
    buffers: &counterflow_layers::Userbuffers,
    flags: ModuleFlags,
    dropouts: [f32; 2],
) -> Result<(TransformerLayer, Arc<RngTracker>), Error> {
    layer_of(rank, buffers, (flags, None), dropouts, SIZES)
}

fn layer_of(
    rank: &Arc<Communicator>,
    buffers: &counterflow_layers::Userbuffers,
    (flags, fp8): (ModuleFlags, Option<Recipe>),
    dropouts: [f32; 2],
    sizes: Sizes,
) -> Result<(TransformerLayer, Arc<RngTracker>), Error> {
    let mut config = sizes.layer();
    (config.flags, config.fp8) = (flags, fp8);
    config.attention.dropout = dropouts[0];
    config.hidden_dropout = dropouts[1];
    let rng = Arc::new(RngTracker::new(99, rank.rank()));
    let layer = TransformerLayer::new(buffers, &config, &rng)?;
    Ok((layer, rng))
}

fn parameters(held: &Held) -> TransformerLayerParameters<'_> {
    TransformerLayerParameters {
        attention: held.attention(),
        mlp: held.mlp(),
    }
}

fn backward(
    layer: &TransformerLayer,
    saved: counterflow_layers::TransformerLayerSaved,
    held: &mut Held,
    dy: &Tensor<bf16>,
    dx: &mut Tensor<bf16>,
) -> Result<(), Error> {
    let ((attention, of_attention), (mlp, of_mlp)) = held.split([false; 4]);
    let parameters = TransformerLayerParameters { attention, mlp };
    let gradients = TransformerLayerGradients {
        attention: of_attention,
        mlp: of_mlp,
    };
    layer.backward(saved, &parameters, dy, dx, gradients)
}

/// A rank's part of the loss, step by step, and its weights at the end.
fn train(
    rank: &Arc<Communicator>,
    (flags, fp8): (ModuleFlags, Option<Recipe>),
    (sizes, rows_of_steps): (Sizes, [usize; 2]),
    steps: usize,
) -> Result<(Vec<f64>, Vec<u16>), Error> {
    // A rate at which training is steady: ten times as large, roundings alone lead it elsewhere within 30 steps.
    const RATE: f32 = 0.02;
    let hidden = sizes.hidden;
    let mode = fp8.map_or(QuantizationMode::None, |_| QuantizationMode::Fp8);
    let buffers = userbuffers_of(rank, [rows_of_steps[0], hidden], "", vec![mode])?;
    rank.reserve(GradientSum::heap_bytes(hidden, rank.world()) + (8 << 20))?;
    let sum = GradientSum::new(rank, hidden)?;
    let mut layers = Vec::new();
    for seed in [100, 200] {
        let held = Held::new(rank, &sizes, &weights(&sizes, seed))?;
        let masters: Result<Vec<Vec<f32>>, Error> = held
            .weights
            .iter()
            .map(|weight| Ok(weight.read()?.into_iter().map(bf16::to_f32).collect()))
            .collect();
        layers.push((
            layer_of(rank, &buffers, (flags, fp8), [0.0; 2], sizes)?.0,
            held,
            masters?,
        ));
    }
    // The fusion runs where it is asked for, on every layer, and nowhere else.
    for (layer, ..) in &layers {
        let fused = layer
            .products()
            .iter()
            .filter(|product| product.overlaps)
            .count();
        let is_on = flags.ub_tp_comm_overlap && rank.world() > 1;
        assert_eq!(fused >= 6, is_on, "{:?}", layer.products());
    }
    let mut losses = Vec::new();
    for step in 0..steps {
        let rows = rows_of_steps[step % 2];
        let in_fp8 = fp8.map(|_| buffers.autocast(None)).transpose()?;
        let shard = rank.shard(rank.rank(), rows);
        let x = Matrix::random(rows, hidden, 1.0, 1000 + (step % EPOCH) as u64);
        let shape = [shard.len(), hidden];
        let first = tensor(rank, shape, &x.part(shard.clone(), 0..hidden))?;
        let (mut now, mut saved) = (first.clone(), Vec::new());
        for (layer, held, _) in &layers {
            let mut y = rank.zeros(shape)?;
            saved.push(layer.forward([rows, BATCH], &now, &parameters(held), &mut y)?);
            now = y;
        }
        // It learns to give half of what it gets.
        let count = (rows * hidden) as f32;
        let wanted = first.read()?;
        let off = now.read()?.into_iter().zip(wanted);
        let off: Vec<f32> = off.map(|(y, x)| y.to_f32() - x.to_f32() / 2.0).collect();
        let part = off.iter().map(|off| f64::from(off * off / count)).sum();
        losses.push(part);
        let dy = off.iter().map(|off| bf16::from_f32(2.0 * off / count));
        let mut dy = tensor(rank, shape, &dy.collect::<Vec<_>>())?;
        for ((layer, held, masters), saved) in layers.iter_mut().zip(saved).rev() {
            for gradient in &held.gradients {
                gradient.fill(0)?;
            }
            let mut dx = rank.zeros(shape)?;
            backward(layer, saved, held, &dy, &mut dx)?;
            dy = dx;
            for at in [0, 6] {
                sum.over_ranks(&mut held.gradients[at])?;
            }
            let all = masters
                .iter_mut()
                .zip(held.weights.iter().zip(&held.gradients));
            for (master, (weight, gradient)) in all {
                let change = gradient.read()?;
                master
                    .iter_mut()
                    .zip(change)
                    .for_each(|(own, by)| *own -= RATE * by);
                weight.write(&Vec::from_iter(
                    master.iter().map(|own| bf16::from_f32(*own)),
                ))?;
            }
        }
        if let Some(in_fp8) = in_fp8 {
            in_fp8.end()?;
        }
    }
    let weights = layers.iter().flat_map(|(_, held, _)| &held.weights);
    let mut bits = Vec::new();
    for weight in weights {
        bits.extend(weight.read()?.into_iter().map(bf16::to_bits));
    }
    Ok((losses, bits))
}

type Trained = (Vec<f64>, Vec<Vec<u16>>);

fn trained(world: u32, flags: ModuleFlags, steps: usize) -> Trained {
    trained_in(world, (flags, None), (SIZES, ROWS), steps)
}

fn trained_in(
    world: u32,
    of: (ModuleFlags, Option<Recipe>),
    shape: (Sizes, [usize; 2]),
    steps: usize,
) -> Trained {
    let found = each(world, |rank| train(rank, of, shape, steps));
    let found = found.unwrap_or_else(|error| panic!("{world} ranks: {error}"));
    let sum = |step: usize| found.iter().map(|(losses, _)| losses[step]).sum();
    let losses = (0..steps).map(sum).collect();
    (losses, found.into_iter().map(|(_, bits)| bits).collect())
}

#[test]
fn two_layers_learn_the_same_with_and_without_overlap_and_as_one_rank() {
    let wide = crate::wide::wide();
    let steps = if wide { 200 } else { 8 };
    let (alone, _) = trained(1, OFF, steps);
    // Four batches come again and again.
    let (first, last) = (&alone[..4], &alone[steps - 4..]);
    let falls = first
        .iter()
        .zip(last)
        .all(|(first, last)| *last < 0.9 * first);
    assert!(falls, "{alone:?}");
    for world in if wide { vec![2, 3] } else { vec![3] } {
        let (on, off) = (trained(world, ON, steps), trained(world, OFF, steps));
        // Sums over ranks have the same order in both, and the same roundings.
        assert!(on == off, "{world} ranks: {:?} and {:?}", on.0, off.0);
        for (step, (on, alone)) in on.0.iter().zip(&alone).enumerate() {
            let near = (on - alone).abs() <= 0.02 * alone;
            assert!(near, "step {step} of {world} ranks: {on}, not {alone}");
        }
    }
}

/// TransformerEngine's bound for layers of FP8.
const OF_FP8: f64 = 0.125;

/// The mean loss of each epoch.
fn epochs(losses: &[f64]) -> impl Iterator<Item = f64> {
    let epochs = losses.chunks_exact(EPOCH);
    epochs.map(|each| each.iter().sum::<f64>() / EPOCH as f64)
}

/// With and without overlap every step has the same bits. FP8 and bf16 are two roundings of one training, whose weights drift apart: what
/// one step gains on its batch it may lose on the next, so the loss of a single batch says little. That both train to the same loss is said
/// of all batches together, in every epoch.
#[test]
fn two_layers_learn_in_fp8_the_same_with_and_without_overlap_and_nearly_as_in_bf16() {
    let wide = crate::wide::wide();
    // One epoch, or 50.
    let steps = if wide { 200 } else { EPOCH };
    let delayed = DelayedScaling {
        amax_history_len: 16,
        ..DelayedScaling::default()
    };
    let (plain, in_blocks) = ((SIZES, ROWS), (SIZES_IN_BLOCKS, ROWS_IN_BLOCKS));
    let recipes: [(Recipe, u32, _); 3] = [
        (Float8BlockScaling::default().into(), 2, in_blocks),
        (delayed.into(), 3, plain),
        (Float8CurrentScaling::default().into(), 3, plain),
    ];
    for (recipe, world, shape) in recipes.into_iter().take(if wide { 3 } else { 1 }) {
        let (alone, _) = trained_in(1, (OFF, None), shape, steps);
        let [on, off] =
            [ON, OFF].map(|flags| trained_in(world, (flags, Some(recipe)), shape, steps));
        assert!(on == off, "{recipe}: {:?} and {:?}", on.0, off.0);
        for (epoch, (on, alone)) in epochs(&on.0).zip(epochs(&alone)).enumerate() {
            println!("{recipe}, epoch {epoch}: {on}, {alone}");
            let near = (on - alone).abs() <= OF_FP8 * alone;
            assert!(near, "{recipe}, epoch {epoch}: {on}, not {alone}");
        }
        assert_ne!(on.0, alone, "{recipe}: it is FP8");
    }
}

#[test]
fn a_forward_pass_that_is_made_again_gives_the_same_with_dropout() {
    let done = each(2, |rank| {
        let buffers = userbuffers(rank, [ROWS[0], SIZES.hidden], "")?;
        let (layer, rng) = layer(rank, &buffers, ON, [0.2, 0.3])?;
        let before = layer.products();
        let mut held = Held::new(rank, &SIZES, &weights(&SIZES, 100))?;
        let (rows, hidden) = (ROWS[0], SIZES.hidden);
        let shard = rank.shard(rank.rank(), rows);
        let shape = layer.shape(rows);
        let given = |seed| {
            let all = Matrix::random(rows, hidden, 1.0, seed);
            tensor(rank, shape, &all.part(shard.clone(), 0..hidden))
        };
        let (x, dy) = (given(1)?, given(2)?);
        let mut all = Vec::new();
        for again in [false, true] {
            let states = rng.states();
            let (mut y, mut dx) = (rank.zeros(shape)?, rank.zeros(shape)?);
            // Kernels of ops, steps and copies that a forward pass enqueues, beside what it saves.
            let forward = |y: &mut _| {
                let counts = || {
                    let all = rank.enqueued();
                    [all.kernels, all.steps, all.copies]
                };
                let before = counts();
                let saved = layer.forward([rows, BATCH], &x, &parameters(&held), y)?;
                let after = counts();
                Ok::<_, Error>((saved, [0, 1, 2].map(|at| after[at] - before[at])))
            };
            let (mut saved, enqueued) = forward(&mut y)?;
            if again {
                let first = y.read()?;
                drop(saved);
                rng.restore(states.clone());
                y.fill(0)?;
                let made_again;
                (saved, made_again) = forward(&mut y)?;
                assert_eq!(y.read()?, first, "made again");
                assert_eq!(
                    made_again, enqueued,
                    "as many kernels of ops, steps and copies"
                );
            }
            for gradient in &held.gradients {
                gradient.fill(0)?;
            }
            backward(&layer, saved, &mut held, &dy, &mut dx)?;
            let mut found = vec![
                dx.read()?
                    .into_iter()
                    .map(|x| x.to_f32().to_bits())
                    .collect(),
            ];
            for gradient in &held.gradients {
                found.push(
                    gradient
                        .read()?
                        .into_iter()
                        .map(f32::to_bits)
                        .collect::<Vec<_>>(),
                );
            }
            all.push(found);
            rng.restore(states);
        }
        assert_eq!(all[0], all[1], "gradients of what was made again");
        assert_eq!(layer.products(), before, "it overlaps as before");
        assert!(
            before.iter().filter(|product| product.overlaps).count() >= 6,
            "{before:?}"
        );
        // The next masks are others.
        let mut outputs = Vec::new();
        for _ in 0..2 {
            let mut y = rank.zeros(shape)?;
            drop(layer.forward([rows, BATCH], &x, &parameters(&held), &mut y)?);
            outputs.push(y.read()?);
        }
        assert_ne!(outputs[0], outputs[1]);
        Ok(())
    });
    done.expect("two ranks");
}

/// Rows are whole on each rank, and so are their masks.
#[test]
fn what_is_dropped_of_rows_is_the_same_for_every_number_of_ranks() {
    let outputs = |world| {
        let found = each(world, |rank| {
            let buffers = userbuffers(rank, [ROWS[0], SIZES.hidden], "")?;
            let (layer, _) = layer(rank, &buffers, ON, [0.0, 0.5])?;
            let held = Held::new(rank, &SIZES, &weights(&SIZES, 100))?;
            let (rows, hidden) = (ROWS[0], SIZES.hidden);
            let x = Matrix::random(rows, hidden, 1.0, 1);
            let shard = rank.shard(rank.rank(), rows);
            let x = tensor(rank, layer.shape(rows), &x.part(shard, 0..hidden))?;
            let mut y = rank.zeros(layer.shape(rows))?;
            drop(layer.forward([rows, BATCH], &x, &parameters(&held), &mut y)?);
            Ok(y.read()?.into_iter().map(bf16::to_f64).collect::<Vec<_>>())
        });
        found.expect("ranks").concat()
    };
    let (alone, three) = (outputs(1), outputs(3));
    // Both have roundings: 20 on the way through a layer each.
    let path = Path {
        roundings: 40.0,
        most: 12.0,
    };
    close("three ranks", &three, &alone, SIZES.hidden, path);
}

#[test]
fn gradients_are_summed_over_ranks() {
    for world in [2, 3] {
        let done = each(world, |rank| {
            let most = 1030;
            rank.reserve(GradientSum::heap_bytes(most, world) + (32 << 20))?;
            let sum = GradientSum::new(rank, most)?;
            for elements in [8, 24, 1024, 48, 8] {
                let mut gradient = rank.zeros::<f32>([1, elements])?;
                let own = |at: usize, rank: u32| (at as f32 + 1.0) / 3.0 * (rank as f32 - 0.7);
                let me = rank.rank();
                gradient.write(&Vec::from_iter((0..elements).map(|at| own(at, me))))?;
                sum.over_ranks(&mut gradient)?;
                for (at, found) in gradient.read()?.into_iter().enumerate() {
                    let wanted = (0..world).map(|rank| own(at, rank)).fold(0.0, |a, b| a + b);
                    let near = (found - wanted).abs() <= 1e-6 * (at as f32 + 1.0);
                    assert!(near, "{found}, not {wanted}");
                }
            }
            let all = GradientSum::beside(rank, 8, 132).map(drop);
            let told = all.expect_err("no SM is left").to_string();
            assert_eq!(told, "132 of 132 SMs left to others");
            let told = sum.over_ranks(&mut rank.zeros([1, 12])?).expect_err("12");
            assert_eq!(told.to_string(), "a gradient of 12 elements");
            Ok(())
        });
        done.unwrap_or_else(|error| panic!("{world} ranks: {error}"));
    }
}

/// Attention of the caller's, which sees that the memory it gets is not zeros in a debug build.
#[derive(Debug)]
struct Counting(AttentionKernels, AtomicUsize);

impl CoreAttention for Counting {
    fn forward(
        &self,
        of: &AttentionShape,
        qkv: &Tensor<bf16>,
        mask: Option<&Mask>,
        out: &mut Tensor<bf16>,
        logs: &mut Tensor<f32>,
    ) -> Result<(), Error> {
        self.1.fetch_add(1, Ordering::Relaxed);
        if cfg!(debug_assertions) {
            assert!(out.read()?.iter().all(|value| value.is_nan()));
            assert!(logs.read()?.iter().all(|value| value.is_nan()));
        }
        self.0.forward(of, qkv, mask, out, logs)
    }

    fn backward(
        &self,
        of: &AttentionShape,
        qkv: &Tensor<bf16>,
        mask: Option<&Mask>,
        both: [&Tensor<bf16>; 2],
        logs: &Tensor<f32>,
        dqkv: &mut Tensor<bf16>,
    ) -> Result<(), Error> {
        self.1.fetch_add(10, Ordering::Relaxed);
        if cfg!(debug_assertions) {
            assert!(dqkv.read()?.iter().all(|value| value.is_nan()));
        }
        self.0.backward(of, qkv, mask, both, logs, dqkv)
    }
}

#[test]
fn attention_may_be_the_callers_and_what_cannot_be_is_refused() {
    let done = each(1, |rank| {
        let buffers = userbuffers(rank, [ROWS[0], SIZES.hidden], "")?;
        let rng = Arc::new(RngTracker::new(1, 0));
        let counting = Arc::new(Counting(AttentionKernels::load(rank)?, AtomicUsize::new(0)));
        let config = SIZES.layer();
        let layer = TransformerLayer::with_core(&buffers, &config, &rng, counting.clone())?;
        let mut held = Held::new(rank, &SIZES, &weights(&SIZES, 100))?;
        let (x, mut y) = (
            rank.zeros([6, SIZES.hidden])?,
            rank.zeros([6, SIZES.hidden])?,
        );
        let saved = layer.forward([6, 2], &x, &parameters(&held), &mut y)?;
        backward(&layer, saved, &mut held, &x, &mut y)?;
        assert_eq!(counting.1.load(Ordering::Relaxed), 11);

        let told = layer.forward([7, 2], &x, &parameters(&held), &mut y);
        let told = told.map(drop).expect_err("7 rows").to_string();
        assert_eq!(told, "7 rows of 2 sequences");
        let refused = |change: fn(&mut counterflow_layers::TransformerLayerConfig)| {
            let mut config = SIZES.layer();
            change(&mut config);
            let made = TransformerLayer::new(&buffers, &config, &rng);
            made.map(drop).expect_err("refused").to_string()
        };
        let told = refused(|config| config.attention.groups = 4);
        assert_eq!(told, "6 heads of 16 numbers, 4 of keys, for 1 ranks");
        let told = refused(|config| config.hidden_dropout = 1.0);
        assert_eq!(told, "dropout of 1");
        let told = refused(|config| config.attention.norm = None);
        assert!(
            told.starts_with("attention of 32 columns without a norm"),
            "{told}"
        );
        let told = refused(|config| config.attention.depth = 8);
        assert!(
            told.starts_with("rotary positions of 8 numbers a head"),
            "{told}"
        );
        Ok(())
    });
    done.expect("one rank");
}
