use counterflow::prelude::*;

#[schedule]
fn planes(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles((128, 256));
    let scratch = symmetric::<bf16>(x, slots = 1);
    #[comm(ctas = 2)]
    for peer in ranks().before_me() {
        for p in chunks.of(me()) {
            x.on(peer).scales()[p] = x[p];
            x.on(peer).scales()[p] = x.data()[p];
            x.scales().on(peer)[p] = x.scales()[p];
            x.on(peer)[p].scales() = x.scales()[p];
            x.on(peer).data()[p] = x[p].data();
            x.on(peer).scales(p) = x.scales()[p];
            scratch.on(peer).data()[p] = x.data()[p];
        }
    }
    #[gemm]
    for t in tiles {
        y.data()[t] = dot(x[t], w.scales()[t]);
    }
}

fn main() {}
