//! A normalisation before a column-parallel layer.

use crate::linear::{Gradients, Linear, LinearConfig, Parameters, Saved, fits};
use crate::norm::{Norm, Normalization, Statistics};
use crate::overlap::Parallel;
use crate::userbuffers::Userbuffers;
use counterflow::prelude::bf16;
use counterflow::{Error, Tensor};

/// What a [`LayerNormLinear`] is.
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
    /// Those of the layer behind it.
    pub linear: Parameters<'a>,
}

/// Where gradients are added. Those of the normalisation are sums over this rank's rows: sum them over the ranks of the group
/// before the optimizer's step, as Megatron does with parameters that are marked `sequence_parallel`.
#[derive(Debug)]
pub struct LayerNormLinearGradients<'a> {
    /// Of γ.
    pub layer_norm_weight: &'a mut Tensor<f32>,
    /// Of β, where there is one.
    pub layer_norm_bias: Option<&'a mut Tensor<f32>>,
    /// Of the layer behind it.
    pub linear: Gradients<'a>,
}

/// What a forward pass leaves for the backward pass, with handles of the input and of its normalised rows.
#[derive(Debug)]
pub struct LayerNormLinearSaved {
    input: Tensor<bf16>,
    statistics: Vec<Statistics>,
    linear: Saved,
}

/// `y = all_gather(norm(x)) · wᵀ + b`: each rank normalises its rows, then as [`Linear`].
///
/// On emulated ranks alone: the normalisation runs on the host, in the order of the rank's stream, and each pass waits for what the
/// stream had before.
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
    norm: Norm,
    linear: Linear,
}

impl LayerNormLinear {
    /// Builds the layer's ops. Collective: every rank makes the same.
    ///
    /// # Errors
    /// [`Error::Usage`] for a row-parallel layer, whose input no rank has whole rows of; [`Error::NotYet`] on GPUs; as
    /// [`Linear::new`].
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
        if !userbuffers.rank().gpu().is_emulated() {
            return Err(Error::NotYet {
                what: "a normalisation on GPUs".into(),
                help: "normalise by a kernel of yours, then call `Linear`".into(),
            });
        }
        Ok(LayerNormLinear {
            norm: config.norm,
            linear: Linear::new(userbuffers, &config.linear)?,
        })
    }

    /// The layer behind the normalisation, which knows all shapes.
    pub fn linear(&self) -> &Linear {
        &self.linear
    }

    fn columns(&self) -> usize {
        self.linear.config().in_features
    }

    fn checks(&self, parameters: &LayerNormLinearParameters<'_>) -> Result<(), Error> {
        let row = [1, self.columns()];
        fits("γ", parameters.layer_norm_weight.shape(), row)?;
        match (parameters.layer_norm_bias, self.norm.kind) {
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
    /// As [`Linear::forward`]; why the communicator ended, if it has.
    pub fn forward(
        &self,
        rows: usize,
        x: &Tensor<bf16>,
        parameters: &LayerNormLinearParameters<'_>,
        y: &mut Tensor<bf16>,
    ) -> Result<LayerNormLinearSaved, Error> {
        self.checks(parameters)?;
        fits("x", x.shape(), self.linear.input_shape(rows))?;
        let gamma = parameters.layer_norm_weight.read()?;
        let beta = parameters.layer_norm_bias.map(Tensor::read).transpose()?;
        let affine = (&gamma[..], beta.as_deref());
        let given = x.read()?;
        let mut normed = vec![bf16::ZERO; given.len()];
        let each = given.chunks_exact(self.columns());
        let each = each.zip(normed.chunks_exact_mut(self.columns()));
        let statistics = each.map(|(x, y)| self.norm.forward(x, affine, y)).collect();
        let input = self.linear.rank().zeros(x.shape())?;
        input.write(&normed)?;
        Ok(LayerNormLinearSaved {
            linear: self.linear.forward(rows, &input, &parameters.linear, y)?,
            input: x.clone(),
            statistics,
        })
    }

    /// As [`Linear::backward`], with the gradients of the normalisation.
    ///
    /// # Errors
    /// As [`Linear::backward`]; why the communicator ended, if it has.
    pub fn backward(
        &self,
        saved: LayerNormLinearSaved,
        parameters: &LayerNormLinearParameters<'_>,
        dy: &Tensor<bf16>,
        dx: &mut Tensor<bf16>,
        gradients: LayerNormLinearGradients<'_>,
    ) -> Result<(), Error> {
        self.checks(parameters)?;
        let row = [1, self.columns()];
        let (of_gamma, of_beta) = (gradients.layer_norm_weight, gradients.layer_norm_bias);
        fits("the gradient of γ", of_gamma.shape(), row)?;
        if let Some(of_beta) = &of_beta {
            fits("the gradient of β", of_beta.shape(), row)?;
        }
        let linear = &parameters.linear;
        self.linear
            .backward(saved.linear, linear, dy, dx, gradients.linear)?;
        let (x, of_normed) = (saved.input.read()?, dx.read()?);
        let gamma = parameters.layer_norm_weight.read()?;
        let mut gammas = of_gamma.read()?;
        let mut betas = of_beta.as_ref().map(|beta| beta.read()).transpose()?;
        let mut all = vec![bf16::ZERO; x.len()];
        let columns = self.columns();
        for (at, statistics) in saved.statistics.into_iter().enumerate() {
            let row = at * columns..(at + 1) * columns;
            self.norm.backward(
                &x[row.clone()],
                &of_normed[row.clone()],
                (&gamma, statistics),
                &mut all[row],
                (&mut gammas, betas.as_deref_mut()),
            );
        }
        dx.write(&all)?;
        of_gamma.write(&gammas)?;
        match of_beta.zip(betas) {
            Some((beta, values)) => beta.write(&values),
            None => Ok(()),
        }
    }
}
