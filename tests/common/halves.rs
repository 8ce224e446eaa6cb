//! Tiles of schedules whose items have two products.

use counterflow::Program;

/// A tile of one product; of two, its half: they share what it has of accumulators.
pub fn tile(program: &Program, (rows, columns): (u32, u32)) -> (u32, u32) {
    let two = ["swiglu", "gated_layers", "gated_at_the_end"];
    let two = two.iter().any(|name| program.name.ends_with(name));
    match (two, rows % 64) {
        (false, _) => (rows, columns),
        (true, 0) => (rows, columns / 2),
        (true, _) => (rows / 2, columns),
    }
}
