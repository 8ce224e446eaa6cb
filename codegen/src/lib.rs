//! The pure core of counterflow: values flow one way, one function per arrow.
//!
//! This crate reads no files, environment variables or clocks, has no `unsafe`, and uses no device.
#![forbid(unsafe_code)]

pub mod builder;
pub mod cuda;
pub mod diag;
pub mod dtype;
pub mod given;
pub mod host;
pub mod interp;
pub mod kernel;
pub mod lower;
mod machine;
pub mod model;
pub mod order;
pub mod plan;
mod print;
pub mod program;
pub mod rank;
pub mod shape;
pub mod sm90;
pub mod tiling;
pub mod undo;
pub mod unroll;
pub mod value;
pub mod variant;
pub mod verify;
pub mod warp;
