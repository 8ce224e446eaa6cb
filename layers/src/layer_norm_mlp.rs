//! A normalisation, then two products with an activation between them.

use crate::fp8::{self, Cast, Recipe, Role};
use crate::layer_norm_linear::{
    LayerNormLinear, LayerNormLinearConfig, LayerNormLinearGradients, LayerNormLinearParameters,
    LayerNormLinearSaved,
};
use crate::linear::{
    self, GradientPlace, Gradients, Linear, LinearConfig, OutputGradient, Parameters, Place,
    Product, Saved, Source, fits,
};
use crate::overlap::Flags;
use crate::scratch::Lent;
use crate::side::twin::{Activation, Norm};
use crate::side::{CodedElementKernels, ElementKernels};
use crate::step::together;
use crate::userbuffers::Userbuffers;
use counterflow::op::Workspace;
use counterflow::prelude::bf16;
use counterflow::{Error, Tensor};

/// Sizes and settings of a [`LayerNormMlp`].
#[derive(Clone, PartialEq, Debug)]
pub struct LayerNormMlpConfig {
    /// Columns of input and output.
    pub hidden: usize,
    /// Columns between the products, over all ranks: a multiple of 8 times the ranks.
    pub ffn_hidden: usize,
    /// The normalisation of the input's rows.
    pub norm: Norm,
    /// Activation between the products. SwiGLU doubles the output features of the first.
    pub activation: Activation,
    /// True if both products add a bias.
    pub bias: bool,
    /// True for weights that get no gradient: that of fc1, that of fc2.
    pub frozen: [bool; 2],
    /// True if the gathered input of fc1 is kept for the backward pass, instead of gathered again.
    pub keep_gathered: bool,
    /// True if the backward pass makes the activation's output again, instead of keeping it.
    pub recompute_activation: bool,
    /// Recipe by which both products become FP8. `None`: they are of bf16.
    pub fp8: Option<Recipe>,
    /// Overlap in both products.
    pub flags: Flags,
    /// The names by which the configuration has the products.
    pub ub_names: [String; 2],
}

impl LayerNormMlpConfig {
    /// TransformerEngine's defaults: GELU, no flags, `fc1` and `fc2`; without a bias.
    pub fn new(hidden: usize, ffn_hidden: usize, norm: Norm) -> LayerNormMlpConfig {
        LayerNormMlpConfig {
            hidden,
            ffn_hidden,
            norm,
            activation: Activation::Gelu,
            bias: false,
            frozen: [false; 2],
            keep_gathered: false,
            recompute_activation: false,
            fp8: None,
            flags: Flags::default(),
            ub_names: ["fc1".into(), "fc2".into()],
        }
    }

    /// Of both products.
    pub(crate) fn linears(&self) -> [LinearConfig; 2] {
        [self.fc1(), self.fc2()]
    }

    fn fc1(&self) -> LinearConfig {
        LinearConfig {
            bias: self.bias,
            frozen: self.frozen[0],
            keep_gathered: self.keep_gathered,
            fp8: self.fp8,
            flags: self.flags,
            ub_name: Some(self.ub_names[0].clone()),
            ..LinearConfig::column(self.hidden, self.activation.inputs(self.ffn_hidden))
        }
    }

    fn fc2(&self) -> LinearConfig {
        LinearConfig {
            bias: self.bias,
            frozen: self.frozen[1],
            fp8: self.fp8,
            flags: self.flags,
            ub_name: Some(self.ub_names[1].clone()),
            ..LinearConfig::row(self.ffn_hidden, self.hidden)
        }
    }

    /// The memory of the layer's ops at most, as [`LinearConfig::workspace`].
    ///
    /// # Errors
    /// As [`LinearConfig::workspace`].
    pub fn workspace(&self, userbuffers: &Userbuffers) -> Result<Workspace, Error> {
        let each = [self.fc1(), self.fc2()].map(|linear| linear.workspace(userbuffers));
        let [fc1, fc2] = each;
        Ok(Workspace::together([fc1?, fc2?]))
    }
}

/// The weights of a [`LayerNormMlp`] on one rank, which the caller owns.
#[derive(Clone, Copy, Debug)]
pub struct LayerNormMlpParameters<'a> {
    /// Parameters of the normalisation and of the first product. With SwiGLU the rank's rows of the weight are those
    /// of the gate, then those of what it gates.
    pub fc1: LayerNormLinearParameters<'a>,
    /// Parameters of the second product.
    pub fc2: Parameters<'a>,
}

/// Tensors that gradients are added to, as in [`LayerNormLinearGradients`].
#[derive(Debug)]
pub struct LayerNormMlpGradients<'a> {
    /// Of the normalisation and of the first product.
    pub fc1: LayerNormLinearGradients<'a>,
    /// Of the second product.
    pub fc2: Gradients<'a>,
}

/// Tensors that a forward pass leaves for the backward pass.
#[derive(Debug)]
pub struct LayerNormMlpSaved {
    fc1: LayerNormLinearSaved,
    /// Input of the activation.
    before: Lent<bf16>,
    /// And what it gave, unless the backward pass makes it again.
    _after: Option<Lent<bf16>>,
    fc2: Saved,
}

/// `y = reduce_scatter(activation(all_gather(norm(x)) · w1ᵀ + b1) · w2ᵀ) + b2`: TransformerEngine's `LayerNormMLP`. Between layers each
/// rank has its shard of the rows.
///
/// ```
/// use counterflow::{Communicator, prelude::bf16};
/// use counterflow_layers::*;
/// use std::sync::Arc;
///
/// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
/// rank.reserve(8 << 20)?;
/// let userbuffers = Userbuffers::initialize(&rank, &Initialize::new([16, 32], 1))?;
/// let config = LayerNormMlpConfig { activation: Activation::SwiGlu, ..LayerNormMlpConfig::new(32, 64, Norm::new(Normalization::RmsNorm)) };
/// let mlp = LayerNormMlp::new(&userbuffers, &config)?;
/// let [fc1, fc2] = mlp.linears();
/// let (gamma, w1, w2) = (rank.zeros::<bf16>([1, 32])?, rank.zeros(fc1.weight_shape())?, rank.zeros(fc2.weight_shape())?);
/// let parameters = LayerNormMlpParameters {
///     fc1: LayerNormLinearParameters {
///         layer_norm_weight: &gamma,
///         layer_norm_bias: None,
///         linear: Parameters { weight: &w1, bias: None },
///     },
///     fc2: Parameters { weight: &w2, bias: None },
/// };
/// let (x, mut y) = (rank.zeros(mlp.shape(7))?, rank.zeros(mlp.shape(7))?);
/// let saved = mlp.forward(7, &x, &parameters, &mut y)?;
///
/// let (mut of_gamma, mut of_w1) = (rank.zeros::<f32>([1, 32])?, rank.zeros::<f32>(fc1.weight_shape())?);
/// let (mut of_w2, mut dx) = (rank.zeros::<f32>(fc2.weight_shape())?, rank.zeros(x.shape())?);
/// let gradients = LayerNormMlpGradients {
///     fc1: LayerNormLinearGradients {
///         layer_norm_weight: &mut of_gamma,
///         layer_norm_bias: None,
///         linear: Gradients { weight: Some(&mut of_w1), bias: None },
///     },
///     fc2: Gradients { weight: Some(&mut of_w2), bias: None },
/// };
/// mlp.backward(saved, &parameters, &y, &mut dx, gradients)?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Debug)]
pub struct LayerNormMlp {
    fc1: LayerNormLinear,
    fc2: Linear,
    elements: ElementKernels,
    coded: Coded,
    config: LayerNormMlpConfig,
}

/// Kernels by which an activation's results are codes at once, where nothing reads the elements.
#[derive(Debug, Default)]
struct Coded {
    /// Of the activation: of fc2's input.
    forward: Option<CodedElementKernels>,
    /// Of its gradient: of that of fc1's output.
    backward: Option<CodedElementKernels>,
}

impl Coded {
    fn new(userbuffers: &Userbuffers, config: &LayerNormMlpConfig) -> Result<Coded, Error> {
        let Some(recipe) = &config.fp8 else {
            return Ok(Coded::default());
        };
        let kernels = |role, needed: bool| match needed {
            true => userbuffers.coded_elements(recipe.quantiser(role).with_transposed()),
            false => Ok(None),
        };
        let [first, second] = config.frozen;
        Ok(Coded {
            // A frozen weight needs no codes along tokens.
            forward: kernels(Role::Input, !second)?,
            // A bias' gradient adds up the elements.
            backward: kernels(Role::Gradient, !first && !config.bias)?,
        })
    }
}

/// What the activation gives, or the gradient of what it is given, in so many rows and columns of its output.
struct Activated<'a> {
    layer: &'a LayerNormMlp,
    kernels: &'a CodedElementKernels,
    shape: [usize; 2],
    before: &'a Tensor<bf16>,
    /// The gradient of the output: then it is the gradient of the input that is made.
    of_after: Option<&'a Tensor<bf16>>,
}

impl Source for Activated<'_> {
    fn put(&self, to: Place<'_>) -> Result<(), Error> {
        let (activation, elements) = (self.layer.config.activation, &self.layer.elements);
        match self.of_after {
            None => elements.activation(activation, self.shape, self.before, to),
            Some(dy) => elements.activation_backward(activation, self.shape, [self.before, dy], to),
        }
    }

    fn tensor(&self) -> Option<&Tensor<bf16>> {
        None
    }

    fn put_both(
        &self,
        cast: &Cast,
        to: &mut fp8::Coded,
        turned: &mut fp8::Coded,
    ) -> Result<bool, Error> {
        let (activation, before) = (self.layer.config.activation, self.before);
        let (Some((mut codes, mut scale)), Some((mut turned, _))) = (to.apart(), turned.apart())
        else {
            return Ok(false);
        };
        let to = (&mut codes, &mut turned, &mut scale);
        cast.launch_made(|history| match self.of_after {
            None => (self.kernels).forward(activation, self.shape, before, to, history),
            Some(dy) => {
                let both = [before, dy];
                (self.kernels).backward(activation, self.shape, both, to, history)
            }
        })
    }
}

impl LayerNormMlp {
    /// Builds the layer's ops. Collective: every rank makes the same.
    ///
    /// # Errors
    /// As [`LayerNormLinear::new`] and [`Linear::new`].
    pub fn new(
        userbuffers: &Userbuffers,
        config: &LayerNormMlpConfig,
    ) -> Result<LayerNormMlp, Error> {
        let fc1 = LayerNormLinearConfig {
            norm: config.norm,
            linear: config.fc1(),
        };
        linear::ahead(userbuffers, config.linears());
        together(userbuffers.rank(), || {
            Ok(LayerNormMlp {
                fc1: LayerNormLinear::new(userbuffers, &fc1)?,
                fc2: Linear::new(userbuffers, &config.fc2())?,
                elements: userbuffers.elements()?,
                coded: Coded::new(userbuffers, config)?,
                config: config.clone(),
            })
        })
    }

    /// Sizes and settings of the layer.
    pub fn config(&self) -> &LayerNormMlpConfig {
        &self.config
    }

    /// Layers of its products, which know the shapes of their weights.
    pub fn linears(&self) -> [&Linear; 2] {
        [self.fc1.linear(), &self.fc2]
    }

    /// Products of the layer, fc1's and then fc2's.
    pub fn products(&self) -> Vec<Product> {
        let each = self.linears().map(Linear::products);
        each.into_iter().flatten().collect()
    }

    /// The shape of this rank's input and output in a call of so many rows over all ranks.
    pub fn shape(&self, rows: usize) -> [usize; 2] {
        self.fc1.linear().input_shape(rows)
    }

    /// Rows and columns of the activation's output.
    fn between(&self, rows: usize) -> [usize; 2] {
        self.fc2.input_shape(rows)
    }

    fn activated(&self, rows: usize, before: &Tensor<bf16>) -> Result<Lent<bf16>, Error> {
        let shape = self.between(rows);
        let mut after = self.fc2.lend_input(rows)?;
        let activation = self.config.activation;
        self.elements
            .activation(activation, shape, before, &mut *after)?;
        Ok(after)
    }

    /// Enqueues `y` of this rank's shard of so many rows.
    ///
    /// # Errors
    /// As [`LayerNormLinear::forward`] and [`Linear::forward`].
    pub fn forward(
        &self,
        rows: usize,
        x: &Tensor<bf16>,
        parameters: &LayerNormMlpParameters<'_>,
        y: &mut Tensor<bf16>,
    ) -> Result<LayerNormMlpSaved, Error> {
        fits("y", y.shape(), self.shape(rows))?;
        let mut before = self.fc1.linear().lend_output(rows)?;
        let fc1 = self.fc1.forward(rows, x, &parameters.fc1, &mut before)?;
        if let Some(kernels) = &self.coded.forward {
            let after = Activated {
                layer: self,
                kernels,
                shape: self.between(rows),
                before: &before,
                of_after: None,
            };
            let fc2 = self.fc2.forward_of(rows, &after, &parameters.fc2, y)?;
            return Ok(LayerNormMlpSaved {
                fc1,
                before,
                _after: None,
                fc2,
            });
        }
        let after = self.activated(rows, &before)?;
        let mut fc2 = self.fc2.forward(rows, &after, &parameters.fc2, y)?;
        let unread = self.config.frozen[1] || fc2.has_codes();
        let again = self.config.recompute_activation || unread;
        if again {
            fc2.forget_input();
        }
        Ok(LayerNormMlpSaved {
            fc1,
            before,
            _after: (!again).then_some(after),
            fc2,
        })
    }

    /// Enqueues the gradient of the input into `dx`, and adds those of the weights to what the caller has.
    ///
    /// # Errors
    /// As [`LayerNormLinear::backward`] and [`Linear::backward`].
    pub fn backward<'a>(
        &self,
        saved: LayerNormMlpSaved,
        parameters: &LayerNormMlpParameters<'_>,
        dy: impl Into<OutputGradient<'a>>,
        dx: &mut Tensor<bf16>,
        gradients: LayerNormMlpGradients<'_>,
    ) -> Result<(), Error> {
        self.backward_plus(saved, parameters, (dy.into(), None), dx, gradients)
    }

    /// Memory for the gradient of this rank's output, as [`Linear::gradient_place`].
    ///
    /// # Errors
    /// As [`Linear::gradient_place`].
    pub fn gradient_place(&self, rows: usize) -> Result<GradientPlace, Error> {
        self.fc2.gradient_place(rows)
    }

    /// Backward pass where `residual` is added to the gradient of the input.
    pub(crate) fn backward_plus(
        &self,
        saved: LayerNormMlpSaved,
        parameters: &LayerNormMlpParameters<'_>,
        (dy, residual): (OutputGradient<'_>, Option<&Tensor<bf16>>),
        dx: &mut Tensor<bf16>,
        gradients: LayerNormMlpGradients<'_>,
    ) -> Result<(), Error> {
        let LayerNormMlpSaved {
            fc1,
            before,
            _after,
            fc2,
        } = saved;
        let rows = fc2.rows();
        let after = match fc2.input() {
            Some(after) => after.clone().into(),
            // Nothing reads what a frozen weight is multiplied by, or what there are codes of.
            None if self.config.frozen[1] || fc2.has_codes() => before.clone().into(),
            None => self.activated(rows, &before)?,
        };
        let mut of_after = self.fc2.lend_input(rows)?;
        let to = &mut *of_after;
        self.fc2
            .backward_of((&fc2, &*after), &parameters.fc2, &dy, to, gradients.fc2)?;
        if let Some(kernels) = &self.coded.backward {
            let of_before = Activated {
                layer: self,
                kernels,
                shape: self.between(rows),
                before: &before,
                of_after: Some(&of_after),
            };
            let of_fc1 = (&of_before as &dyn Source, residual);
            let gradients = gradients.fc1;
            return (self.fc1).backward_plus(fc1, &parameters.fc1, of_fc1, dx, gradients);
        }
        let mut of_before = self.fc1.linear().lend_output(rows)?;
        let both = [&*before, &*of_after];
        let (activation, shape) = (self.config.activation, self.between(rows));
        self.elements
            .activation_backward(activation, shape, both, &mut *of_before)?;
        let of_fc1 = (&*of_before as &dyn Source, residual);
        self.fc1
            .backward_plus(fc1, &parameters.fc1, of_fc1, dx, gradients.fc1)
    }
}
