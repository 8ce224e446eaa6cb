//! The tile level: sizes and orders, the verifier, the emulator, the timeline model.

mod emulator;
#[path = "../fixtures/mod.rs"]
mod fixtures;
mod generator;
mod geometry;
mod model;
mod open;
mod orders;
mod random;
mod series;
#[cfg(feature = "undo")]
mod undo;
#[cfg(feature = "undo")]
mod undone;
mod verify;
