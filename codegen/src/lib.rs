//! The pure middle of counterflow: values flow one way, one function per arrow.
//!
//! This crate reads no file, variable or clock, has no `unsafe`, and asks no device anything.
#![forbid(unsafe_code)]

pub mod builder;
pub mod diag;
pub mod dtype;
pub mod order;
pub mod program;
pub mod rank;
pub mod value;
pub mod variant;
