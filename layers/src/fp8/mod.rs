//! FP8 in layers: recipes, the codes of tensors, and what steps share.

mod amaxes;
mod cast;
mod coded;
mod recipe;
mod scope;

pub(crate) use amaxes::Amaxes;
pub(crate) use cast::Cast;
pub(crate) use coded::Coded;
pub(crate) use recipe::Role;
pub use recipe::{
    AmaxComputeAlgo, DelayedScaling, Float8BlockScaling, Float8CurrentScaling, Format, Recipe,
};
pub(crate) use scope::Shared;
