//! Gathers in slabs of rows and K, of which the last one is short.

use super::strangers::strangers;
use crate::slabs_of::{Counted, Way, gathered};
use crate::strangers::Stranger;

const WORLDS: &[u32] = &[1, 2, 3, 4, 5, 8];

pub const ALL: [Stranger; 5] = [
    (|| gathered(Way::Push, Counted::Each, (128, 256)), WORLDS),
    (|| gathered(Way::Pull, Counted::Each, (128, 256)), WORLDS),
    (|| gathered(Way::Ring, Counted::Each, (64, 192)), WORLDS),
    (|| gathered(Way::Spare, Counted::Each, (128, 128)), WORLDS),
    (|| gathered(Way::Push, Counted::ByRows, (256, 576)), WORLDS),
];

#[test]
fn slabs_pushed() {
    strangers(ALL[0]);
}

#[test]
fn slabs_pulled() {
    strangers(ALL[1]);
}

#[test]
fn slabs_around_a_ring() {
    strangers(ALL[2]);
}

#[test]
fn slabs_by_spare_warps() {
    strangers(ALL[3]);
}

#[test]
fn slabs_that_one_cell_counts() {
    strangers(ALL[4]);
}
