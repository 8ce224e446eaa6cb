//! Schedules that add to what a tensor held before, each one edit away from a good one.

use counterflow::prelude::*;

/// Every tile is added to twice: the second add would not know which came first.
#[schedule]
pub fn accumulated_twice(dy: Local<bf16>, x: Local<bf16>, grad: Accumulated<f32>) {
    let tiles = grad.tiles((4, 8));
    #[gemm]
    for t in tiles.grouped(8) {
        let product = dot(dy[t], x[t]);
        grad[t] += product;
        grad[t] += product; // EDIT, was: absent
    }
}

/// One rank adds nothing.
#[schedule]
pub fn accumulated_not_by_all(dy: Local<bf16>, x: Local<bf16>, grad: Accumulated<f32>) {
    let tiles = grad.tiles((4, 8));
    #[gemm]
    for t in tiles.grouped(8) {
        let product = dot(dy[t], x[t]);
        // EDIT, was: without a condition
        if me() != 1 {
            grad[t] += product;
        }
    }
}

/// Nothing is there to add to: an output of this kind holds nothing before the launch.
#[schedule]
pub fn added_to_nothing(
    dy: Local<bf16>,
    x: Local<bf16>,
    grad: Out<f32>, // EDIT, was: Accumulated<f32>
) {
    let tiles = grad.tiles((4, 8));
    #[gemm]
    for t in tiles.grouped(8) {
        grad[t] += dot(dy[t], x[t]);
    }
}
