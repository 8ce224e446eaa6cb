// gemm_ar_multicast  sm90  bf16  nt  tiles 128x256x64  3 stages
// What each role does, in order; every wait, fence, release and acquire is a prelude function that says why.
// `#pragma unroll 1`: the loop's body stands once in the machine code, where tests count instructions.
#include "prelude.cuh"
#include "multicast.cuh"

typedef bf16 T;  // of operands and results
constexpr u32 TILE_M = 128, TILE_N = 256, TILE_K = 64;
constexpr u32 CONSUMERS = 2;  // warpgroups, 64 rows each
constexpr u32 STAGES = 3;  // stages of x and w in flight
constexpr u32 SUBTILES = 4;  // output subtiles in flight
constexpr u32 PARTIAL_BOX_ROWS = 32;  // of an operand's box, loaded if one of them exists
constexpr u32 SUBTILE_N = 64;  // columns of an output subtile

// Shared memory, from a 1024-byte aligned base (the swizzle's period).
constexpr u32 X_AT = 0, X_BYTES = 16384;
constexpr u32 W_AT = 49152, W_BYTES = 32768;
constexpr u32 SUBTILE_AT = 147456, SUBTILE_BYTES = 16384;
constexpr u32 STAGE_FULL_AT = 212992, STAGE_EMPTY_AT = 213016;
constexpr u32 SUBTILE_FULL_AT = 213040, SUBTILE_EMPTY_AT = 213072;
constexpr u32 SHARED_BYTES = 213104;
static_assert(SHARED_BYTES <= 232448);  // what a CTA may have

// Names for stall records.
enum Role : u32 { LOAD, STORE, MULTIPLY };
enum What : u32 { STAGE_FULL, STAGE_EMPTY, SUBTILE_FULL, SUBTILE_EMPTY, READY, DONE, READY_Y, FREE_PARTIAL };

// What the host passes for one launch.
struct Plan {
    Cells cells;
    char* heap_everywhere;  // slot 0 of the heap on every rank at once: multimem alone
    u32 m;  // rows of the product, over all shards
    u32 k;  // its depth
    u32 n;  // its columns
    u32 rows;  // of m, in a full shard
    u32 partial_shard;  // the partial shard: it has some rows, but not all, and a map of its own
    u32 me;  // this rank
    u32 world;  // how many ranks there are
    u32 ready;  // a counter: its first cell
    u32 done;  // a counter: its first cell
    u32 ready_y;  // a counter: its first cell
    u32 free_partial;  // a counter: its first cell
    u32 tiles_m;  // rows of tiles in a shard, each with its cells
};

// Rows of a shard: the split rounds up, so the last ones may be short, or empty.
__device__ __forceinline__ u32 rows_of(const Plan& plan, u32 shard) {
    const u32 first = shard * plan.rows;
    return first >= plan.m ? 0 : min(plan.rows, plan.m - first);
}

// A cell's number in ready[rank: plan.world][shard: plan.world][row: plan.tiles_m][column: tiles_n].
__device__ __forceinline__ u32 cell_of_ready(const Plan& plan, u32 tiles_n, u32 rank, u32 shard, u32 row, u32 column) {
    return rank * (plan.world * plan.tiles_m * tiles_n) + (shard * plan.tiles_m + row) * tiles_n + column;
}

// A cell's number in done[shard: plan.world][row: plan.tiles_m][column: tiles_n].
__device__ __forceinline__ u32 cell_of_done(const Plan& plan, u32 tiles_n, u32 shard, u32 row, u32 column) {
    return (shard * plan.tiles_m + row) * tiles_n + column;
}

// Tile `index` of a grid, grouped(8).
__device__ __forceinline__ Tile grouped_8(u32 index, u32 rows, u32 columns) {
    const u32 sweep = 8 * columns;
    const u32 first = index / sweep * 8;
    const u32 within = index % sweep;
    const u32 height = min(rows - first, 8);
    return {first + within % height, within / height};
}

// Tile `index` of a grid, row_major.
__device__ __forceinline__ Tile row_major(u32 index, u32 rows, u32 columns) {
    return {index / columns, index % columns};
}

extern "C" __global__ void __launch_bounds__(384, 1)
gemm_ar_multicast(
        const __grid_constant__ TensorMap x,  // own memory, one matrix; boxes of 128x64
        const __grid_constant__ TensorMap x_partial_box,  // own memory, one matrix; boxes of 32x64
        const __grid_constant__ TensorMap w,  // own memory, one matrix; boxes of 256x64
        const __grid_constant__ TensorMap w_partial_box,  // own memory, one matrix; boxes of 32x64
        // everyone's, slot by slot, of a shard a rank each: others write it meanwhile; boxes of 128x64
        const __grid_constant__ TensorMap partial,
        const __grid_constant__ EveryCopy partial_everywhere,  // on every rank at once: multimem alone
        const __grid_constant__ EveryCopy y_everywhere,  // on every rank at once: multimem alone
        const __grid_constant__ EveryCopy y_everywhere_partial_shard,  // the partial shard
        const __grid_constant__ Plan plan,
        const __grid_constant__ Watch watch) {
    extern __shared__ __align__(1024) u8 shared[];
    const u32 base = shared_address(shared);
    const u32 warp = warp_index();
    const u32 lane = threadIdx.x % 32;
    const Buffer<X_AT, X_BYTES> smem_x = {base};
    const Buffer<W_AT, W_BYTES> smem_w = {base};
    const Buffer<SUBTILE_AT, SUBTILE_BYTES> smem_subtile = {base};
    const Barriers<STAGE_FULL_AT, STAGE_FULL, Scope::Cta> stage_full = {base};
    const Barriers<STAGE_EMPTY_AT, STAGE_EMPTY, Scope::Cta> stage_empty = {base};
    const Barriers<SUBTILE_FULL_AT, SUBTILE_FULL, Scope::Cta> subtile_full = {base};
    const Barriers<SUBTILE_EMPTY_AT, SUBTILE_EMPTY, Scope::Cta> subtile_empty = {base};

    if (warp == 0 && elect_one()) {
        tma_prefetch_map(x);
        tma_prefetch_map(x_partial_box);
        tma_prefetch_map(w);
        tma_prefetch_map(w_partial_box);
        tma_prefetch_map(partial);
        stage_full.init(STAGES, 1, stage_empty, CONSUMERS * 4);
        subtile_full.init(SUBTILES, CONSUMERS * 4, subtile_empty, 1);
        mbarrier_init_fence();
    }
    __syncthreads();

    const u32 me = plan.me, world = plan.world;
    const u32 tiles_n = ceil_div(plan.n, TILE_N);
    const u32 steps = ceil_div(plan.k, TILE_K);

    if (warp < 4) {
        reg_dealloc<56>();
        if (warp == 0) {  // load
            TileScheduler scheduler(blockIdx.x, gridDim.x);
            PipelineState<STAGES> stage;
            if (blockIdx.x == 0) {
                // signal ready_y.on(peer)[me] += 1 (credit: my y may be touched)
                #pragma unroll 1
                for (u32 peer_step = 0; peer_step < world - 1; ++peer_step) {
                    const u32 peer = (me + 1 + peer_step) % world;
                    if (elect_one()) {
                        counter_add(plan.cells, peer, plan.ready_y + me, 1);
                    }
                }
            }
            #pragma unroll 1
            for (u32 owner_step = 0; owner_step < world; ++owner_step) {
                const u32 owner = (me + owner_step) % world;
                const u32 tiles_m = ceil_div(rows_of(plan, owner), TILE_M);
                const u32 tiles = tiles_m * tiles_n;
                for (; scheduler.has(tiles); scheduler.next()) {
                    const Tile t = grouped_8(scheduler.tile(), tiles_m, tiles_n);
                    // acc0 += dot(x[t.rows, :], w[t.columns, :])
                    const u32 x_rows =
                        min(ceil_div(rows_of(plan, owner) - t.row * TILE_M, PARTIAL_BOX_ROWS) * PARTIAL_BOX_ROWS,
                        TILE_M);
                    const u32 w_rows =
                        min(ceil_div(plan.n - t.column * TILE_N, PARTIAL_BOX_ROWS) * PARTIAL_BOX_ROWS, TILE_N);
                    #pragma unroll 1
                    for (u32 step = 0; step < steps; ++step) {
                        stage_empty[stage.index].wait(stage.phase ^ 1, watch, LOAD);
                        const auto full = stage_full[stage.index];
                        if (elect_one()) {
                            full.expect(x_rows * TILE_K * 2 + w_rows * TILE_K * 2);
                            tma_load_partial<PARTIAL_BOX_ROWS, TILE_M>(smem_x[stage.index], x, x_partial_box, x_rows,
                                full.at, step * TILE_K, owner * plan.rows + t.row * TILE_M);
                            tma_load_partial<PARTIAL_BOX_ROWS, TILE_N>(smem_w[stage.index], w, w_partial_box, w_rows,
                                full.at, step * TILE_K, t.column * TILE_N);
                        }
                        stage.advance();
                    }
                }
                scheduler.end_loop(tiles);
            }
            const u32 my_tiles_m = ceil_div(rows_of(plan, me), TILE_M);
            const u32 my_tiles = my_tiles_m * tiles_n;
            for (; scheduler.has(my_tiles); scheduler.next()) {
                const Tile t = grouped_8(scheduler.tile(), my_tiles_m, tiles_n);
                // acc1 += sum(partial.everywhere[t])
                // wait ready[all][t]
                #pragma unroll 1
                for (u32 from = 0; from < world; ++from) {
                    const u32 ready_cell = cell_of_ready(plan, tiles_n, from, me, t.row, t.column);
                    if (elect_one()) {
                        counter_wait(plan.cells, me, plan.ready + ready_cell, watch, LOAD, READY);
                        counter_advance(plan.cells, me, plan.ready + ready_cell);  // no one else waits for it
                    }
                }
                if (elect_one()) {
                    fence_async_global();
                }
                fence_alias();
                __syncwarp();
                #pragma unroll 1
                for (u32 part = 0; part < TILE_N / SUBTILE_N; ++part) {
                    stage_empty[stage.index].wait(stage.phase ^ 1, watch, LOAD);
                    multicast_sum<T, 128, 64>(smem_x[stage.index], partial_everywhere,
                        t.column * TILE_N + part * SUBTILE_N, t.row * TILE_M, me);
                    fence_alias();
                    __syncwarp();
                    if (elect_one()) {
                        stage_full[stage.index].arrive();
                    }
                    stage.advance();
                }
            }
            scheduler.end_loop(my_tiles);
            #pragma unroll 1
            for (u32 owner_step = 0; owner_step < world - 1; ++owner_step) {
                const u32 owner = (me + 1 + owner_step) % world;
                const u32 tiles_m = ceil_div(rows_of(plan, owner), TILE_M);
                const u32 tiles = tiles_m * tiles_n;
                for (; scheduler.has(tiles); scheduler.next()) {
                    const Tile t = row_major(scheduler.tile(), tiles_m, tiles_n);
                    // wait done[t]
                    const u32 done_cell = cell_of_done(plan, tiles_n, owner, t.row, t.column);
                    if (elect_one()) {
                        counter_wait(plan.cells, me, plan.done + done_cell, watch, LOAD, DONE);
                        counter_advance(plan.cells, me, plan.done + done_cell);  // no one else waits for it
                        fence_async_global();
                    }
                }
                scheduler.end_loop(tiles);
            }
        } else if (warp == 1) {  // store
            TileScheduler scheduler(blockIdx.x, gridDim.x);
            PipelineState<SUBTILES> subtile;
            #pragma unroll 1
            for (u32 owner_step = 0; owner_step < world; ++owner_step) {
                const u32 owner = (me + owner_step) % world;
                const u32 tiles_m = ceil_div(rows_of(plan, owner), TILE_M);
                const u32 tiles = tiles_m * tiles_n;
                for (; scheduler.has(tiles); scheduler.next()) {
                    const Tile t = grouped_8(scheduler.tile(), tiles_m, tiles_n);
                    // wait free_partial[others] (credit: partial was read in the last launch)
                    #pragma unroll 1
                    for (u32 from = 0; from < world; ++from) {
                        if (from == me) continue;
                        if (elect_one()) {
                            counter_wait_before(plan.cells, me, plan.free_partial + from, watch, STORE, FREE_PARTIAL);
                        }
                    }
                    if (elect_one()) {
                        fence_async_global();
                    }
                    // partial[t] = acc0
                    #pragma unroll 1
                    for (u32 part = 0; part < TILE_N / SUBTILE_N; ++part) {
                        subtile_full[subtile.index].wait(subtile.phase, watch, STORE);
                        if (elect_one()) {
                            tma_store(partial, smem_subtile[subtile.index], t.column * TILE_N + part * SUBTILE_N,
                                t.row * TILE_M, owner, me);
                            tma_commit();
                            tma_wait_read<0>();
                            subtile_empty[subtile.index].arrive();
                        }
                        subtile.advance();
                    }
                    if (elect_one()) {
                        tma_wait<0>();
                    }
                    // signal ready.on(owner)[me][t] += 1
                    const u32 ready_cell = cell_of_ready(plan, tiles_n, me, owner, t.row, t.column);
                    if (elect_one()) {
                        counter_add(plan.cells, owner, plan.ready + ready_cell, 1);
                    }
                }
                scheduler.end_loop(tiles);
            }
            const u32 my_tiles_m = ceil_div(rows_of(plan, me), TILE_M);
            const u32 my_tiles = my_tiles_m * tiles_n;
            for (; scheduler.has(my_tiles); scheduler.next()) {
                const Tile t = grouped_8(scheduler.tile(), my_tiles_m, tiles_n);
                // wait ready_y[others] (credit: its y may be touched)
                #pragma unroll 1
                for (u32 from = 0; from < world; ++from) {
                    if (from == me) continue;
                    if (elect_one()) {
                        counter_wait(plan.cells, me, plan.ready_y + from, watch, STORE, READY_Y);
                    }
                }
                if (elect_one()) {
                    fence_async_global();
                }
                fence_alias();
                __syncwarp();
                // y.everywhere[t] = acc1
                #pragma unroll 1
                for (u32 part = 0; part < TILE_N / SUBTILE_N; ++part) {
                    subtile_full[subtile.index].wait(subtile.phase, watch, STORE);
                    multicast_store<T, 128, 64>(me == plan.partial_shard ? y_everywhere_partial_shard : y_everywhere,
                        smem_subtile[subtile.index], t.column * TILE_N + part * SUBTILE_N, t.row * TILE_M, me);
                    fence_async_shared();
                    __syncwarp();
                    if (elect_one()) {
                        subtile_empty[subtile.index].arrive();
                    }
                    subtile.advance();
                }
                fence_alias();
                __syncwarp();
                // signal done.everywhere[t] += 1
                const u32 done_cell = cell_of_done(plan, tiles_n, me, t.row, t.column);
                if (elect_one()) {
                    counter_add_everywhere(plan.heap_everywhere, plan.cells, plan.done + done_cell, 1);
                }
            }
            if (elect_one()) {
                tma_wait<0>();
            }
        }
    } else {  // multiply
        reg_alloc<224>();
        const u32 consumer = warp / 4 - 1;
        const u64 x_tile = wgmma_descriptor(smem_x[0]) + consumer * WGMMA_64_ROWS;
        const u64 w_tile = wgmma_descriptor(smem_w[0]);
        const u32 first_row = consumer * 64 + warp % 4 * 16;  // of this warp's 16 in a tile
        TileScheduler scheduler(blockIdx.x, gridDim.x);
        PipelineState<STAGES> stage;
        PipelineState<SUBTILES> subtile;
        #pragma unroll 1
        for (u32 owner_step = 0; owner_step < world; ++owner_step) {
            const u32 owner = (me + owner_step) % world;
            const u32 tiles_m = ceil_div(rows_of(plan, owner), TILE_M);
            const u32 tiles = tiles_m * tiles_n;
            for (; scheduler.has(tiles); scheduler.next()) {
                // acc0 += dot(x[t.rows, :], w[t.columns, :])
                float acc[TILE_N / 2];  // this thread's of 64 rows
                u32 previous = 0;
                #pragma unroll 1
                for (u32 step = 0; step < steps; ++step) {
                    stage_full[stage.index].wait(stage.phase, watch, MULTIPLY);
                    wgmma_fence();
                    const u64 xs = wgmma_at<X_BYTES>(x_tile, stage.index), ws = wgmma_at<W_BYTES>(w_tile, stage.index);
                    #pragma unroll
                    for (u32 k = 0; k < TILE_K / 16; ++k)
                        wgmma_m64k16<TILE_N>(acc, xs + k * WGMMA_K_STEP, ws + k * WGMMA_K_STEP, step + k != 0, T());
                    wgmma_commit();
                    wgmma_wait<1>();  // the step before this one is done with its stage
                    if (step != 0 && lane == 0) stage_empty[previous].arrive();
                    previous = stage.index;
                    stage.advance();
                }
                wgmma_wait<0>();
                if (lane == 0) stage_empty[previous].arrive();
                // partial[t] = acc0
                #pragma unroll
                for (u32 part = 0; part < TILE_N / SUBTILE_N; ++part) {
                    subtile_empty[subtile.index].wait(subtile.phase ^ 1, watch, MULTIPLY);
                    subtile_store<T, SUBTILE_N>(acc + part * SUBTILE_N / 2, smem_subtile[subtile.index], first_row,
                        lane);
                    fence_async_shared();
                    __syncwarp();
                    if (lane == 0) subtile_full[subtile.index].arrive();
                    subtile.advance();
                }
            }
            scheduler.end_loop(tiles);
        }
        const u32 my_tiles_m = ceil_div(rows_of(plan, me), TILE_M);
        const u32 my_tiles = my_tiles_m * tiles_n;
        for (; scheduler.has(my_tiles); scheduler.next()) {
            // y.everywhere[t] = acc1
            #pragma unroll
            for (u32 part = 0; part < TILE_N / SUBTILE_N; ++part) {
                subtile_empty[subtile.index].wait(subtile.phase ^ 1, watch, MULTIPLY);
                float partial[SUBTILE_N / 2] = {};
                stage_full[stage.index].wait(stage.phase, watch, MULTIPLY);
                subtile_add<T, SUBTILE_N>(partial, smem_x[stage.index], first_row, lane);
                fence_async_shared();
                __syncwarp();
                if (lane == 0) stage_empty[stage.index].arrive();
                stage.advance();
                subtile_store<T, SUBTILE_N>(partial, smem_subtile[subtile.index], first_row, lane);
                fence_async_shared();
                __syncwarp();
                if (lane == 0) subtile_full[subtile.index].arrive();
                subtile.advance();
            }
        }
    }

    __syncwarp();  // the one thread of a role meets its warp again
    __syncthreads();
    if (warp == 0) {
        // Every CTA is done with its waits, loads and stores when the last one comes here.
        const bool last = __shfl_sync(~0u, threadIdx.x == 0 && last_of(plan.cells.finished, gridDim.x), 0);
        if (last) {
            if (threadIdx.x == 0) {
                // signal free_partial.on(peer)[me] += 1 (credit: partial may be written in the next launch)
                #pragma unroll 1
                for (u32 peer_step = 0; peer_step < world - 1; ++peer_step) {
                    const u32 peer = (me + 1 + peer_step) % world;
                    counter_add(plan.cells, peer, plan.free_partial + me, 1);
                }
            }
            __syncwarp();
            counters_advance(plan.cells, me, plan.ready_y, world, threadIdx.x);
            counters_advance(plan.cells, me, plan.free_partial, world, threadIdx.x);
        }
    }
}
