//! What the types of a launcher forbid. Each line is a launch that could spoil memory.

use counterflow::prelude::*;
use counterflow::{Error, Op, Tensor, UserBuffer};

#[schedule]
fn gather(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = 128);
    let tiles = y.tiles((128, 256));
    let arrived = counters(chunks);

    #[comm(ctas = 4)]
    for peer in ranks().before_me() {
        for p in chunks.of(me()) {
            x.on(peer)[p] = x[p];
            arrived.on(peer)[p].add(1);
        }
    }
    #[gemm(k = 64)]
    for shard in ranks().from_me() {
        for t in tiles.of(shard) {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]);
        }
    }
}

#[schedule]
fn gathered_after(x: Local<bf16>, w: Local<bf16>, y: Gathered<bf16>) {
    let tiles = y.tiles((128, 256));
    let arrived = counters(tiles);

    #[gemm(k = 64)]
    for t in tiles.of(me()) {
        let tile = dot(x[t], w[t]);
        y[t] = tile;
        for peer in ranks().after_me() {
            y.on(peer)[t] = tile;
            arrived.on(peer)[t].add(1);
        }
    }
    #[gemm(k = 64)]
    for owner in ranks().after_me() {
        for t in tiles.of(owner) {
            arrived[t].wait();
        }
    }
}

fn a_gathered_result_that_is_shared(
    op: Op<GatheredAfterOp<'static>>,
    y: UserBuffer<bf16>,
    rank: &counterflow::Communicator,
) {
    let _ = op.on(rank).y(&y);
}

struct Given {
    op: Op<GatherOp<'static>>,
    x: UserBuffer<bf16>,
    w: Tensor<bf16>,
    y: Tensor<bf16>,
}

fn an_operand_that_is_the_output(Given { op, x, mut y, .. }: Given, rank: &counterflow::Communicator) {
    let _ = op.on(rank).x(&x).w(&y).y(&mut y).launch();
}

fn what_peers_write_outside_the_heap(Given { op, w, .. }: Given, rank: &counterflow::Communicator) {
    let _ = op.on(rank).x(&w).w(&w);
}

fn a_name_that_the_schedule_does_not_have(Given { op, x, .. }: Given, rank: &counterflow::Communicator) {
    let _ = op.on(rank).z(&x);
}

fn main() -> Result<(), Error> {
    Ok(())
}
