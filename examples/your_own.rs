//! A schedule that is not in the library: partners swap their rows, in the order of `me ^ step`.
//!
//! At any moment every link carries one exchange between two partners. If the world is not a power of two, a rank has
//! no partner in some steps: `if` skips those, and the verifier proves for each world that nothing is missing.
//!
//! `cargo run --release --example your_own -- demo --world 5`; then delete the second `if`, and read the report. `check --emit`
//! says whether it has a kernel for GPUs, and at which statement not.

use counterflow::prelude::*;

/// y = all_gather(x) · wᵀ by exchanges.
#[schedule]
pub fn exchange(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = tune(64, 128));
    let tiles = y.tiles(tune((128, 256), (256, 128)));
    let arrived = counters(chunks);

    #[comm(ctas = tune(4, 8))]
    for step in ranks() {
        if step != 0 && me() ^ step < world() {
            for c in chunks.of(me()) {
                x.on(me() ^ step)[c] = x[c];
                arrived.on(me() ^ step)[c].add(1);
            }
        }
        // The steps from the world size up to the next power of two.
        if me() ^ (step + world()) < world() {
            for c in chunks.of(me()) {
                x.on(me() ^ (step + world()))[c] = x[c];
                arrived.on(me() ^ (step + world()))[c].add(1);
            }
        }
    }
    #[gemm(k = 64)]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped(4) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]).silu();
        }
    }
}

fn main() -> std::process::ExitCode {
    counterflow_workbench::main(&[exchange])
}
