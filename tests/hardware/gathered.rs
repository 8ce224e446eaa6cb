//! Gathers of a result by `#[comm]` CTAs, by copy engine, around a ring, and for a layer in the same launch.

use crate::gatherers::ALL;
use crate::right::{JITTERED, emulated_as, strangers};
use crate::wide::wide;

#[test]
fn by_comm() {
    strangers(ALL[0]);
}

#[test]
fn by_copy_engine() {
    strangers(ALL[1]);
}

#[test]
fn by_ring() {
    strangers(ALL[2]);
}

#[test]
fn and_used() {
    strangers(ALL[3]);
}

#[test]
fn emulated() {
    for (at, (schedule, _)) in ALL.into_iter().enumerate() {
        // One type without `WIDE`, of each schedule another.
        let kinds = if wide() {
            &JITTERED[..]
        } else {
            &JITTERED[at % 2..][..1]
        };
        emulated_as(schedule, kinds, &[600, 1, 127]);
    }
}
