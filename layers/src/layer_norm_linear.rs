//! A normalisation before a column-parallel layer.

use crate::fp8::{Cast, Coded, Role};
use crate::linear::{Gradients, Linear, LinearConfig, Parameters, Place, Saved, Source, fits};
use crate::overlap::Parallel;
use crate::scratch::Lent;
use crate::side::twin::{Norm, Normalization};
use crate::side::{CodedNormKernels, NormKernels};
use crate::step::together;
use crate::userbuffers::Userbuffers;
use counterflow::prelude::{bf16, e4m3};
use counterflow::{Error, Tensor};

/// Sizes and settings of a [`LayerNormLinear`].
#[derive(Clone, PartialEq, Debug)]
pub struct LayerNormLinearConfig {
    /// The normalisation of the input's rows.
    pub norm: Norm,
    /// The layer behind it: column-parallel.
    pub linear: LinearConfig,
}

/// The weights of a [`LayerNormLinear`] on one rank, which the caller owns. Those of the normalisation are the same on every rank.
#[derive(Clone, Copy, Debug)]
pub struct LayerNormLinearParameters<'a> {
    /// γ, one row.
    pub layer_norm_weight: &'a Tensor<bf16>,
    /// β, one row: of a LayerNorm, and of no RMSNorm.
    pub layer_norm_bias: Option<&'a Tensor<bf16>>,
    /// Parameters of the layer behind it.
    pub linear: Parameters<'a>,
}

/// Tensors that gradients are added to. Those of the normalisation are sums over this rank's rows: sum them over the
/// ranks of the group before the optimizer's step, as Megatron does with parameters that are marked
/// `sequence_parallel`.
#[derive(Debug)]
pub struct LayerNormLinearGradients<'a> {
    /// Of γ.
    pub layer_norm_weight: &'a mut Tensor<f32>,
    /// Of β, where there is one.
    pub layer_norm_bias: Option<&'a mut Tensor<f32>>,
    /// Of the layer behind it.
    pub linear: Gradients<'a>,
}

/// Tensors that a forward pass leaves for the backward pass, with a handle of the input. Normalised rows are not
/// kept: the backward pass makes them again.
#[derive(Debug)]
pub struct LayerNormLinearSaved {
    input: Tensor<bf16>,
    /// Two numbers for each row.
    statistics: Lent<f32>,
    linear: Saved,
}

/// `y = all_gather(norm(x)) · wᵀ + b`: each rank normalises its rows, straight into the buffer that they are gathered in, as codes where
/// an FP8 recipe allows it in one kernel, then as [`Linear`].
///
/// ```
/// use counterflow::{Communicator, prelude::bf16};
/// use counterflow_layers::*;
/// use std::sync::Arc;
///
/// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
/// rank.reserve(4 << 20)?;
/// let userbuffers = Userbuffers::initialize(&rank, &Initialize::new([16, 32], 1))?;
/// let qkv = LayerNormLinearConfig { norm: Norm::new(Normalization::RmsNorm), linear: LinearConfig::column(32, 64) };
/// let qkv = LayerNormLinear::new(&userbuffers, &qkv)?;
/// let (gamma, weight) = (rank.zeros::<bf16>([1, 32])?, rank.zeros(qkv.linear().weight_shape())?);
/// let parameters = LayerNormLinearParameters {
///     layer_norm_weight: &gamma,
///     layer_norm_bias: None,
///     linear: Parameters { weight: &weight, bias: None },
/// };
/// let (x, mut y) = (rank.zeros(qkv.linear().input_shape(7))?, rank.zeros(qkv.linear().output_shape(7))?);
/// let saved = qkv.forward(7, &x, &parameters, &mut y)?;
///
/// let (mut of_gamma, mut of_weight) = (rank.zeros::<f32>([1, 32])?, rank.zeros::<f32>([64, 32])?);
/// let gradients = LayerNormLinearGradients {
///     layer_norm_weight: &mut of_gamma,
///     layer_norm_bias: None,
///     linear: Gradients { weight: Some(&mut of_weight), bias: None },
/// };
/// let mut dx = rank.zeros(x.shape())?;
/// qkv.backward(saved, &parameters, &y, &mut dx, gradients)?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Debug)]
pub struct LayerNormLinear {
    norm: NormKernels,
    /// Of FP8, where the recipe's scales need no amax of other rows.
    coded: Option<CodedNormKernels>,
    linear: Linear,
}

/// Normalised rows, which a kernel writes where they are wanted.
struct Normed<'a> {
    norm: &'a NormKernels,
    coded: Option<&'a CodedNormKernels>,
    x: &'a Tensor<bf16>,
    statistics: &'a Tensor<f32>,
    parameters: LayerNormLinearParameters<'a>,
}

impl Source for Normed<'_> {
    fn put(&self, to: Place<'_>) -> Result<(), Error> {
        let LayerNormLinearParameters {
            layer_norm_weight: gamma,
            layer_norm_bias: beta,
            ..
        } = self.parameters;
        let mut statistics = self.statistics.clone();
        let affine = (gamma, beta);
        let x = self.x;
        self.norm.forward(x.shape(), x, affine, to, &mut statistics)
    }

    fn tensor(&self) -> Option<&Tensor<bf16>> {
        None
    }

    fn put_codes(
        &self,
        cast: &Cast,
        to: &mut Coded,
        kept: Option<&mut Tensor<e4m3>>,
    ) -> Result<bool, Error> {
        let Some(kernels) = self.coded else {
            return Ok(false);
        };
        let LayerNormLinearParameters {
            layer_norm_weight: gamma,
            layer_norm_bias: beta,
            ..
        } = self.parameters;
        let rows = (self.x, (gamma, beta));
        cast.launch_normed(kernels, rows, (to, kept), &mut self.statistics.clone())
    }
}

impl LayerNormLinear {
    /// Builds the layer's ops. Collective: every rank makes the same.
    ///
    /// # Errors
    /// [`Error::Usage`] for a row-parallel layer, whose input no rank has whole rows of; [`Error::Toolkit`] on a GPU without a compiler;
    /// as [`Linear::new`].
    pub fn new(
        userbuffers: &Userbuffers,
        config: &LayerNormLinearConfig,
    ) -> Result<LayerNormLinear, Error> {
        if config.linear.parallel == Parallel::Row {
            return Err(Error::Usage {
                what: "a normalisation before a row-parallel layer".into(),
                legal: "use `Linear`: no rank has whole rows of such a layer's input".into(),
            });
        }
        together(userbuffers.rank(), || {
            Ok(LayerNormLinear {
                norm: userbuffers.norm(config.norm)?,
                coded: match &config.linear.fp8 {
                    Some(recipe) => {
                        userbuffers.coded_norm(config.norm, recipe.quantiser(Role::Input))?
                    }
                    None => None,
                },
                linear: Linear::new(userbuffers, &config.linear)?,
            })
        })
    }

    /// The layer behind the normalisation, which knows all shapes.
    pub fn linear(&self) -> &Linear {
        &self.linear
    }

    fn checks(&self, parameters: &LayerNormLinearParameters<'_>) -> Result<(), Error> {
        let row = [1, self.linear.config().in_features];
        fits("γ", parameters.layer_norm_weight.shape(), row)?;
        match (parameters.layer_norm_bias, self.norm.norm().kind) {
            (Some(beta), Normalization::LayerNorm) => fits("β", beta.shape(), row),
            (None, Normalization::RmsNorm) => Ok(()),
            (given, kind) => {
                let not = if given.is_some() { "" } else { "not " };
                Err(Error::Usage {
                    what: format!("β is {not}given to {kind:?}"),
                    legal: "give β to LayerNorm, and to nothing else".into(),
                })
            }
        }
    }

    /// As [`Linear::forward`], of rows that are normalised first.
    ///
    /// # Errors
    /// As [`Linear::forward`].
    pub fn forward(
        &self,
        rows: usize,
        x: &Tensor<bf16>,
        parameters: &LayerNormLinearParameters<'_>,
        y: &mut Tensor<bf16>,
    ) -> Result<LayerNormLinearSaved, Error> {
        self.checks(parameters)?;
        fits("x", x.shape(), self.linear.input_shape(rows))?;
        let statistics = self.linear.lend_numbers(x.shape()[0].max(1), 2, true)?;
        let normed = Normed {
            norm: &self.norm,
            coded: self.coded.as_ref(),
            x,
            statistics: &statistics,
            parameters: *parameters,
        };
        let linear = &parameters.linear;
        Ok(LayerNormLinearSaved {
            linear: self.linear.forward_of(rows, &normed, linear, y)?,
            input: x.clone(),
            statistics,
        })
    }

    /// As [`Linear::backward`], with the gradients of the normalisation.
    ///
    /// # Errors
    /// As [`Linear::backward`].
    pub fn backward(
        &self,
        saved: LayerNormLinearSaved,
        parameters: &LayerNormLinearParameters<'_>,
        dy: &Tensor<bf16>,
        dx: &mut Tensor<bf16>,
        gradients: LayerNormLinearGradients<'_>,
    ) -> Result<(), Error> {
        self.backward_plus(saved, parameters, (dy, None), dx, gradients)
    }

    /// Backward pass where `residual` is added to the gradient of the input.
    pub(crate) fn backward_plus(
        &self,
        saved: LayerNormLinearSaved,
        parameters: &LayerNormLinearParameters<'_>,
        (dy, residual): (&dyn Source, Option<&Tensor<bf16>>),
        dx: &mut Tensor<bf16>,
        gradients: LayerNormLinearGradients<'_>,
    ) -> Result<(), Error> {
        self.checks(parameters)?;
        let row = [1, self.linear.config().in_features];
        let (of_gamma, of_beta) = (gradients.layer_norm_weight, gradients.layer_norm_bias);
        fits("the gradient of γ", of_gamma.shape(), row)?;
        if let Some(of_beta) = &of_beta {
            fits("the gradient of β", of_beta.shape(), row)?;
        }
        let x = &saved.input;
        fits("dx", dx.shape(), x.shape())?;
        let normed = Normed {
            norm: &self.norm,
            coded: self.coded.as_ref(),
            x,
            statistics: &saved.statistics,
            parameters: *parameters,
        };
        let (shape, of) = (x.shape(), &*saved.statistics);
        let gamma = (parameters.layer_norm_weight, of);
        let of_norm = |dy: &Tensor<bf16>| {
            let to = (of_gamma, of_beta);
            self.norm.backward(shape, (x, dy), gamma, residual, dx, to)
        };
        let (of, linear) = ((&saved.linear, &normed as &dyn Source), &parameters.linear);
        self.linear
            .backward_read(of, linear, dy, gradients.linear, of_norm)
    }
}
