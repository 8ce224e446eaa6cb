//! The layer that trains: its weights, their gradients, and an optimizer that keeps them in f32.

use crate::average::Averages;
use crate::{Options, number, usage};
use counterflow::{Communicator, Error, Tensor, prelude::bf16};
use counterflow_layers::overlap::ModuleFlags;
use counterflow_layers::{
    Activation, GradientSum, Gradients, LayerNormLinearGradients, LayerNormLinearParameters,
    LayerNormMlp, LayerNormMlpConfig, LayerNormMlpGradients, LayerNormMlpParameters,
    LayerNormMlpSaved, Linear, MultiheadAttention, MultiheadAttentionConfig,
    MultiheadAttentionGradients, MultiheadAttentionParameters, MultiheadAttentionSaved, Norm,
    Normalization, Parameters, Product, RngTracker, Rope, TransformerLayer, TransformerLayerConfig,
    TransformerLayerGradients, TransformerLayerParameters, TransformerLayerSaved, Userbuffers,
};
use std::sync::Arc;

/// The layers that TransformerEngine's program takes, by its names. Its two linear layers do not give what they get.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[clap(rename_all = "verbatim")]
pub enum LayerType {
    TransformerLayer,
    MultiheadAttention,
    #[clap(name = "LayerNormMLP")]
    LayerNormMlp,
}

enum Layer {
    Transformer(Box<TransformerLayer>),
    Attention(Box<MultiheadAttention>),
    Mlp(Box<LayerNormMlp>),
}

pub enum Saved {
    Transformer(Box<TransformerLayerSaved>),
    Attention(MultiheadAttentionSaved),
    Mlp(LayerNormMlpSaved),
}

/// A weight of this rank's.
struct Weight {
    used: Tensor<bf16>,
    master: Vec<f32>,
    gradient: Tensor<f32>,
    /// The same on every rank, each of which has a part of its gradient.
    is_norm: bool,
}

impl Weight {
    /// Each rank draws its own numbers.
    fn random(rank: &Communicator, shape: [usize; 2], seed: u64) -> Result<Weight, Error> {
        let by = (1.0 / shape[1] as f32).sqrt();
        let numbers = (0..shape[0] * shape[1]).map(|at| by * number(seed, at));
        Weight::of(rank, shape, numbers.collect(), false)
    }

    fn of(
        rank: &Communicator,
        shape: [usize; 2],
        master: Vec<f32>,
        is_norm: bool,
    ) -> Result<Weight, Error> {
        let used = rank.zeros(shape)?;
        used.write(&Vec::from_iter(
            master.iter().map(|own| bf16::from_f32(*own)),
        ))?;
        let gradient = rank.zeros(shape)?;
        Ok(Weight {
            used,
            master,
            gradient,
            is_norm,
        })
    }

    fn linear(&self) -> Parameters<'_> {
        Parameters {
            weight: &self.used,
            bias: None,
        }
    }
}

fn gradients(of: &mut Tensor<f32>) -> Gradients<'_> {
    Gradients {
        weight: Some(of),
        bias: None,
    }
}

/// A layer with its weights: a norm's and two products' for attention, and the same for the MLP.
struct Part {
    layer: Layer,
    weights: Vec<Weight>,
}

/// Layers one behind the other.
pub struct Model {
    rank: Arc<Communicator>,
    parts: Vec<Part>,
}

impl Model {
    pub fn new(
        buffers: &Userbuffers,
        options: &Options,
        rng: &Arc<RngTracker>,
    ) -> Result<Model, Error> {
        let parts = (0..options.num_layers).map(|at| Part::new(buffers, options, rng, at));
        Ok(Model {
            rank: buffers.rank().clone(),
            parts: parts.collect::<Result<_, Error>>()?,
        })
    }

    /// True if products are FP8: then they run in steps.
    pub fn is_fp8(&self) -> bool {
        let linears = self.parts.iter().flat_map(|part| part.layer.linears());
        let mut linears = linears.flatten();
        linears.any(|linear| linear.config().fp8.is_some())
    }

    /// Elements of the largest weight.
    pub fn largest(&self) -> usize {
        let all = self.parts.iter().flat_map(|part| &part.weights);
        all.map(|weight| weight.master.len())
            .max()
            .unwrap_or_default()
    }

    /// Which op does each product, and why. Layers are alike.
    pub fn tell(&self) {
        let products = self.parts.first().map(|part| part.layer.products());
        for product in products.unwrap_or_default() {
            let fused = if product.overlaps { ", fused" } else { "" };
            let Product {
                layer,
                pass,
                schedule,
                variant,
                why,
                ..
            } = product;
            let layer = layer.unwrap_or_default();
            let pass = pass.name();
            println!("  {layer}_{pass}: {schedule}{fused}, chosen by {why} ({variant})");
        }
    }

    pub fn forward(
        &self,
        sizes: [usize; 2],
        x: &Tensor<bf16>,
    ) -> Result<(Tensor<bf16>, Vec<Saved>), Error> {
        let (mut now, mut all) = (x.clone(), Vec::new());
        for part in &self.parts {
            let mut y = self.rank.zeros(x.shape())?;
            all.push(part.forward(sizes, &now, &mut y)?);
            now = y;
        }
        Ok((now, all))
    }

    /// The averages of a layer's gradients begin once they are enqueued.
    pub fn backward(
        &mut self,
        saved: Vec<Saved>,
        dy: &Tensor<bf16>,
        averages: &Averages<'_>,
    ) -> Result<(), Error> {
        let mut now = dy.clone();
        let all = self.parts.iter_mut().zip(saved).enumerate().rev();
        for (at, (part, saved)) in all {
            let mut dx = self.rank.zeros(dy.shape())?;
            part.backward(at + 1, saved, (&now, &mut dx), averages)?;
            now = dx;
        }
        Ok(())
    }

    /// A step along the mean gradient.
    pub fn update(&mut self, rate: f32, of_norms: &GradientSum) -> Result<(), Error> {
        for weight in self.parts.iter_mut().flat_map(|part| &mut part.weights) {
            if weight.is_norm {
                of_norms.over_ranks(&mut weight.gradient)?;
            }
            let change = weight.gradient.read()?;
            let all = weight.master.iter_mut().zip(change);
            all.for_each(|(own, by)| *own -= rate * by);
            let used = weight.master.iter().map(|own| bf16::from_f32(*own));
            weight.used.write(&Vec::from_iter(used))?;
        }
        Ok(())
    }
}

impl Layer {
    fn linears(&self) -> Vec<[&Linear; 2]> {
        match self {
            Layer::Transformer(layer) => vec![layer.attention().linears(), layer.mlp().linears()],
            Layer::Attention(layer) => vec![layer.linears()],
            Layer::Mlp(layer) => vec![layer.linears()],
        }
    }

    fn products(&self) -> Vec<Product> {
        match self {
            Layer::Transformer(layer) => layer.products(),
            Layer::Attention(layer) => layer.products(),
            Layer::Mlp(layer) => layer.products(),
        }
    }
}

impl Part {
    fn new(
        buffers: &Userbuffers,
        options: &Options,
        rng: &Arc<RngTracker>,
        at: usize,
    ) -> Result<Part, Error> {
        let (rank, hidden) = (buffers.rank(), options.hidden);
        let norm = Norm::new(Normalization::RmsNorm);
        let fp8 = options.fp8.map(crate::Fp8::recipe);
        let flags = ModuleFlags {
            ub_tp_comm_overlap: !options.no_comm_overlap,
            ..ModuleFlags::default()
        };
        let attention = MultiheadAttentionConfig {
            depth: options.head_dim,
            norm: Some(norm),
            rope: options.head_dim.is_multiple_of(16).then_some(Rope {
                base: 1e4,
                positions: options.seq_length,
            }),
            flags: flags.flags(),
            fp8,
            ..MultiheadAttentionConfig::new(hidden, options.num_heads)
        };
        let mlp = LayerNormMlpConfig {
            activation: Activation::SwiGlu,
            flags: flags.flags(),
            fp8,
            ..LayerNormMlpConfig::new(hidden, 4 * hidden, norm)
        };
        let layer = TransformerLayerConfig {
            attention: attention.clone(),
            mlp: mlp.clone(),
            hidden_dropout: 0.0,
            fp8,
            flags,
        };
        let workspace = match options.layer_type {
            LayerType::TransformerLayer => layer.workspace(buffers)?,
            LayerType::MultiheadAttention => attention.workspace(buffers)?,
            LayerType::LayerNormMlp => mlp.workspace(buffers)?,
        };
        rank.reserve(rank.heap_use().reserved + workspace.heap + (4 << 20))?;
        let layer = match options.layer_type {
            LayerType::TransformerLayer => {
                Layer::Transformer(Box::new(TransformerLayer::new(buffers, &layer, rng)?))
            }
            LayerType::MultiheadAttention => {
                Layer::Attention(Box::new(MultiheadAttention::new(buffers, &attention, rng)?))
            }
            LayerType::LayerNormMlp => Layer::Mlp(Box::new(LayerNormMlp::new(buffers, &mlp)?)),
        };
        let mut weights = Vec::new();
        for linears in layer.linears() {
            weights.push(Weight::of(rank, [1, hidden], vec![1.0; hidden], true)?);
            for linear in linears {
                let seed = options.seed + 97 * (weights.len() as u64 + 1) + u64::from(rank.rank());
                let seed = seed + 7919 * at as u64;
                weights.push(Weight::random(rank, linear.weight_shape(), seed)?);
            }
        }
        Ok(Part { layer, weights })
    }

    fn forward(
        &self,
        [rows, batch]: [usize; 2],
        x: &Tensor<bf16>,
        to: &mut Tensor<bf16>,
    ) -> Result<Saved, Error> {
        Ok(match &self.layer {
            Layer::Transformer(layer) => {
                let (attention, mlp) = (attention(&self.weights), mlp(&self.weights[3..]));
                let parameters = TransformerLayerParameters { attention, mlp };
                let saved = layer.forward([rows, batch], x, &parameters, to)?;
                Saved::Transformer(Box::new(saved))
            }
            Layer::Attention(layer) => {
                Saved::Attention(layer.forward([rows, batch], x, &attention(&self.weights), to)?)
            }
            Layer::Mlp(layer) => Saved::Mlp(layer.forward(rows, x, &mlp(&self.weights), to)?),
        })
    }

    fn backward(
        &mut self,
        number: usize,
        saved: Saved,
        (dy, to): (&Tensor<bf16>, &mut Tensor<bf16>),
        averages: &Averages<'_>,
    ) -> Result<(), Error> {
        let mut of: Vec<Tensor<f32>> = Vec::new();
        for weight in &self.weights {
            weight.gradient.fill(0)?;
            of.push(weight.gradient.clone()); // another handle of the same memory
        }
        let name = |part: &str| format!("the {part} of layer {number}");
        let weights = &self.weights;
        let done = |part: &str, some: &[Weight]| {
            averages.begin(&name(part), some.iter().map(|weight| &weight.gradient))
        };
        match (&self.layer, saved, &mut of[..]) {
            (Layer::Transformer(layer), Saved::Transformer(saved), [a, b, c, d, e, f]) => {
                let (of_attention, of_mlp) = (of_attention([a, b, c]), of_mlp([d, e, f]));
                let parameters = TransformerLayerParameters {
                    attention: attention(weights),
                    mlp: mlp(&weights[3..]),
                };
                let gradients = TransformerLayerGradients {
                    attention: of_attention,
                    mlp: of_mlp,
                };
                let mlp_is_done = || done("MLP", &weights[3..]);
                layer.backward_by_parts(*saved, &parameters, dy, to, gradients, mlp_is_done)?;
                done("attention", &weights[..3])
            }
            (Layer::Attention(layer), Saved::Attention(saved), [a, b, c]) => {
                let gradients = of_attention([a, b, c]);
                layer.backward(saved, &attention(weights), dy, to, gradients)?;
                done("attention", weights)
            }
            (Layer::Mlp(layer), Saved::Mlp(saved), [a, b, c]) => {
                layer.backward(saved, &mlp(weights), dy, to, of_mlp([a, b, c]))?;
                done("MLP", weights)
            }
            _ => Err(usage("what another layer has saved".into(), "give its own")),
        }
    }
}

fn attention(of: &[Weight]) -> MultiheadAttentionParameters<'_> {
    MultiheadAttentionParameters {
        layer_norm_weight: Some(&of[0].used),
        layer_norm_bias: None,
        qkv: of[1].linear(),
        proj: of[2].linear(),
    }
}

fn mlp(of: &[Weight]) -> LayerNormMlpParameters<'_> {
    LayerNormMlpParameters {
        fc1: LayerNormLinearParameters {
            layer_norm_weight: &of[0].used,
            layer_norm_bias: None,
            linear: of[1].linear(),
        },
        fc2: of[2].linear(),
    }
}

fn of_attention([norm, qkv, proj]: [&mut Tensor<f32>; 3]) -> MultiheadAttentionGradients<'_> {
    MultiheadAttentionGradients {
        layer_norm_weight: Some(norm),
        layer_norm_bias: None,
        qkv: gradients(qkv),
        proj: gradients(proj),
    }
}

fn of_mlp([norm, fc1, fc2]: [&mut Tensor<f32>; 3]) -> LayerNormMlpGradients<'_> {
    LayerNormMlpGradients {
        fc1: LayerNormLinearGradients {
            layer_norm_weight: norm,
            layer_norm_bias: None,
            linear: gradients(fc1),
        },
        fc2: gradients(fc2),
    }
}
