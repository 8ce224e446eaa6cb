use crate::prelude::*;

/// y = reduce_scatter(gelu(all_gather(x) · upᵀ) · downᵀ): an MLP in one launch.
///
/// Use it for a column-parallel layer and the row-parallel one behind it, where nothing else reads what is between them: rows
/// move while the tensor cores work on others, and the second layer starts on the rows whose columns are all there.
///
/// ```
/// # use counterflow::{Communicator, prelude::bf16, schedules::MlpOp};
/// # Communicator::each(&Communicator::emulated(2)?, |rank| {
/// # rank.reserve(2 << 20)?;
/// let op = rank.op_of::<MlpOp>().up_to(64, 32, 16).build()?; // rows, columns between the layers, columns of x and y
/// let x = rank.allocate::<bf16>("x", [64, 16])?; // all rows; half of them are this rank's own
/// let (up, down) = (rank.zeros::<bf16>([32, 16])?, rank.zeros::<bf16>([16, 32])?);
/// let mut y = rank.allocate::<bf16>("y", [32, 16])?; // this rank's half of the sum's 64 rows
/// op.on(rank).x(&x).up(&up).down(&down).y(&mut y).launch()?.wait()
/// # })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[schedule]
pub fn mlp(x: Gathered<bf16>, up: Local<bf16>, down: Local<bf16>, y: ReduceScattered<bf16>) {
    let chunks = x.chunks(rows = tune(128, 256));
    let arrived = counters(chunks);
    let tiles = y.tiles(tune((128, 256), (256, 128), (128, 160), (128, 128)));
    let partial = symmetric::<bf16>(y, slots = world());
    let landed = counters(world(), tiles);
    let hidden = symmetric::<bf16>();
    let hidden_tiles = hidden.tiles(tune((128, 256), (256, 128), (128, 160), (128, 128)));
    let row_blocks = hidden.chunks(rows = 128);
    let ready = counters(row_blocks);

    #[comm(ctas = tune(8, 4, 2))]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in hidden_tiles.of(shard).grouped() {
            arrived[t.rows()].wait();
            hidden[t] = dot(x[t], up[t]).gelu();
            ready[t.rows()].add(1);
        }
    }
    #[gemm]
    for owner in ranks().after_me() {
        for t in tiles.of(owner).grouped() {
            ready[t.rows()].wait();
            partial.on(owner)[me()][t] = dot(hidden[t], down[t]);
            landed.on(owner)[me()][t].add(1);
        }
    }
    #[gemm]
    for t in tiles.of(me()).grouped() {
        ready[t.rows()].wait();
        y[t] = dot(hidden[t], down[t]) + partial[others()][t].wait(landed).sum();
    }
}
