//! Parts of tiles, each to the rank that owns its rows: fewer rows than ranks, shards that begin and end within a tile, and every
//! tile that the library offers.

use super::{JITTER, Matrix, PLAIN};
use crate::case::{Fill, Kind};
use counterflow::jit::Probes;
use counterflow::{Dtype, Layout, schedules};

const KINDS: [Kind; 4] = [
    (Dtype::Bf16, (128, 64), Layout::Nt),
    (Dtype::Bf16, (16, 128), Layout::Nt),
    (Dtype::F16, (128, 128), Layout::Nt),
    (Dtype::Bf16, (128, 256), Layout::Nn),
];

/// Integers, so bit for bit: a row that is written twice, or by another rank's part, shows.
#[test]
fn parts_of_tiles_go_to_their_owners() {
    let matrix = Matrix {
        kinds: &KINDS,
        sizes: &[(264, 1096)],
        rows: &[256, 1, 2, 3, 16, 50, 100, 129, 200, 255],
        fills: &[Fill::Integers],
        ..PLAIN
    };
    let hows = [
        (Probes::default(), 0, "parts"),
        (JITTER, 300, "parts, pauses"),
    ];
    for (probes, late, what) in hows {
        matrix.on_gpus(schedules::gemm_rs_across, what, (probes, late));
    }
}
