use counterflow::prelude::*;

#[schedule]
fn gather(x: Gathered<bf16>) {
    let chunks = x.chunks(rows = 128);
    let arrived = counters(chunks);
    #[comm(nam = halo, ctas = 2)]
    for peer in ranks().before_me() {
        for p in chunks.of(me()) {
            x.on(peer)[p] = x[p];
            arrived.on(peer)[p].add(1);
        }
    }
    #[comm(name = gemm, ctas = 2)]
    for p in chunks.of(me()) {
        arrived[p].wait();
    }
    #[comm(name = "halo", ctas = 2)]
    for p in chunks.of(me()) {
        arrived[p].wait();
    }
    #[comm(name = halo, name = ring, ctas = 2)]
    for p in chunks.of(me()) {
        arrived[p].wait();
    }
    #[comm(name = halo)]
    for p in chunks.of(me()) {
        arrived[p].wait();
    }
    #[spare_warps(name = halo)]
    for p in chunks.of(me()) {
        arrived[p].wait();
    }
}

fn main() {}
