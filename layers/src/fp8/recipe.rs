//! Recipes of FP8, as TransformerEngine's users know them.

use counterflow::quantise::{Delayed, Granularity, Pick, Scaling};
use counterflow::rule::{Fp8, ScaleRule};
use counterflow::{Dtype, Error, Scales};

/// The types of codes: TransformerEngine's `Format`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Format {
    /// e4m3 everywhere.
    E4M3,
    /// e4m3 in the forward pass, e5m2 for gradients.
    #[default]
    Hybrid,
}

/// The amax of a history that makes the scale.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum AmaxComputeAlgo {
    /// The largest one.
    #[default]
    Max,
    /// The latest one.
    MostRecent,
}

/// One scale a tensor, from the amaxes of earlier steps.
///
/// ```
/// use counterflow_layers::{DelayedScaling, Format, Recipe};
///
/// let recipe = DelayedScaling { amax_history_len: 32, ..DelayedScaling::default() };
/// assert_eq!((recipe.fp8_format, recipe.margin, recipe.reduce_amax), (Format::Hybrid, 0, true));
/// let recipe: Recipe = recipe.into();
/// assert_eq!(recipe.to_string(), "delayed scaling");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DelayedScaling {
    /// Powers of two that are left above the amax.
    pub margin: i32,
    /// The types of codes.
    pub fp8_format: Format,
    /// Steps whose amaxes are remembered: 1 or more.
    pub amax_history_len: usize,
    /// The one that counts.
    pub amax_compute_algo: AmaxComputeAlgo,
    /// True if amaxes are reduced over the tensor-parallel group. Rows that ranks gather need one scale: it must be set where a group
    /// has more than one rank.
    pub reduce_amax: bool,
}

impl Default for DelayedScaling {
    fn default() -> Self {
        DelayedScaling {
            margin: 0,
            fp8_format: Format::default(),
            amax_history_len: 1024,
            amax_compute_algo: AmaxComputeAlgo::default(),
            reduce_amax: true,
        }
    }
}

/// One scale a tensor, from its own amax. Of rows that ranks gather it is the amax of all ranks.
///
/// ```
/// use counterflow_layers::{Float8CurrentScaling, Format};
///
/// let recipe = Float8CurrentScaling::default();
/// assert_eq!((recipe.fp8_format, recipe.power_2_scale, recipe.amax_epsilon), (Format::Hybrid, false, 0.0));
/// ```
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Float8CurrentScaling {
    /// The types of codes.
    pub fp8_format: Format,
    /// True if scales are powers of two.
    pub power_2_scale: bool,
    /// What an amax is at least: finite, and not negative.
    pub amax_epsilon: f32,
}

/// A scale for each 1×128 of inputs and gradients, and for each 128×128 of weights. Codes are e4m3.
///
/// ```
/// use counterflow_layers::Float8BlockScaling;
///
/// let recipe = Float8BlockScaling::default();
/// assert_eq!((recipe.power_2_scale, recipe.amax_epsilon), (true, 0.0));
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Float8BlockScaling {
    /// True if scales are powers of two.
    pub power_2_scale: bool,
    /// What an amax is at least: finite, and not negative.
    pub amax_epsilon: f32,
}

impl Default for Float8BlockScaling {
    fn default() -> Self {
        Float8BlockScaling {
            power_2_scale: true,
            amax_epsilon: 0.0,
        }
    }
}

/// How a layer's tensors become FP8.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Recipe {
    /// One scale a tensor, from earlier steps.
    DelayedScaling(DelayedScaling),
    /// One scale a tensor, from its own amax.
    Float8CurrentScaling(Float8CurrentScaling),
    /// Scales of blocks.
    Float8BlockScaling(Float8BlockScaling),
}

impl From<DelayedScaling> for Recipe {
    fn from(recipe: DelayedScaling) -> Recipe {
        Recipe::DelayedScaling(recipe)
    }
}

impl From<Float8CurrentScaling> for Recipe {
    fn from(recipe: Float8CurrentScaling) -> Recipe {
        Recipe::Float8CurrentScaling(recipe)
    }
}

impl From<Float8BlockScaling> for Recipe {
    fn from(recipe: Float8BlockScaling) -> Recipe {
        Recipe::Float8BlockScaling(recipe)
    }
}

impl std::fmt::Display for Recipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Recipe::DelayedScaling(_) => "delayed scaling",
            Recipe::Float8CurrentScaling(_) => "current scaling",
            Recipe::Float8BlockScaling(_) => "block scaling",
        })
    }
}

/// A tensor of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Input,
    Weight,
    Gradient,
}

impl Recipe {
    /// The type of a tensor's codes.
    pub(crate) fn codes(&self, role: Role) -> Fp8 {
        let format = match self {
            Recipe::DelayedScaling(recipe) => recipe.fp8_format,
            Recipe::Float8CurrentScaling(recipe) => recipe.fp8_format,
            Recipe::Float8BlockScaling(_) => Format::E4M3,
        };
        match (format, role) {
            (Format::Hybrid, Role::Gradient) => Fp8::E5M2,
            (Format::Hybrid, Role::Input | Role::Weight) | (Format::E4M3, _) => Fp8::E4M3,
        }
    }

    /// How a tensor is quantised, from bf16.
    pub(crate) fn quantiser(&self, role: Role) -> counterflow::quantise::Recipe {
        let rule = ScaleRule::transformer_engine(self.codes(role));
        let with = |power_of_two, eps| ScaleRule {
            power_of_two,
            eps,
            ..rule
        };
        let (rule, scaling) = match self {
            Recipe::DelayedScaling(_) => (rule, Scaling::Delayed),
            Recipe::Float8CurrentScaling(recipe) => (
                with(recipe.power_2_scale, recipe.amax_epsilon),
                Scaling::Current(Granularity::PerTensor),
            ),
            Recipe::Float8BlockScaling(recipe) => (
                with(recipe.power_2_scale, recipe.amax_epsilon),
                Scaling::Current(match role {
                    Role::Input | Role::Gradient => Granularity::BLOCK_1X128,
                    Role::Weight => Granularity::BLOCK_128X128,
                }),
            ),
        };
        counterflow::quantise::Recipe::new(rule, scaling, Dtype::Bf16)
    }

    /// The history of a tensor, if its scale comes from one.
    pub(crate) fn history(&self, role: Role) -> Option<Delayed> {
        match self {
            Recipe::DelayedScaling(recipe) => Some(Delayed {
                length: recipe.amax_history_len,
                pick: match recipe.amax_compute_algo {
                    AmaxComputeAlgo::Max => Pick::Max,
                    AmaxComputeAlgo::MostRecent => Pick::MostRecent,
                },
                margin: recipe.margin,
                ..Delayed::transformer_engine(self.codes(role))
            }),
            Recipe::Float8CurrentScaling(_) | Recipe::Float8BlockScaling(_) => None,
        }
    }

    /// True if scales are of blocks.
    pub(crate) fn is_of_blocks(&self) -> bool {
        matches!(self, Recipe::Float8BlockScaling(_))
    }

    /// The scales of products by a weight.
    pub(crate) fn by_weight(&self) -> Scales {
        match self.is_of_blocks() {
            true => Scales::Blocks1d2d,
            false => Scales::PerTensor,
        }
    }

    /// The scales of a weight's gradient.
    pub(crate) fn along_tokens(&self) -> Scales {
        match self.is_of_blocks() {
            true => Scales::Blocks1d1d,
            false => Scales::PerTensor,
        }
    }

    /// Refuses what ranks cannot do.
    pub(crate) fn checks(&self, world: u32) -> Result<(), Error> {
        let (what, legal) = match self {
            Recipe::DelayedScaling(recipe) if !recipe.reduce_amax && world > 1 => (
                format!("reduce_amax is false in a group of {world} ranks"),
                "leave it out: rows that ranks gather need one scale",
            ),
            Recipe::DelayedScaling(recipe) if recipe.amax_history_len == 0 => (
                "an amax_history_len of 0".into(),
                "remember one step or more",
            ),
            Recipe::DelayedScaling(_)
            | Recipe::Float8CurrentScaling(_)
            | Recipe::Float8BlockScaling(_) => return Ok(()),
        };
        let legal = legal.into();
        Err(Error::Usage { what, legal })
    }
}
