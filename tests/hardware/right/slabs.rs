//! Gathers in slabs of rows and K, of which the last one is short.

use super::strangers::strangers;
use super::{FP8, FP8_MATRIX, Matrix, UNPROMOTED};
use crate::case::variant_of;
use crate::slabs_of::{Counted, Way, by_slab, gathered, scales_apart};
use crate::strangers::Stranger;
use counterflow::jit::Probes;
use counterflow::{Program, Variant};

const WORLDS: &[u32] = &[1, 2, 3, 4, 5, 8];

pub const ALL: [Stranger; 10] = [
    (|| gathered(Way::Push, Counted::Each, (128, 256)), WORLDS),
    (|| gathered(Way::Pull, Counted::Each, (128, 256)), WORLDS),
    (|| gathered(Way::Ring, Counted::Each, (64, 192)), WORLDS),
    (|| gathered(Way::Spare, Counted::Each, (128, 128)), WORLDS),
    (|| gathered(Way::Push, Counted::ByRows, (256, 576)), WORLDS),
    (|| by_slab(Way::Push, (128, 256)), WORLDS),
    (|| by_slab(Way::Pull, (128, 128)), WORLDS),
    (|| by_slab(Way::Ring, (64, 192)), WORLDS),
    (|| by_slab(Way::Spare, (256, 576)), WORLDS),
    (|| by_slab(Way::CopyEngine, (128, 256)), WORLDS),
];

fn apart() -> Program {
    scales_apart((128, 256))
}

/// The kernels of slabs whose scales travel apart, for what compiles them ahead.
pub fn kernels() -> impl Iterator<Item = (Probes, Program, Variant)> {
    let worlds = [1, 2, 4].into_iter();
    let kinds = worlds.flat_map(|world| FP8.map(|kind| (world, kind)));
    kinds.flat_map(|(world, kind)| {
        UNPROMOTED.map(|scales| {
            let program = apart();
            let variant = variant_of(&program, world, kind).scales(scales);
            (Probes::default(), program, variant)
        })
    })
}

#[test]
fn scales_apart_from_slabs() {
    for scales in UNPROMOTED {
        let matrix = Matrix {
            sizes: &[(264, 1104)],
            rows: &[1000, 1, 2049, 7],
            scales: Some(scales),
            ..FP8_MATRIX
        };
        matrix.on_worlds(&[1, 2, 4], apart, "scales apart", (Probes::default(), 0));
    }
}

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

#[test]
fn slab_by_slab_pushed() {
    strangers(ALL[5]);
}

#[test]
fn slab_by_slab_pulled() {
    strangers(ALL[6]);
}

#[test]
fn slab_by_slab_around_a_ring() {
    strangers(ALL[7]);
}

#[test]
fn slab_by_slab_by_spare_warps() {
    strangers(ALL[8]);
}

#[test]
fn slab_by_slab_by_copy_engines() {
    strangers(ALL[9]);
}
