//! The time of a launch of counterflow's kernels: predicted by a [`model`], or measured, as a [`trace`] of the same form.
//!
//! This crate reads no files, environment variables or clocks, has no `unsafe`, and uses no device. It is above the compiler,
//! whose steps it reads: `counterflow_codegen::unroll`.
//!
//! ```
//! use counterflow_codegen::machine::Machine;
//! use counterflow_timeline::{model, trace};
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
//!
//! let (series, plan) = example::proven();
//! let timeline = model::predict(series.kernel(), &plan, &Machine::h200())?;
//! println!("{}", timeline.summary());
//! println!("{} lanes", trace::predicted(series.kernel(), &timeline).lanes.len());
//! # Ok::<(), counterflow_codegen::diag::Diagnostic>(())
//! ```
#![forbid(unsafe_code)]

pub mod model;
pub mod trace;
