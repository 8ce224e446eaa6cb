//! Tensor-parallel layers whose communication is fused with their products, over the public API of [`counterflow`] alone.
//!
//! [`overlap`] says how each product of a layer overlaps its communication, as TransformerEngine's users know it.
#![forbid(unsafe_code)]

pub mod overlap;
pub mod schedules;
