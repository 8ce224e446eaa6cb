//! A layer of a transformer.

use crate::attention::{
    CoreAttention, MultiheadAttention, MultiheadAttentionConfig, MultiheadAttentionGradients,
    MultiheadAttentionParameters, MultiheadAttentionSaved,
};
use crate::fp8::Recipe;
use crate::layer_norm_mlp::{
    LayerNormMlp, LayerNormMlpConfig, LayerNormMlpGradients, LayerNormMlpParameters,
    LayerNormMlpSaved,
};
use crate::linear::{self, GradientPlace, OutputGradient, Product};
use crate::overlap::ModuleFlags;
use crate::random::{RngTracker, is_part};
use crate::scratch::Lent;
#[cfg(doc)]
use crate::side::AttentionKernels;
use crate::side::ElementKernels;
use crate::side::twin::{Mask, Norm};
use crate::step::together;
use crate::userbuffers::Userbuffers;
use counterflow::op::Workspace;
use counterflow::prelude::bf16;
use counterflow::{Error, Tensor};
use std::sync::Arc;

/// Sizes and settings of a [`TransformerLayer`]. Flags and recipes of attention and MLP, and their norms, are set by the
/// layer.
#[derive(Clone, PartialEq, Debug)]
pub struct TransformerLayerConfig {
    /// The attention, whose input is normalised.
    pub attention: MultiheadAttentionConfig,
    /// The MLP.
    pub mlp: LayerNormMlpConfig,
    /// The part of what attention and MLP give that is dropped before it is added. Its masks come from [`RngTracker::DEFAULT`], and are
    /// the same whatever the number of ranks.
    pub hidden_dropout: f32,
    /// Recipe by which all products become FP8. `None`: they are of bf16.
    pub fp8: Option<Recipe>,
    /// Overlap in all products.
    pub flags: ModuleFlags,
}

impl TransformerLayerConfig {
    /// TransformerEngine's defaults, with a norm for both parts, and no dropout.
    pub fn new(
        hidden: usize,
        ffn_hidden: usize,
        heads: usize,
        norm: Norm,
    ) -> TransformerLayerConfig {
        TransformerLayerConfig {
            attention: MultiheadAttentionConfig {
                norm: Some(norm),
                ..MultiheadAttentionConfig::new(hidden, heads)
            },
            mlp: LayerNormMlpConfig::new(hidden, ffn_hidden, norm),
            hidden_dropout: 0.0,
            fp8: None,
            flags: ModuleFlags::default(),
        }
    }

    /// The parts with the layer's flags.
    fn parts(&self) -> Result<(MultiheadAttentionConfig, LayerNormMlpConfig), Error> {
        is_part(self.hidden_dropout)?;
        let flags = self.flags.flags();
        let attention = MultiheadAttentionConfig {
            flags,
            fp8: self.fp8,
            ..self.attention.clone()
        };
        let mlp = LayerNormMlpConfig {
            flags,
            fp8: self.fp8,
            ..self.mlp.clone()
        };
        if attention.norm.is_none() || attention.hidden != mlp.hidden {
            return Err(Error::Usage {
                what: format!(
                    "attention of {} columns {} a norm before an MLP of {}",
                    attention.hidden,
                    if attention.norm.is_some() {
                        "with"
                    } else {
                        "without"
                    },
                    mlp.hidden
                ),
                legal: "give both the same columns, and attention a norm".into(),
            });
        }
        Ok((attention, mlp))
    }

    /// The memory of the layer's ops at most, as [`LinearConfig::workspace`](crate::LinearConfig::workspace).
    ///
    /// # Errors
    /// As [`LinearConfig::workspace`](crate::LinearConfig::workspace).
    pub fn workspace(&self, userbuffers: &Userbuffers) -> Result<Workspace, Error> {
        let (attention, mlp) = self.parts()?;
        let each = [
            attention.workspace(userbuffers)?,
            mlp.workspace(userbuffers)?,
        ];
        Ok(Workspace::together(each))
    }
}

/// The weights of a [`TransformerLayer`] on one rank, which the caller owns.
#[derive(Clone, Copy, Debug)]
pub struct TransformerLayerParameters<'a> {
    /// Of the attention.
    pub attention: MultiheadAttentionParameters<'a>,
    /// Of the MLP.
    pub mlp: LayerNormMlpParameters<'a>,
}

/// Tensors that gradients are added to.
#[derive(Debug)]
pub struct TransformerLayerGradients<'a> {
    /// Of the attention.
    pub attention: MultiheadAttentionGradients<'a>,
    /// Of the MLP.
    pub mlp: LayerNormMlpGradients<'a>,
}

/// Tensors that a forward pass leaves for the backward pass.
#[derive(Debug)]
pub struct TransformerLayerSaved {
    rows: usize,
    attention: MultiheadAttentionSaved,
    /// The MLP's input.
    _middle: Lent<bf16>,
    mlp: LayerNormMlpSaved,
    masks: [Option<Mask>; 2],
}

/// `m = x + dropout(attention(norm(x)))`, `y = m + dropout(mlp(norm(m)))`: TransformerEngine's `TransformerLayer`. Between layers each rank
/// has its shard of the rows.
///
/// To make a forward pass again instead of keeping what it saved: hold [`RngTracker::states`] before the first one, drop what it gave
/// back, [`RngTracker::restore`] them, call it again, and give what it gives back to the backward pass. It overlaps as the first one did.
#[derive(Debug)]
pub struct TransformerLayer {
    config: TransformerLayerConfig,
    attention: MultiheadAttention,
    mlp: LayerNormMlp,
    elements: ElementKernels,
    userbuffers: Userbuffers,
    rng: Arc<RngTracker>,
}

impl TransformerLayer {
    /// Builds the layer's ops, with attention by [`AttentionKernels`]. Collective: every rank makes the same.
    ///
    /// # Errors
    /// As [`MultiheadAttention::new`] and [`LayerNormMlp::new`].
    pub fn new(
        userbuffers: &Userbuffers,
        config: &TransformerLayerConfig,
        rng: &Arc<RngTracker>,
    ) -> Result<TransformerLayer, Error> {
        let core = Arc::new(together(userbuffers.rank(), || userbuffers.attention())?);
        TransformerLayer::with_core(userbuffers, config, rng, core)
    }

    /// Makes the layer with attention of the caller's.
    ///
    /// # Errors
    /// As [`TransformerLayer::new`].
    pub fn with_core(
        userbuffers: &Userbuffers,
        config: &TransformerLayerConfig,
        rng: &Arc<RngTracker>,
        core: Arc<dyn CoreAttention>,
    ) -> Result<TransformerLayer, Error> {
        let (attention, mlp) = config.parts()?;
        let [[qkv, proj], [fc1, fc2]] = [attention.linears(), mlp.linears()];
        linear::ahead(userbuffers, [qkv, proj, fc1, fc2]);
        together(userbuffers.rank(), || {
            Ok(TransformerLayer {
                config: config.clone(),
                attention: MultiheadAttention::with_core(userbuffers, &attention, rng, core)?,
                mlp: LayerNormMlp::new(userbuffers, &mlp)?,
                elements: userbuffers.elements()?,
                userbuffers: userbuffers.clone(),
                rng: rng.clone(),
            })
        })
    }

    /// Sizes and settings of the layer.
    pub fn config(&self) -> &TransformerLayerConfig {
        &self.config
    }

    /// Attention of the layer.
    pub fn attention(&self) -> &MultiheadAttention {
        &self.attention
    }

    /// MLP of the layer.
    pub fn mlp(&self) -> &LayerNormMlp {
        &self.mlp
    }

    /// Products of the layer: those of qkv, proj, fc1 and fc2.
    pub fn products(&self) -> Vec<Product> {
        let mlp = self.mlp.products();
        self.attention.products().into_iter().chain(mlp).collect()
    }

    /// The shape of this rank's input and output in a call of so many rows over all ranks.
    pub fn shape(&self, rows: usize) -> [usize; 2] {
        self.mlp.shape(rows)
    }

    /// Memory of a call for its rows on this rank.
    fn lend(&self, rows: usize) -> Result<Lent<bf16>, Error> {
        self.mlp.linears()[0].lend_input(rows)
    }

    /// The number of this rank's first element among those of all ranks.
    fn first(&self, rows: usize) -> u64 {
        let rank = self.userbuffers.rank();
        let first = rank.shard(rank.rank(), rows).start;
        (first * self.config.mlp.hidden) as u64
    }

    /// x + dropout(of), with a mask that is drawn.
    fn added(
        &self,
        rows: usize,
        [x, of]: [&Tensor<bf16>; 2],
        y: &mut Tensor<bf16>,
    ) -> Result<Option<Mask>, Error> {
        let mask = (self.config.hidden_dropout > 0.0).then(|| {
            let dropped = self.config.hidden_dropout;
            self.rng.draw(RngTracker::DEFAULT, dropped)
        });
        let mask = mask.transpose()?;
        let from = mask.as_ref().map(|mask| (mask, self.first(rows)));
        self.elements.dropout_add(of, x, from, y)?;
        Ok(mask)
    }

    /// The gradient of what was dropped, written to where it is gathered.
    fn dropped(
        &self,
        rows: usize,
        (mask, dy): (&Mask, &Tensor<bf16>),
        mut place: GradientPlace,
    ) -> Result<GradientPlace, Error> {
        let mask = (mask, self.first(rows));
        self.elements.dropout(dy, mask, &mut place)?;
        Ok(place)
    }

    /// Enqueues `y` of this rank's shard of so many rows, which are positions of so many sequences.
    ///
    /// # Errors
    /// As [`MultiheadAttention::forward`] and [`LayerNormMlp::forward`].
    pub fn forward(
        &self,
        [rows, batch]: [usize; 2],
        x: &Tensor<bf16>,
        parameters: &TransformerLayerParameters<'_>,
        y: &mut Tensor<bf16>,
    ) -> Result<TransformerLayerSaved, Error> {
        let (mut of, mut middle) = (self.lend(rows)?, self.lend(rows)?);
        let weights = &parameters.attention;
        let attention = self.attention.forward([rows, batch], x, weights, &mut of)?;
        let first = self.added(rows, [x, &of], &mut middle)?;
        let mlp = self.mlp.forward(rows, &middle, &parameters.mlp, &mut of)?;
        let second = self.added(rows, [&middle, &of], y)?;
        Ok(TransformerLayerSaved {
            rows,
            attention,
            _middle: middle,
            mlp,
            masks: [first, second],
        })
    }

    /// Enqueues the gradient of the input into `dx`, and adds those of the weights to what the caller has.
    ///
    /// # Errors
    /// As [`MultiheadAttention::backward`] and [`LayerNormMlp::backward`].
    pub fn backward(
        &self,
        saved: TransformerLayerSaved,
        parameters: &TransformerLayerParameters<'_>,
        dy: &Tensor<bf16>,
        dx: &mut Tensor<bf16>,
        gradients: TransformerLayerGradients<'_>,
    ) -> Result<(), Error> {
        self.backward_by_parts(saved, parameters, dy, dx, gradients, || Ok(()))
    }

    /// As [`TransformerLayer::backward`], and calls `mlp_is_done` once all of the MLP's gradients are enqueued, before anything of
    /// attention's: what communicates them, behind an event of this rank's stream, may run beside the rest.
    ///
    /// # Errors
    /// As [`TransformerLayer::backward`], and what `mlp_is_done` gives.
    pub fn backward_by_parts(
        &self,
        saved: TransformerLayerSaved,
        parameters: &TransformerLayerParameters<'_>,
        dy: &Tensor<bf16>,
        dx: &mut Tensor<bf16>,
        gradients: TransformerLayerGradients<'_>,
        mlp_is_done: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let rows = saved.rows;
        let [first, second] = saved.masks;
        let of_mlp = second.map(|mask| {
            let place = self.mlp.gradient_place(rows)?;
            self.dropped(rows, (&mask, dy), place)
        });
        let of_mlp = of_mlp.transpose()?;
        let of_mlp = of_mlp.as_ref().map_or(dy.into(), OutputGradient::from);
        // Attention's product gathers its gradient from the same buffer as the MLP, which is free again after the MLP's backward pass.
        let mut of_middle = match first {
            None => self.attention.next_gradient(rows)?,
            Some(_) => GradientPlace::of(self.lend(rows)?),
        };
        let (weights, of) = (&parameters.mlp, (of_mlp, Some(dy)));
        self.mlp
            .backward_plus(saved.mlp, weights, of, &mut of_middle, gradients.mlp)?;
        mlp_is_done()?;
        let of_attention = match first {
            None => {
                self.attention.has_come(&mut of_middle);
                None
            }
            Some(mask) => {
                let place = self.attention.gradient_place(rows)?;
                Some(self.dropped(rows, (&mask, &of_middle), place)?)
            }
        };
        let of = of_attention.as_ref().unwrap_or(&of_middle);
        let of = (of.into(), Some(&*of_middle));
        let weights = &parameters.attention;
        self.attention
            .backward_plus(saved.attention, weights, of, dx, gradients.attention)
    }
}
