//! An all-reduce with what comes after it in a layer: a residual is added, rows are normalised, and quantised if asked. One
//! kernel on each rank, for few rows.

mod launch;
mod op;
mod row;
mod text;
mod twin;

pub use launch::AllReduceNormLaunch;
pub use op::{AllReduceNorm, AllReduceNormBuilder};
