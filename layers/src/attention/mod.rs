//! Attention between two products that ranks share by heads.

mod config;
mod core;

pub use self::config::{MultiheadAttentionConfig, Rope};
pub use self::core::CoreAttention;
use crate::layer_norm_linear::{
    LayerNormLinear, LayerNormLinearConfig, LayerNormLinearGradients, LayerNormLinearParameters,
    LayerNormLinearSaved,
};
use crate::linear::{
    self, GradientPlace, Gradients, Linear, OutputGradient, Parameters, Product, Saved, fits,
};
use crate::random::RngTracker;
use crate::scratch::Lent;
#[cfg(doc)]
use crate::side::AttentionKernels;
use crate::side::RopeKernels;
use crate::side::twin::{AttentionShape, Mask};
use crate::step::together;
use crate::userbuffers::Userbuffers;
use counterflow::prelude::bf16;
use counterflow::{Error, Tensor};
use std::sync::Arc;

/// The weights of a [`MultiheadAttention`] on one rank, which the caller owns.
#[derive(Clone, Copy, Debug)]
pub struct MultiheadAttentionParameters<'a> {
    /// γ, if the layer has a norm.
    pub layer_norm_weight: Option<&'a Tensor<bf16>>,
    /// β, if the norm has one.
    pub layer_norm_bias: Option<&'a Tensor<bf16>>,
    /// Of the first product: the rank's rows of the weight are those of its heads of queries, then of keys, then of values.
    pub qkv: Parameters<'a>,
    /// Of the second product.
    pub proj: Parameters<'a>,
}

/// Tensors that gradients are added to, as in [`LayerNormLinearGradients`].
#[derive(Debug)]
pub struct MultiheadAttentionGradients<'a> {
    /// Of γ, where there is one.
    pub layer_norm_weight: Option<&'a mut Tensor<f32>>,
    /// Of β, where there is one.
    pub layer_norm_bias: Option<&'a mut Tensor<f32>>,
    /// Of the first product.
    pub qkv: Gradients<'a>,
    /// Of the second product.
    pub proj: Gradients<'a>,
}

/// The first product.
#[derive(Debug)]
enum Qkv {
    Plain(Linear),
    Normed(LayerNormLinear),
}

#[derive(Debug)]
enum QkvSaved {
    Plain(Saved),
    Normed(LayerNormLinearSaved),
}

/// Tensors that a forward pass leaves for the backward pass.
#[derive(Debug)]
pub struct MultiheadAttentionSaved {
    shape: AttentionShape,
    qkv: QkvSaved,
    /// Queries, keys and values, turned by their positions.
    turned: Lent<bf16>,
    out: Lent<bf16>,
    logs: Lent<f32>,
    mask: Option<Mask>,
    proj: Saved,
}

/// Attention whose heads ranks divide: TransformerEngine's `MultiheadAttention`. Queries, keys and values are one column-parallel
/// product, and the output's projection is a row-parallel one. Between layers each rank has its shard of the rows; rows are positions by
/// batch: row = position · batch + sequence.
///
/// ```
/// use counterflow::{Communicator, prelude::bf16};
/// use counterflow_layers::*;
/// use std::sync::Arc;
///
/// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
/// rank.reserve(8 << 20)?;
/// let userbuffers = Userbuffers::initialize(&rank, &Initialize::new([32, 64], 1))?;
/// let config = MultiheadAttentionConfig { groups: 2, rope: Some(Rope { base: 1e4, positions: 16 }), ..MultiheadAttentionConfig::new(64, 4) };
/// let attention = MultiheadAttention::new(&userbuffers, &config, &Arc::new(RngTracker::new(1234, 0)))?;
/// let [qkv, proj] = attention.linears();
/// let (w_qkv, w_proj) = (rank.zeros::<bf16>(qkv.weight_shape())?, rank.zeros::<bf16>(proj.weight_shape())?);
/// let parameters = MultiheadAttentionParameters {
///     layer_norm_weight: None,
///     layer_norm_bias: None,
///     qkv: Parameters { weight: &w_qkv, bias: None },
///     proj: Parameters { weight: &w_proj, bias: None },
/// };
/// let (rows, batch) = (14, 2); // 7 positions of 2 sequences
/// let (x, mut y) = (rank.zeros(attention.shape(rows))?, rank.zeros(attention.shape(rows))?);
/// let saved = attention.forward([rows, batch], &x, &parameters, &mut y)?;
///
/// let (mut of_qkv, mut of_proj) = (rank.zeros::<f32>(qkv.weight_shape())?, rank.zeros::<f32>(proj.weight_shape())?);
/// let gradients = MultiheadAttentionGradients {
///     layer_norm_weight: None,
///     layer_norm_bias: None,
///     qkv: Gradients { weight: Some(&mut of_qkv), bias: None },
///     proj: Gradients { weight: Some(&mut of_proj), bias: None },
/// };
/// let mut dx = rank.zeros(x.shape())?;
/// attention.backward(saved, &parameters, &y, &mut dx, gradients)?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Debug)]
pub struct MultiheadAttention {
    config: MultiheadAttentionConfig,
    qkv: Qkv,
    rope: Option<RopeKernels>,
    core: Arc<dyn CoreAttention>,
    proj: Linear,
    rng: Arc<RngTracker>,
}

impl MultiheadAttention {
    /// Builds the layer's ops, with attention by [`AttentionKernels`]. Collective: every rank makes the same.
    ///
    /// # Errors
    /// [`Error::Usage`] for heads that ranks cannot divide, and for a dropout that is no part; as [`LayerNormLinear::new`] and
    /// [`Linear::new`].
    pub fn new(
        userbuffers: &Userbuffers,
        config: &MultiheadAttentionConfig,
        rng: &Arc<RngTracker>,
    ) -> Result<MultiheadAttention, Error> {
        let core = Arc::new(together(userbuffers.rank(), || userbuffers.attention())?);
        MultiheadAttention::with_core(userbuffers, config, rng, core)
    }

    /// Makes the layer with attention of the caller's.
    ///
    /// # Errors
    /// As [`MultiheadAttention::new`].
    pub fn with_core(
        userbuffers: &Userbuffers,
        config: &MultiheadAttentionConfig,
        rng: &Arc<RngTracker>,
        core: Arc<dyn CoreAttention>,
    ) -> Result<MultiheadAttention, Error> {
        let rank = userbuffers.rank();
        config.checks(rank.world())?;
        linear::ahead(userbuffers, config.linears());
        together(rank, || {
            let linear = config.qkv();
            let rope = config.rope.map(|Rope { base, positions }| {
                RopeKernels::load(rank, positions, config.depth, base)
            });
            Ok(MultiheadAttention {
                config: config.clone(),
                rope: rope.transpose()?,
                qkv: match config.norm {
                    Some(norm) => {
                        let config = LayerNormLinearConfig { norm, linear };
                        Qkv::Normed(LayerNormLinear::new(userbuffers, &config)?)
                    }
                    None => Qkv::Plain(Linear::new(userbuffers, &linear)?),
                },
                core,
                proj: Linear::new(userbuffers, &config.proj())?,
                rng: rng.clone(),
            })
        })
    }

    /// Sizes and settings of the layer.
    pub fn config(&self) -> &MultiheadAttentionConfig {
        &self.config
    }

    /// Layers of its products, which know the shapes of their weights.
    pub fn linears(&self) -> [&Linear; 2] {
        let qkv = match &self.qkv {
            Qkv::Plain(linear) => linear,
            Qkv::Normed(layer) => layer.linear(),
        };
        [qkv, &self.proj]
    }

    /// Products of the layer, qkv's and then proj's.
    pub fn products(&self) -> Vec<Product> {
        let each = self.linears().map(Linear::products);
        each.into_iter().flatten().collect()
    }

    /// The shape of this rank's input and output in a call of so many rows over all ranks.
    pub fn shape(&self, rows: usize) -> [usize; 2] {
        self.linears()[0].input_shape(rows)
    }

    /// The heads of this rank in a call.
    fn heads(&self, [rows, batch]: [usize; 2]) -> Result<AttentionShape, Error> {
        if batch == 0 || !rows.is_multiple_of(batch) {
            return Err(Error::Usage {
                what: format!("{rows} rows of {batch} sequences"),
                legal: "give rows that are a multiple of the sequences".into(),
            });
        }
        let world = self.proj.rank().world() as usize;
        let MultiheadAttentionConfig {
            heads,
            groups,
            depth,
            causal,
            ..
        } = self.config;
        Ok(AttentionShape {
            positions: rows / batch,
            batch,
            heads: heads / world,
            groups: groups / world,
            depth,
            causal,
            scale: 1.0 / (depth as f32).sqrt(),
        })
    }

    /// Refuses a norm's weights where there is no norm, and none where there is one.
    fn normed<'a, T>(&self, gamma: Option<&'a T>) -> Result<Option<&'a T>, Error> {
        match (&self.qkv, gamma) {
            (Qkv::Normed(_), Some(_)) | (Qkv::Plain(_), None) => Ok(gamma),
            (_, given) => {
                let not = if given.is_some() { "" } else { "not " };
                Err(Error::Usage {
                    what: format!("γ is {not}given to attention"),
                    legal: "give it where `MultiheadAttentionConfig::norm` is set".into(),
                })
            }
        }
    }

    /// Enqueues `y` of this rank's shard of so many rows, which are positions of so many sequences.
    ///
    /// # Errors
    /// [`Error::Usage`] for rows that are no multiple of the sequences; as [`LayerNormLinear::forward`] and [`Linear::forward`].
    pub fn forward(
        &self,
        [rows, batch]: [usize; 2],
        x: &Tensor<bf16>,
        parameters: &MultiheadAttentionParameters<'_>,
        y: &mut Tensor<bf16>,
    ) -> Result<MultiheadAttentionSaved, Error> {
        let shape = self.heads([rows, batch])?;
        fits("y", y.shape(), self.shape(rows))?;
        let mut turned = self.linears()[0].lend_output(rows)?;
        let gamma = self.normed(parameters.layer_norm_weight)?;
        let linear = parameters.qkv;
        let qkv = match (&self.qkv, gamma) {
            (Qkv::Normed(layer), Some(layer_norm_weight)) => {
                let parameters = LayerNormLinearParameters {
                    layer_norm_weight,
                    layer_norm_bias: parameters.layer_norm_bias,
                    linear,
                };
                QkvSaved::Normed(layer.forward(rows, x, &parameters, &mut turned)?)
            }
            (Qkv::Normed(layer), None) => {
                QkvSaved::Plain(layer.linear().forward(rows, x, &linear, &mut turned)?)
            }
            (Qkv::Plain(layer), _) => {
                QkvSaved::Plain(layer.forward(rows, x, &linear, &mut turned)?)
            }
        };
        if let Some(rope) = &self.rope {
            rope.turn(&mut turned, [shape.heads + shape.groups, batch], false)?;
        }
        let mask = (self.config.dropout > 0.0).then(|| {
            let name = RngTracker::MODEL_PARALLEL;
            self.rng.draw(name, self.config.dropout)
        });
        let mask = mask.transpose()?;
        let mut out = self.proj.lend_input(rows)?;
        let mut logs = self.proj.lend_numbers(rows, shape.heads, false)?;
        let of = &shape;
        self.core
            .forward(of, &turned, mask.as_ref(), &mut out, &mut logs)?;
        let proj = self.proj.forward(rows, &out, &parameters.proj, y)?;
        Ok(MultiheadAttentionSaved {
            shape,
            qkv,
            turned,
            out,
            logs,
            mask,
            proj,
        })
    }

    /// Enqueues the gradient of the input into `dx`, and adds those of the weights to what the caller has.
    ///
    /// # Errors
    /// As [`LayerNormLinear::backward`] and [`Linear::backward`].
    pub fn backward<'a>(
        &self,
        saved: MultiheadAttentionSaved,
        parameters: &MultiheadAttentionParameters<'_>,
        dy: impl Into<OutputGradient<'a>>,
        dx: &mut Tensor<bf16>,
        gradients: MultiheadAttentionGradients<'_>,
    ) -> Result<(), Error> {
        self.backward_plus(saved, parameters, (dy.into(), None), dx, gradients)
    }

    /// Memory for the gradient of this rank's output, as [`Linear::gradient_place`].
    ///
    /// # Errors
    /// As [`Linear::gradient_place`].
    pub fn gradient_place(&self, rows: usize) -> Result<GradientPlace, Error> {
        self.proj.gradient_place(rows)
    }

    pub(crate) fn next_gradient(&self, rows: usize) -> Result<GradientPlace, Error> {
        self.proj.next_gradient(rows)
    }

    pub(crate) fn has_come(&self, place: &mut GradientPlace) {
        self.proj.has_come(place);
    }

    /// Backward pass where a layer with a norm adds `residual` to the gradient of the input.
    pub(crate) fn backward_plus(
        &self,
        saved: MultiheadAttentionSaved,
        parameters: &MultiheadAttentionParameters<'_>,
        (dy, residual): (OutputGradient<'_>, Option<&Tensor<bf16>>),
        dx: &mut Tensor<bf16>,
        gradients: MultiheadAttentionGradients<'_>,
    ) -> Result<(), Error> {
        let MultiheadAttentionSaved {
            shape,
            qkv,
            turned,
            out,
            logs,
            mask,
            proj,
        } = saved;
        let rows = proj.rows();
        let gamma = self.normed(parameters.layer_norm_weight)?;
        let of_gamma = gradients.layer_norm_weight;
        self.normed(of_gamma.as_deref())?;
        let mut of_out = self.proj.lend_input(rows)?;
        let (weights, to) = (&parameters.proj, &mut *of_out);
        self.proj.backward(proj, weights, dy, to, gradients.proj)?;
        let mut of_qkv = self.linears()[0].lend_output(rows)?;
        let both = [&*out, &*of_out];
        self.core
            .backward(&shape, &turned, mask.as_ref(), both, &logs, &mut of_qkv)?;
        if let Some(rope) = &self.rope {
            let heads = shape.heads + shape.groups;
            rope.turn(&mut of_qkv, [heads, shape.batch], true)?;
        }
        let linear = parameters.qkv;
        match (&self.qkv, qkv, gamma.zip(of_gamma)) {
            (Qkv::Normed(layer), QkvSaved::Normed(saved), Some((gamma, of_gamma))) => {
                let parameters = LayerNormLinearParameters {
                    layer_norm_weight: gamma,
                    layer_norm_bias: parameters.layer_norm_bias,
                    linear,
                };
                let gradients = LayerNormLinearGradients {
                    layer_norm_weight: of_gamma,
                    layer_norm_bias: gradients.layer_norm_bias,
                    linear: gradients.qkv,
                };
                layer.backward_plus(saved, &parameters, (&*of_qkv, residual), dx, gradients)
            }
            (Qkv::Plain(layer), QkvSaved::Plain(saved), _) => {
                layer.backward(saved, &linear, &*of_qkv, dx, gradients.qkv)
            }
            (Qkv::Normed(_) | Qkv::Plain(_), _, _) => Err(Error::Usage {
                what: "what another kind of layer has saved".into(),
                legal: "give what this layer's forward pass gave back".into(),
            }),
        }
    }
}
