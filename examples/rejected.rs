//! A schedule that is wrong on purpose: every rank waits for its own rows to arrive before it forwards them.
//!
//! `cargo run --release --example rejected` exits with 1 and reports why no rank can ever begin.

use counterflow::prelude::*;

/// y = all_gather(x) · wᵀ around a ring that never starts.
#[schedule]
pub fn never_starts(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles((128, 256));
    let arrived = counters(chunks);
    let next = (me() + 1) % world();

    #[comm(ctas = 4)]
    for shard in ring(1).but_last(1) {
        for c in chunks.of(shard) {
            arrived[c].wait_at_least(1); // also where shard is mine, which nobody sends to me
            x.on(next)[c] = x[c];
            arrived.on(next)[c].add(1);
        }
    }
    #[gemm(k = 64)]
    for shard in ring(1) {
        for t in tiles.of(shard).grouped(8) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

fn main() -> std::process::ExitCode {
    counterflow_workbench::main(&[never_starts])
}
