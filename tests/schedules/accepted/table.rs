//! One function for each row of DESIGN §1's table.
use counterflow::prelude::*;

/// A partition is a value.
#[schedule]
fn partitions(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let panels = x.panels(cols = tune(512, 1024));
    let tiles = y.tiles((128, 256));
    let arrived = counters(chunks);
    let columns = counters(panels);
    #[comm(ctas = 4)]
    for peer in ranks().after_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
        for c in panels.of(me()) {
            columns.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            let mut acc = zero();
            arrived[t.rows()].wait();
            columns[t.rows()].wait();
            acc += dot(x[t], w[t]);
            y[t] = acc;
        }
    }
}

/// Who does it.
#[schedule]
fn roles(x: Gathered<bf16>, z: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles((128, 256));
    #[comm(ctas = 4)]
    {
        for c in chunks.of(me()) {
            x.on((me() + 1) % world())[c] = x[c];
        }
    }
    #[spare_warps]
    for c in chunks.of(me()) {
        x.on(me() ^ 1)[c] = x[c];
    }
    #[copy_engine]
    for c in chunks.of(me()) {
        z.on(me() ^ 1)[c] = z[c];
    }
    #[gemm(k = tune(64, 128), cluster = tune((2, 1), (1, 1)), stages = 4)]
    for t in tiles {
        y[t] = dot(x[t], w[t]);
    }
}

fn hypercube(me: u32, step: u32, _world: u32) -> u32 {
    me ^ step
}

/// Order of shards.
#[schedule]
fn shard_orders(x: Gathered<bf16>, y: ReduceScattered<bf16>) {
    let chunks = x.chunks(rows = 128);
    let right = (me() + 1) % world();
    #[comm(ctas = 4)]
    {
        for r in ring(1) {
            for c in chunks.of(r) {
                x.on(right)[c] = x[c];
            }
        }
        for r in ring(-1).but_last(1) {
            let across = (r + world() / 2) % world();
            if (r != me() && me() < world() - 1) || !(r >= 2) {
                for c in chunks.of(across) {
                    x.on(r - 1)[c] = x[c];
                }
            } else if me() == 0 {
                for c in chunks.of(across) {
                    y.on(across)[c] = x[c];
                }
            } else {
                for c in chunks.of(1 + r) {
                    y.on(r)[c] = x[c];
                }
            }
        }
        for r in ranks().by(|me, step, world| (me + 3 * step) % world) {
            for c in chunks.of(r) {
                y.on(r)[c] = x[c];
            }
        }
        for r in ranks().by(hypercube) {
            for c in chunks.of(r) {
                y.on(r)[c] = x[c];
            }
        }
        for _ in ranks() {
            for c in chunks.of(me()) {
                y[c] = x[c];
            }
        }
    }
}

/// Order of tiles.
#[schedule]
fn tile_orders(x: Local<f16>, w: Local<f16>, y: Out<f32>) {
    let tiles = y.tiles((128, 256));
    #[gemm]
    {
        for t in tiles.of(0).grouped() {
            y[t] = dot(x[t], w[t]);
        }
        for t in tiles.of(1).grouped(8) {
            y[t] = dot(x[t], w[t]);
        }
        for t in tiles.of(2).row_major() {
            y[t] = dot(x[t], w[t]);
        }
        for t in tiles.of(3).column_major() {
            y[t] = dot(x[t], w[t]);
        }
        for t in tiles.grouped(tune(4, 8)) {
            y[t] = dot(x[t], w[t]);
        }
        for t in tiles.column_major() {
            y[t] = dot(x[t], w[t]);
        }
    }
}

/// A hand-off.
#[schedule]
fn hand_offs(x: Local<bf16>, w: Local<bf16>, y: AllReduced<bf16>) {
    let tiles = y.tiles((128, 256));
    let done = counters(tiles);
    let all = counters();
    let lanes = counters(4);
    let landed = counters(world(), tiles);
    #[gemm]
    for t in tiles {
        y.everywhere()[t] = dot(x[t], w[t]);
        done.everywhere()[t].add(1);
        all.on(0).add(2);
        lanes.on(1)[3].add(1);
        for peer in ranks().after_me() {
            landed.on(peer)[me()][t].add(1);
        }
    }
    #[spare_warps]
    for t in tiles.of(me()) {
        done[t].wait_at_least(2);
        all.wait();
        lanes[3].wait();
        landed[others()][t].wait();
    }
}

/// A tile's body.
#[schedule]
fn gated(x: Local<bf16>, w: Local<bf16>, v: Local<bf16>, y: Out<bf16>, z: Out<bf16>) {
    let tiles = y.tiles((128, 128));
    #[gemm]
    for t in tiles {
        let mut gate = zero();
        let mut up = zero();
        gate += dot(x[t], w[t]);
        up += dot(x[t], v[t]);
        y[t] = gate.silu() * up;
        let sum = gate + up;
        z[t] = sum.relu().mul(sum);
    }
}

/// Where a tile goes.
#[schedule]
fn destinations(
    x: Local<bf16>,
    w: Local<bf16>,
    y: ReduceScattered<bf16>,
    z: AllReduced<bf16>,
    g: Accumulated<f32>,
) {
    let tiles = y.tiles((128, 128));
    let own = symmetric::<bf16>(y.shard(), slots = 2);
    let spare = symmetric::<f32>(z.whole(), slots = 1);
    #[gemm]
    for owner in ranks().from_me() {
        for t in tiles.of(owner) {
            let product = dot(x[t], w[t]);
            if owner == me() {
                y[t] = product;
            } else {
                y.on(owner)[t] += product;
            }
            own.on(owner)[0][t] = product;
            own.on(owner)[1][t] = product.gelu();
            spare[t] = product;
            g[t] += product.scale(0.5);
            z.everywhere()[t] = own[0][t] + own[1][t].scale(0.5) - spare.everywhere()[t].sum();
            z.everywhere()[t] += product;
        }
    }
}

/// Choices left open.
#[schedule]
fn choices(x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    const ROWS: u32 = 64;
    let tiles = y.tiles(tune((2 * 64, 256), (ROWS, 256)));
    #[gemm(k = tune(64, 128), stages = tune(4, 6))]
    for t in tiles.grouped(tune(1, 8)) {
        y[t] = dot(x[t], w[t]);
    }
}

/// Names in capitals are the schedule's own first.
#[schedule]
#[allow(non_snake_case)]
fn capitals(A: Local<bf16>, B: Local<bf16>, C: Out<bf16>) {
    let T = C.tiles((128, 128));
    #[gemm]
    for t in T {
        let P = dot(A[t], B[t]);
        C[t] = P + A[t];
    }
}

/// Math of the user's own.
#[epilogue]
pub fn leaky(x: f32, slope: f32) -> f32 {
    if x > 0.0 { x } else { slope * x }
}

/// Math of the user's own.
#[epilogue]
#[allow(clippy::eq_op, clippy::neg_cmp_op_on_partial_ord)] // NaN is the point
pub fn soft_clip(x: f32) -> f32 {
    const LIMIT: f32 = 30.0;
    let y = x / LIMIT;
    let bounded: f32 = y.tanh().clamp(-0.5, 0.5).max(-y).min(x);
    if y != y || (y > -2.0 && !(y >= 2.0)) {
        let z = LIMIT * bounded;
        leaky(z, 0.5)
    } else if y == 7.0 {
        -y.abs().sqrt()
    } else {
        (1.0 - (y.exp() + 1.0).ln()) * y
    }
}

mod elsewhere {
    #[counterflow::epilogue]
    pub fn halve(x: f32) -> f32 {
        0.5 * x
    }
}
use elsewhere::halve;

/// Math after the dot.
#[schedule]
fn epilogues(x: Local<bf16>, w: Local<bf16>, b: Vector<f32>, z: Local<bf16>, y: Out<bf16>) {
    const HALF: f32 = 0.5;
    let tiles = y.tiles((128, 128));
    let ready = counters(tiles);
    #[spare_warps]
    for t in tiles {
        ready[t].add(1);
    }
    #[gemm]
    for t in tiles {
        y[t] = dot(x[t], w[t])
            .bias(b)
            .gelu()
            .mul(z[t])
            .scale(0.5)
            .cast::<bf16>();
        y[t] = dot(x[t], w[t])
            .residual(z[t].wait(ready))
            .silu()
            .cast::<f16>();
        y[t] = (dot(x[t], w[t]) + b)
            .map(leaky, z[t].wait(ready[t]))
            .map(halve)
            .map(elsewhere::halve);
        y[t] = -(2.0 * dot(x[t], w[t]) - HALF).gelu_tanh() / (1.0 + z[t].exp());
        y[t] = dot(x[t], w[t])
            .map(soft_clip)
            .max(-0.5)
            .min(HALF)
            .scale(1.0 / 8.0);
        y[t] = dot(x[t].wait(ready), w[t])
            .sigmoid()
            .tanh()
            .ln()
            .sqrt()
            .abs()
            .erf();
    }
}

/// Independent work.
#[schedule]
fn overlap(a: Gathered<bf16>, x: Local<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = a.chunks(rows = 256);
    let tiles = y.tiles((128, 256));
    #[gemm]
    for t in tiles.grouped() {
        y[t] = dot(x[t], w[t]);
    }
    #[comm(ctas = 2)]
    for peer in ranks().after_me() {
        for c in chunks.of(me()) {
            a.on(peer)[c] = a[c];
        }
    }
}

pub fn main() {
    partitions();
    roles();
    shard_orders();
    tile_orders();
    hand_offs();
    gated();
    destinations();
    choices();
    capitals();
    epilogues();
    overlap();
    assert_eq!(leaky(-2.0, 0.5), -1.0);
}
