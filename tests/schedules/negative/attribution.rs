//! Waits that may count a signal of the next launch. Each is one edit away from a schedule of the library: `EDIT` marks it, `was` says what stood
//! there.

use counterflow::prelude::*;

/// A common start: every rank has signalled every other before anyone multiplies. Sound; the next one is not.
#[schedule]
pub fn start_together(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((4, 8));
    let here = counters(world());
    #[comm(ctas = 1)]
    for peer in ranks().after_me() {
        here.on(peer)[me()].add(1);
    }
    #[gemm]
    for t in tiles.grouped(8) {
        here[others()].wait();
        y[t] = dot(x[t], w[t]);
    }
}

/// The same, counted in one cell: the second launch of a fast rank counts for the first of a slow one.
#[schedule]
pub fn start_counted_together(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((4, 8));
    let here = counters(); // EDIT, was: counters(world()), indexed by the signaller
    #[comm(ctas = 1)]
    for peer in ranks().after_me() {
        here.on(peer).add(1);
    }
    #[gemm]
    for t in tiles.grouped(8) {
        here.wait();
        y[t] = dot(x[t], w[t]);
    }
}
