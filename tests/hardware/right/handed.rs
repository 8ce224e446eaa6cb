//! Several gathers, and sums that are waited for in turn, in one kernel.

use super::strangers::strangers;
use crate::handed_over::{Move, gathers_of, sums_in_order, two_gathers};
use crate::strangers::Stranger;
use counterflow::Dtype::{Bf16, F32};

const WORLDS: &[u32] = &[1, 2, 3, 4, 5, 8];

pub const ALL: [Stranger; 4] = [
    (|| two_gathers(Move::Push), WORLDS),
    (|| two_gathers(Move::Pull), WORLDS),
    (|| gathers_of([Bf16, F32]), WORLDS),
    (sums_in_order, &[4]),
];

#[test]
fn two_gathers_pushed() {
    strangers(ALL[0]);
}

#[test]
fn two_gathers_pulled() {
    strangers(ALL[1]);
}

#[test]
fn gathers_of_two_sizes() {
    strangers(ALL[2]);
}

#[test]
fn sums_in_turn() {
    strangers(ALL[3]);
}
