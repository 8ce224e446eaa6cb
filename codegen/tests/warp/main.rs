//! The warp level: what is built and emitted for each schedule, and what its verifier says when one thing is changed.

mod accumulated;
mod across;
mod aliased_memory;
mod amax;
mod blocks;
mod blocks_across;
mod blocks_in_clusters;
mod columns;
mod computed_scales;
mod constant;
mod control;
mod copies;
mod cuda;
mod dependent_launch;
mod dims;
mod double_buffer;
mod epilogue;
mod everywhere;
#[path = "../fixtures/mod.rs"]
mod fixtures;
mod fp8;
mod fp8_outputs;
mod gathered_blocks;
#[path = "../tile/generator/mod.rs"]
mod generator;
mod hand_over;
mod handed;
mod host_copies;
mod layers;
mod legal;
mod long_lines;
mod memory_order;
mod mn_major;
mod multicast;
mod names;
mod no_depth;
mod own_terms;
#[path = "../../../tests/common/parallel.rs"]
mod parallel;
mod partial;
mod partial_tiles;
mod passes;
mod places;
mod planes;
mod products;
mod promotion;
mod queues;
mod reach;
mod roles;
mod scales;
mod selected;
mod several_cells;
mod shard_ends;
mod shares;
mod slabs;
mod slices;
mod split_k;
mod staggered_epilogues;
mod summing_roles;
mod sums_by_turns;
mod swapped_operands;
mod together;
mod turns;
mod without_gemm;
mod without_product;
mod worlds;
/// Its tests stand beside it.
#[path = "../../../emitter/src/wrap.rs"]
mod wrap;
