//! Hopper. [`cta`] decides how its tensor cores, its warps and its shared memory compute a kernel's tiles; [`build`] makes
//! what each warp does of it.

mod ahead;
mod amax;
mod boxes;
mod branches;
mod build;
mod builder;
mod cells;
mod chosen;
mod comm;
mod computed_scales;
pub mod cta;
mod either;
mod epilogue;
mod everywhere;
mod in_order;
mod item;
mod lanes;
mod leaves;
mod loads;
mod mma;
mod moves;
mod names;
mod nodes;
mod passes;
mod place;
mod planes;
mod ranks;
mod rings;
mod scheduler;
mod slabs;
mod spare;
mod split_k;
mod stages;
mod staggered;
mod stores;
mod tiles;
mod vectors;
mod waiters;
mod walk;

pub use build::build;
