//! Stored tiles beside products, in kernels that signal: no spill.

use crate::sass::all_pass;
use counterflow::prelude::*;
use counterflow::{Dtype, Scales, Variant};

/// Each chunk's rows as they come, and a local tile added.
#[schedule]
fn gather_and_add(x: Gathered<bf16>, w: Local<bf16>, r: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = 128);
    let tiles = y.tiles(tune((256, 128), (256, 144)));
    let arrived = counters(pieces);
    #[comm(ctas = 8)]
    for peer in ranks().before_me() {
        for p in pieces.of(me()) {
            x.on(peer)[p] = x[p];
            arrived.on(peer)[p].add(1);
        }
    }
    #[gemm]
    for chunk in ranks().from_me() {
        for t in tiles.of(chunk).grouped() {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]) + r[t];
        }
    }
}

#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn stored_tiles_beside_products_pass_the_sass_checks() {
    let mut cases = Vec::new();
    for columns in [144, 176] {
        let variant = Variant::new(4).set("tiles", (256, columns));
        let wide = variant.clone().output(Dtype::F32);
        let rows = variant.clone().dtype(Dtype::E4M3).scales(Scales::Rows);
        cases.extend([variant, wide, rows].map(|variant| (gather_and_add(), variant)));
    }
    all_pass(&cases);
}
