//! Prediction: how long a checked plan takes on a machine, and what of its communication is exposed.

pub mod machine;

pub use machine::Machine;
