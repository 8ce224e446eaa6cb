//! The tile level: sizes and orders, the verifier, the emulator, the timeline model.

mod across;
mod batch_invariant;
mod boxes;
/// The clocks' own tests stand beside them. The library has no other tests of its own: it is compiled once.
#[path = "../../../emulator/src/clocks.rs"]
#[allow(dead_code, reason = "the emulator uses the rest")]
mod clocks;
mod dims;
mod double_buffer;
mod dtype;
mod emulator;
#[path = "../fixtures/mod.rs"]
mod fixtures;
mod foreign;
mod generator;
mod geometry;
mod happens_before;
mod machine;
mod memory;
mod model;
mod open;
mod order_tables;
mod orders;
mod print;
mod promotion;
mod random;
mod series;
mod short_sums;
mod slabs;
mod switch;
mod trace;
mod traffic;
mod turns;
#[cfg(debug_assertions)]
mod undo;
#[cfg(debug_assertions)]
mod undone;
mod value;
mod verify;
mod volume;
