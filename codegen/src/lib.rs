//! The pure core of counterflow: values flow one way, one function per arrow.
//!
//! This crate reads no files, environment variables or clocks, has no `unsafe`, and uses no device.
//!
//! ```
//! use counterflow_codegen::{lower::lower, sm90, verify};
//! use counterflow_codegen::{machine::Machine, shape::Shape, variant::Variant};
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
//! # use example::ag_gemm;
//!
//! let program = ag_gemm(); // what the user wrote: by `#[schedule]`, or with the `builder`
//! let (shape, machine) = (Shape::new(64, 32, 16), Machine::h200());
//! let kernel = verify::kernel(lower(&program, &Variant::new(2))?)?; // roles, loops, credits
//! let series = verify::series(&kernel, &shape, &machine)?; // launches of up to that shape
//! let plan = series.plan(&shape)?; // this launch, proven
//!
//! println!("{} bytes of the heap", plan.heap.bytes);
//! // What its warps do is proven, too.
//! let pipeline = verify::pipeline(sm90::build(&kernel)?)?; // `verify::warps(&kernel)` is both
//! println!("{}", pipeline.text());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Three crates are above this one: `counterflow-emitter` prints the pipeline as CUDA, `counterflow-emulator` runs kernels and plans on emulated ranks, beside a reference, and
//! `counterflow-timeline` predicts their time.
#![forbid(unsafe_code)]

pub mod bits;
pub mod builder;
mod checked;
pub mod diag;
pub mod dtype;
pub mod encoded;
pub mod encoding;
pub mod given;
pub mod host;
pub mod kernel;
pub mod lower;
pub mod machine;
pub mod map;
mod multicast;
pub mod order;
pub mod own_terms;
pub mod plan;
mod print;
pub mod program;
mod proof;
pub mod rank;
pub mod region;
pub mod shape;
pub mod sm90;
pub mod target;
pub mod tiling;
#[doc(hidden)]
pub mod undo;
pub mod unroll;
pub mod value;
pub mod variant;
pub mod verify;
pub mod warp;

pub use encoding::{bounds, rule};
