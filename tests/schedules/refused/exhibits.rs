//! Schedules that are right and have no kernel, one for each row of `docs/refused.md`.

use counterflow::prelude::*;

#[schedule]
pub fn panels(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let panels = x.panels(cols = 128);
    let tiles = y.tiles((128, 128));
    let arrived = counters(panels);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in panels.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

#[schedule]
pub fn slabs(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let slabs = x.tiles((128, 128));
    let tiles = y.tiles((128, 128));
    let arrived = counters(slabs);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in slabs.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// What `slabs` and `chunks` are of, in whole rows.
#[schedule]
pub fn rows(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles((128, 128));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

#[schedule]
pub fn in_a_cluster(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles((128, 128));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm(cluster = (2, 1))]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

#[schedule]
pub fn split(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles((128, 128));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm(split = 2)]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

#[schedule]
pub fn some_chunks(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles((128, 128));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    {
        for t in tiles.of(me()) {
            y[t] = dot(x[t], w[t]);
        }
        for shard in ranks().after_me() {
            for t in tiles.of(shard) {
                arrived[t.rows()].wait_at_least(1);
                y[t] = dot(x[t], w[t]);
            }
        }
    }
}

#[schedule]
pub fn by_itself(x: Gathered<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 128));
    #[gemm]
    for t in tiles.of(me()) {
        y[t] = dot(x[t], x[t]);
    }
}

/// Two senders signal one cell, and one of them is waited for.
#[schedule]
pub fn one_of_two(x: Gathered<bf16>, z: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles((128, 128));
    let arrived = counters(chunks);
    #[comm(name = first, ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[comm(name = second, ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            z.on(peer)[c] = z[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().after_me() {
        for t in tiles.of(shard) {
            arrived[t.rows()].wait_at_least(1);
            y[t] = dot(x[t], w[t]);
        }
    }
}

#[schedule]
pub fn sum_of_a_peer(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 128));
    let partial = symmetric::<bf16>(y, slots = 1);
    let stored = counters(tiles);
    let read = counters(tiles);
    let next = (me() + 1) % world();
    #[gemm]
    {
        for t in tiles {
            partial[t] = dot(x[t], w[t]);
            stored.on((me() - 1) % world())[t].add(1);
        }
        for t in tiles {
            stored[t].wait();
            y[t] = partial.on(next)[t].sum();
            read.on(next)[t].add(1);
        }
        for t in tiles {
            read[t].wait();
        }
    }
}

#[schedule]
pub fn scales_everywhere(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles((128, 128));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for c in chunks.of(me()) {
        x.everywhere()[c] = x[c];
        arrived.everywhere()[c].add(1);
    }
    #[gemm(k = 128)]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

#[schedule]
pub fn signals_at_two_addresses(
    x: Gathered<bf16>,
    z: Gathered<bf16>,
    w: Local<bf16>,
    y: Out<bf16>,
) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles((128, 128));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    {
        for c in chunks.of(me()) {
            x.everywhere()[c] = x[c];
            arrived.everywhere()[c].add(1);
        }
        for peer in ranks().before_me() {
            for c in chunks.of(me()) {
                z.on(peer)[c] = z[c];
                arrived.on(peer)[c].add(1);
            }
        }
    }
    #[gemm(k = 64)]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]) + dot(z[t], w[t]);
        }
    }
}

#[schedule]
pub fn operand_in_a_slot(x: AllToAll<bf16>, w: Local<bf16>, z: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles((128, 128));
    let sent = counters(world(), chunks);
    #[comm(ctas = 2)]
    for owner in ranks().from_me() {
        for c in chunks.of(owner) {
            x.on(owner)[me()][c] = z[c];
            sent.on(owner)[me()][c].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()) {
        sent[0][t.rows()].wait();
        y[t] = dot(x[0][t], w[t]);
    }
}

#[schedule]
pub fn operand_of_a_peer(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 128));
    #[gemm]
    for shard in ranks() {
        for t in tiles.of(shard) {
            y[t] = dot(x.on(shard)[t], w[t]);
        }
    }
}

#[schedule]
pub fn multiplies_in_a_loop(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 128));
    #[gemm]
    for t in tiles {
        let mut sum = zero();
        for other in ranks() {
            if other == me() {
                sum += dot(x[t], w[t]);
            }
        }
        y[t] = sum;
    }
}

#[schedule]
pub fn waits_and_signals(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 128));
    let told = counters(world(), tiles);
    #[gemm]
    for t in tiles {
        y[t] = dot(x[t], w[t]);
        for peer in ranks().after_me() {
            told.on(peer)[me()][t].add(1);
            if peer == (me() - 1) % world() {
                told[peer][t].wait();
            }
        }
    }
}

#[schedule]
pub fn waits_behind_a_copy(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles((128, 128));
    let relay = symmetric::<bf16>(x.whole(), slots = world());
    let there = counters(world(), chunks);
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            relay[peer][c] = x[c];
            there[peer][c].add(1);
            there[peer][c].wait();
            x.on(peer)[c] = relay[peer][c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

#[schedule]
pub fn multiplies_behind_a_signal(
    x: Local<bf16>,
    w: Local<bf16>,
    v: Local<bf16>,
    y: Out<bf16>,
    z: Out<bf16>,
) {
    let tiles = y.tiles((128, 128));
    let told = counters(world(), tiles);
    #[gemm]
    for t in tiles {
        y[t] = dot(x[t], w[t]);
        for peer in ranks().after_me() {
            told.on(peer)[me()][t].add(1);
        }
        told[others()][t].wait();
        z[t] = dot(x[t], v[t]);
    }
}

#[schedule]
pub fn branches_of_far_ranks(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 128));
    let told = counters(1);
    #[gemm]
    {
        for t in tiles {
            let product = dot(x[t], w[t]);
            if me() == 0 || me() >= 16 {
                y[t] = product.relu();
            } else {
                y[t] = product;
            }
            if me() == 1 || me() >= 16 {
                told[0].add(1);
            }
        }
        told[0].wait();
    }
}

#[schedule]
pub fn two_depths(x: Local<bf16>, w: Local<bf16>, a: Local<bf16>, b: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 128));
    #[gemm]
    for t in tiles {
        y[t] = dot(x[t], w[t]) + dot(a[t], b[t]);
    }
}

#[schedule]
pub fn one_accumulator(x: Local<bf16>, w: Local<bf16>, v: Local<bf16>, y: Out<bf16>) {
    let tiles = y.tiles((128, 128));
    #[gemm]
    for t in tiles {
        let mut acc = zero();
        acc += dot(x[t], w[t]);
        acc += dot(x[t], v[t]);
        y[t] = acc;
    }
}

#[schedule]
pub fn copies_in_gemm(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>, z: Out<bf16>) {
    let tiles = y.tiles((128, 128));
    #[gemm]
    for t in tiles {
        y[t] = dot(x[t], w[t]);
        z[t] = y[t];
    }
}

#[schedule]
pub fn all_shards(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles((128, 128));
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for t in tiles {
        arrived[t.rows()].wait();
        y[t] = dot(x[t], w[t]);
    }
}

#[schedule]
pub fn two_sizes_in_an_item(x: Gathered<bf16>, z: Gathered<f32>) {
    let chunks = x.chunks(rows = 64);
    let arrived = counters(chunks);
    #[comm(ctas = 2)]
    {
        for peer in ranks().before_me() {
            for c in chunks.of(me()) {
                x.on(peer)[c] = x[c];
                z.on(peer)[c] = z[c];
                arrived.on(peer)[c].add(1);
            }
        }
        for peer in ranks().after_me() {
            for c in chunks.of(peer) {
                arrived[c].wait();
            }
        }
    }
}

#[schedule]
pub fn across_matrices(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles_across((128, 128));
    let arrived = counters(chunks);
    #[copy_engine]
    for peer in ranks().after_me() {
        for c in chunks.of(peer) {
            x[c] = x.on(peer)[c];
            arrived[c].add(1);
        }
    }
    #[gemm]
    for t in tiles {
        arrived[t.rows()].wait();
        y[t] = dot(x[t], w[t]);
    }
}

#[schedule]
pub fn adds_of_parts(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles_across((128, 128));
    let begun = counters(world(), tiles);
    let landed = counters(world(), tiles);
    #[gemm]
    for t in tiles {
        y[t] = dot(x[t], w[t]);
        for peer in ranks().after_me() {
            begun.on(peer)[me()][t].add(1);
        }
    }
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles {
            let partial = dot(x[t], w[t]);
            begun[owner][t].wait();
            y.on(owner)[t] += partial;
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles {
        landed[others()][t].wait();
    }
}

#[schedule]
pub fn parts_of_steps(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let slabs = x.tiles((128, 96));
    let tiles = y.tiles((128, 128));
    let arrived = counters(slabs);
    #[copy_engine]
    for peer in ranks().after_me() {
        for c in slabs.of(peer) {
            x[c] = x.on(peer)[c];
            arrived[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            y[t] = dot(x[t].wait(arrived[t.rows()]), w[t]);
        }
    }
}

#[schedule]
pub fn slabs_in_ping_pong(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let slabs = x.tiles((128, 128));
    let tiles = y.tiles((128, 144));
    let arrived = counters(slabs);
    #[copy_engine]
    for peer in ranks().after_me() {
        for c in slabs.of(peer) {
            x[c] = x.on(peer)[c];
            arrived[c].add(1);
        }
    }
    #[gemm(ping_pong = true)]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            y[t] = dot(x[t].wait(arrived[t.rows()]), w[t]);
        }
    }
}

#[schedule]
pub fn two_widths(x: Gathered<bf16>, z: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let slabs = x.tiles((128, 128));
    let wide = z.tiles((128, 256));
    let tiles = y.tiles((128, 128));
    let arrived = counters(slabs);
    let came = counters(wide);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for c in slabs.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
        for c in wide.of(me()) {
            z.on(peer)[c] = z[c];
            came.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            y[t] = dot(x[t].wait(arrived[t.rows()]), w[t]) + dot(z[t].wait(came[t.rows()]), w[t]);
        }
    }
}

#[schedule]
pub fn sums_in_ping_pong(x: Local<bf16>, w: Local<bf16>, y: ReduceScattered<bf16>) {
    let tiles = y.tiles((128, 160));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);
    #[gemm(ping_pong = true)]
    for owner in ranks().after_me() {
        for t in tiles.of(owner).grouped() {
            partial.on(owner)[me()][t] = dot(x[t], w[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()).grouped() {
        y[t] = dot(x[t], w[t]) + partial[others()][t].wait(landed).sum();
    }
}
