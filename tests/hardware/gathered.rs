//! Gathers of a result by `#[comm]` CTAs, by copy engine, around a ring, and for a layer in the same launch.

use crate::gatherers::ALL;
use crate::right::{JITTERED, emulated_as, strangers};

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
    for (schedule, _) in ALL {
        emulated_as(schedule, &JITTERED, &[600, 1, 127]);
    }
}
