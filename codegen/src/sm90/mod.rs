//! Hopper. [`cta`] decides how its tensor cores, its warps and its shared memory compute a kernel's tiles; [`build`] makes
//! what each warp does of it.

mod build;
mod builder;
mod cells;
mod comm;
pub mod cta;
mod epilogue;
mod item;
mod loads;
mod mma;
mod nodes;
mod rings;
mod scheduler;
mod split_k;
mod staggered;
mod stores;
mod tiles;
mod walk;

pub use build::build;
