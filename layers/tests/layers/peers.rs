//! The layers of the case matrix of TransformerEngine's test of overlapped products, as data: what exists here has the same bits as
//! without overlap, which no tolerance is stricter than, and is not zero; what does not exist is counted. `products` and
//! `suites` have the matrix of products alone.
//!
//! They have each case twice, with userbuffers and with cuBLASMp: 104. One kernel does both here, so each is here once: 52.
//! Their sizes are 2048 rows of 1536 columns, 32 heads of 48 numbers and weights of N(0, 0.023); these are smaller, and so are worlds.

use super::model::{Held, Sizes, tensor, weights};
use super::processes;
use super::products::{Absent, Count};
use super::reference::Matrix;
use super::{each, userbuffers_of};
use crate::wide::wide;
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error};
use counterflow_layers::overlap::{ModuleFlags, Parallel};
use counterflow_layers::{
    Activation, DelayedScaling, Float8BlockScaling, Float8CurrentScaling, Gradients,
    LayerNormLinear, LayerNormLinearConfig, LayerNormLinearGradients, LayerNormLinearParameters,
    LayerNormMlp, Linear, LinearConfig, MultiheadAttention, Norm, Normalization, Parameters,
    QuantizationMode, Recipe, RngTracker, TransformerLayer, TransformerLayerGradients,
    TransformerLayerParameters,
};
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Quantisation {
    None,
    Delayed,
    Current,
    /// Of Blackwell's GPUs.
    Mxfp8,
    /// Scales of 1×128 and 128×128, with which theirs raises.
    Blocks,
}

impl Quantisation {
    fn recipe(self) -> Option<Recipe> {
        match self {
            Quantisation::None | Quantisation::Mxfp8 => None,
            Quantisation::Delayed => {
                let amax_history_len = 32;
                let usual = DelayedScaling::default();
                Some(
                    DelayedScaling {
                        amax_history_len,
                        ..usual
                    }
                    .into(),
                )
            }
            Quantisation::Current => Some(Float8CurrentScaling::default().into()),
            Quantisation::Blocks => Some(Float8BlockScaling::default().into()),
        }
    }

    /// Worlds whose ranks' features are whole 16s, and with scales of blocks their rows whole 4s.
    fn worlds(self) -> &'static [u32] {
        match self {
            Quantisation::None => &[2, 3, 4],
            Quantisation::Delayed | Quantisation::Current => &[2, 3],
            Quantisation::Blocks => &[2],
            Quantisation::Mxfp8 => &[],
        }
    }
}

/// A case of the group of layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tested {
    LinearRow,
    LinearColumn,
    LayerNormLinear,
    LayerNormMlp,
    MultiheadAttention,
    TransformerLayers(usize),
}

/// How the gradient of a column-parallel layer's input communicates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dgrad {
    Bulk,
    ReduceScatter,
}

const LAYERS: [(Tested, &[Dgrad]); 7] = [
    (Tested::LinearRow, &[Dgrad::Bulk]),
    (Tested::LinearColumn, &[Dgrad::Bulk, Dgrad::ReduceScatter]),
    (
        Tested::LayerNormLinear,
        &[Dgrad::Bulk, Dgrad::ReduceScatter],
    ),
    (Tested::LayerNormMlp, &[Dgrad::Bulk, Dgrad::ReduceScatter]),
    (
        Tested::MultiheadAttention,
        &[Dgrad::Bulk, Dgrad::ReduceScatter],
    ),
    (
        Tested::TransformerLayers(1),
        &[Dgrad::Bulk, Dgrad::ReduceScatter],
    ),
    (
        Tested::TransformerLayers(2),
        &[Dgrad::Bulk, Dgrad::ReduceScatter],
    ),
];

const ROWS: usize = 16;
const BATCH: usize = 2;
const SIZES: Sizes = Sizes {
    hidden: 48,
    ffn: 96,
    heads: 12,
    groups: 12,
    depth: 8,
    kind: Normalization::LayerNorm,
    activation: Activation::Gelu,
    bias: true,
    causal: true,
    rope: false,
};

fn flags(dgrad: Dgrad, on: bool) -> ModuleFlags {
    ModuleFlags {
        ub_tp_comm_overlap: on,
        ub_overlap_rs_dgrad: dgrad == Dgrad::ReduceScatter,
        ..ModuleFlags::default()
    }
}

/// The bits of outputs and gradients of a layer on a rank.
fn of_layer(
    rank: &Arc<Communicator>,
    (layer, quantisation): (Tested, Quantisation),
    flags: ModuleFlags,
) -> Result<Vec<u32>, Error> {
    let fp8 = quantisation.recipe();
    let config = match flags.ub_overlap_rs_dgrad {
        true => "qkv_dgrad: {method: ring_exchange}\nfc1_dgrad: {method: pipeline}",
        false => "",
    };
    let mode = fp8.map_or(QuantizationMode::None, |_| QuantizationMode::Fp8);
    let buffers = userbuffers_of(rank, [ROWS, SIZES.hidden], config, vec![mode])?;
    let mut whole = SIZES.layer();
    let of = flags.flags();
    (whole.flags, whole.attention.flags, whole.mlp.flags) = (flags, of, of);
    (whole.fp8, whole.attention.fp8, whole.mlp.fp8) = (fp8, fp8, fp8);
    let step = fp8.map(|_| buffers.autocast(None)).transpose()?;
    let rng = Arc::new(RngTracker::new(1234, rank.rank()));
    let mut held = Held::new(rank, &SIZES, &weights(&SIZES, 42))?;
    let random = |shape: [usize; 2], seed: u64| {
        let [rows, columns] = shape;
        let seed = seed + 10 * u64::from(rank.rank());
        let values = Matrix::random(rows, columns, 1.0, seed).part(0..rows, 0..columns);
        tensor(rank, shape, &values)
    };
    let mut bits = Vec::new();
    let mut keep = |values: Vec<bf16>| {
        assert!(values.iter().any(|value| value.to_f32() != 0.0), "zeros");
        bits.extend(values.into_iter().map(|value| u32::from(value.to_bits())));
    };
    let linear = |parallel| {
        let (name, base) = match parallel {
            Parallel::Row => ("fc2", LinearConfig::row(SIZES.ffn, SIZES.hidden)),
            Parallel::Column => ("fc1", LinearConfig::column(SIZES.hidden, SIZES.ffn)),
        };
        LinearConfig {
            flags: of,
            ub_name: Some(name.into()),
            bias: true,
            fp8,
            ..base
        }
    };
    match layer {
        Tested::LinearRow | Tested::LinearColumn => {
            let parallel = match layer {
                Tested::LinearRow => Parallel::Row,
                _ => Parallel::Column,
            };
            let layer = Linear::new(&buffers, &linear(parallel))?;
            let at = if parallel == Parallel::Row { 10 } else { 8 };
            let (x, dy) = (
                random(layer.input_shape(ROWS), 1)?,
                random(layer.output_shape(ROWS), 2)?,
            );
            let (mut y, mut dx) = (rank.zeros(dy.shape())?, rank.zeros(x.shape())?);
            let ([weight, bias], [of_weight, of_bias]) = held.pair(at);
            let parameters = Parameters {
                weight,
                bias: Some(bias),
            };
            let saved = layer.forward(ROWS, &x, &parameters, &mut y)?;
            let gradients = Gradients {
                weight: Some(of_weight),
                bias: Some(of_bias),
            };
            layer.backward(saved, &parameters, &dy, &mut dx, gradients)?;
            keep(y.read()?);
            keep(dx.read()?);
        }
        Tested::LayerNormLinear => {
            let config = LayerNormLinearConfig {
                norm: Norm::new(Normalization::LayerNorm),
                linear: linear(Parallel::Column),
            };
            let layer = LayerNormLinear::new(&buffers, &config)?;
            let shapes = layer.linear();
            let (x, dy) = (
                random(shapes.input_shape(ROWS), 1)?,
                random(shapes.output_shape(ROWS), 2)?,
            );
            let (mut y, mut dx) = (rank.zeros(dy.shape())?, rank.zeros(x.shape())?);
            let ((_, _), (parameters, gradients)) = held.split([false; 4]);
            let parameters: LayerNormLinearParameters<'_> = parameters.fc1;
            let gradients: LayerNormLinearGradients<'_> = gradients.fc1;
            let saved = layer.forward(ROWS, &x, &parameters, &mut y)?;
            layer.backward(saved, &parameters, &dy, &mut dx, gradients)?;
            keep(y.read()?);
            keep(dx.read()?);
        }
        Tested::LayerNormMlp => {
            let layer = LayerNormMlp::new(&buffers, &whole.mlp)?;
            let (x, dy) = (random(layer.shape(ROWS), 1)?, random(layer.shape(ROWS), 2)?);
            let (mut y, mut dx) = (rank.zeros(dy.shape())?, rank.zeros(x.shape())?);
            let (_, (parameters, gradients)) = held.split([false; 4]);
            let saved = layer.forward(ROWS, &x, &parameters, &mut y)?;
            layer.backward(saved, &parameters, &dy, &mut dx, gradients)?;
            keep(y.read()?);
            keep(dx.read()?);
        }
        Tested::MultiheadAttention => {
            let layer = MultiheadAttention::new(&buffers, &whole.attention, &rng)?;
            let (x, dy) = (random(layer.shape(ROWS), 1)?, random(layer.shape(ROWS), 2)?);
            let (mut y, mut dx) = (rank.zeros(dy.shape())?, rank.zeros(x.shape())?);
            let ((parameters, gradients), _) = held.split([false; 4]);
            let saved = layer.forward([ROWS, BATCH], &x, &parameters, &mut y)?;
            layer.backward(saved, &parameters, &dy, &mut dx, gradients)?;
            keep(y.read()?);
            keep(dx.read()?);
        }
        Tested::TransformerLayers(count) => {
            let made = (0..count).map(|_| TransformerLayer::new(&buffers, &whole, &rng));
            let layers: Vec<TransformerLayer> = made.collect::<Result<_, Error>>()?;
            let mut x = random(layers[0].shape(ROWS), 1)?;
            let mut saved = Vec::new();
            for layer in &layers {
                let mut y = rank.zeros(x.shape())?;
                let (attention, mlp) = (held.attention(), held.mlp());
                let parameters = TransformerLayerParameters { attention, mlp };
                saved.push(layer.forward([ROWS, BATCH], &x, &parameters, &mut y)?);
                keep(y.read()?);
                x = y;
            }
            let mut dy = random(x.shape(), 2)?;
            for (layer, saved) in layers.iter().zip(saved).rev() {
                let mut dx = rank.zeros(dy.shape())?;
                let ((attention, of_attention), (mlp, of_mlp)) = held.split([false; 4]);
                let parameters = TransformerLayerParameters { attention, mlp };
                let gradients = TransformerLayerGradients {
                    attention: of_attention,
                    mlp: of_mlp,
                };
                layer.backward(saved, &parameters, &dy, &mut dx, gradients)?;
                keep(dx.read()?);
                dy = dx;
            }
        }
    }
    if let Some(step) = step {
        step.end()?;
    }
    for gradient in &held.gradients {
        bits.extend(gradient.read()?.into_iter().map(f32::to_bits));
    }
    Ok(bits)
}

/// Cases of all layers, of which those of the sample run without `WIDE=1`, each in one world; in processes the first of them.
fn all(quantisation: Quantisation, sample: &[usize]) -> Count {
    let (mut turn, mut count) = (0, Count::default());
    let sample = match processes::job() {
        Some(_) => &sample[..1],
        None => sample,
    };
    for (layer, dgrads) in LAYERS {
        for dgrad in dgrads {
            let all = quantisation.worlds();
            // Processes are as many as they are.
            let all = match processes::job() {
                Some(job) => &[job.world()],
                None => all,
            };
            let worlds = match (wide(), sample.contains(&turn)) {
                (true, _) => all.to_vec(),
                (false, true) => vec![all[turn % 2 % all.len()]],
                (false, false) => Vec::new(),
            };
            turn += 1;
            if worlds.is_empty() {
                count.absent(Absent::Wide);
                continue;
            }
            for world in worlds {
                let [on, off] = [true, false].map(|on| {
                    let of = (layer, quantisation);
                    let found = each(world, |rank| of_layer(rank, of, flags(*dgrad, on)));
                    found.unwrap_or_else(|error| {
                        panic!("{layer:?}, {dgrad:?}, {quantisation:?}: {error}")
                    })
                });
                let what = format!("{layer:?}, {dgrad:?}, {quantisation:?}, {world} ranks");
                assert!(on == off, "{what}: other bits");
            }
            count.here += 1;
        }
    }
    count
}

#[test]
fn layers_have_the_bits_of_layers_without_overlap() {
    let some = if processes::job().is_some() { 1 } else { 3 };
    assert_eq!(all(Quantisation::None, &[1, 6, 12]), Count::ran(some, 13));
}

#[test]
fn layers_of_fp8_have_the_bits_of_layers_without_overlap() {
    // Theirs.
    assert_eq!(all(Quantisation::Delayed, &[3]), Count::ran(1, 13));
    assert_eq!(all(Quantisation::Current, &[8]), Count::ran(1, 13));
    let mut count = Count::default();
    (0..13).for_each(|_| count.absent(Absent::Mxfp8));
    assert_eq!(count.mxfp8, 13);
    assert_eq!(Quantisation::Mxfp8.recipe(), None);
    // And what theirs has no overlap of.
    assert_eq!(all(Quantisation::Blocks, &[5]), Count::ran(1, 13));
}
