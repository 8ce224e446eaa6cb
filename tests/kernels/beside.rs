//! Stored tiles beside products, in kernels that signal, and where FP8 is made of several: no spill.

use crate::sass::all_pass;
use counterflow::prelude::*;
use counterflow::{Dtype, Scales, Variant};

/// Each shard's rows as they come, and a local tile added.
#[schedule]
fn gather_and_add(x: Gathered<bf16>, w: Local<bf16>, r: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles(tune((256, 128), (256, 144)));
    let arrived = counters(chunks);
    #[comm(ctas = 8)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped() {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]) + r[t];
        }
    }
}

/// Three stored tiles are added.
#[schedule]
fn three_added(
    x: Local<bf16>,
    w: Local<bf16>,
    u: Local<bf16>,
    v: Local<bf16>,
    z: Local<bf16>,
    y: Out<bf16>,
) {
    let tiles = y.tiles(tune((128, 256), (128, 224)));
    #[gemm]
    for t in tiles.grouped() {
        y[t] = dot(x[t], w[t]) + u[t] + v[t] + z[t];
    }
}

#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn stored_tiles_beside_products_pass_the_sass_checks() {
    let mut cases = Vec::new();
    for columns in [144, 176] {
        let variant = Variant::new(4).set("tiles", (256, columns));
        let wide = variant.clone().output(Dtype::F32);
        let rows = variant.clone().dtype(Dtype::E4M3).scales(Scales::PerRow);
        cases.extend([variant, wide, rows].map(|variant| (gather_and_add(), variant)));
    }
    let narrow = Variant::new(1).output(Dtype::E4M3);
    let measured = narrow.clone().amax(true).set("tiles", (128, 224));
    cases.extend([narrow, measured].map(|variant| (three_added(), variant)));
    all_pass(&cases);
}
