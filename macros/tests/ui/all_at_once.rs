use counterflow::prelude::*;

#[schedule]
pub fn ag_gemm(x: Gatherd<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(128);
    let tiles = y.tiles(tune((128, 256), 256));
    let arrived = counters(chnks);

    #[com(ctas = tune(2, 4, 8))]
    for peer in ranks().beforeme() {
        for p in chunks.of(me()) {
            x.on(peer)[p] = x[p];
            arrived.on(peer)[p].ad(1);
        }
    }
    #[gemm(k = 64, clusters = (2, 1))]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped() {
            arrived[t.row()].wait();
            y[t] = dott(x[t], w[t]).gelu;
        }
    }
}

pub fn caller() -> counterflow::Program {
    ag_gemm()
}

fn main() {}
