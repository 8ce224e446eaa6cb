//! A schedule that is wrong on purpose: every rank waits for its own rows to arrive before it forwards them.
//!
//! `cargo run --release --example rejected` exits with 1 and reports why no rank can ever begin.

use counterflow::prelude::*;

/// y = all_gather(x) · wᵀ around a ring that never starts.
#[schedule]
pub fn never_starts(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let pieces = x.pieces(rows = 128);
    let tiles = y.tiles((128, 256));
    let arrived = counters(pieces);
    let next = (me() + 1) % world();

    #[comm(ctas = 4)]
    for chunk in ring(1).but_last(1) {
        for p in pieces.of(chunk) {
            arrived[p].wait_at_least(1); // also where chunk is mine, which nobody sends to me
            x.on(next)[p] = x[p];
            arrived.on(next)[p].add(1);
        }
    }
    #[gemm(k = 64)]
    for chunk in ring(1) {
        for t in tiles.of(chunk).grouped(8) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

fn main() -> std::process::ExitCode {
    counterflow_workbench::main(&[never_starts])
}
