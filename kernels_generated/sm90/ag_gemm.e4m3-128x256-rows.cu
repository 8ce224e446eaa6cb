// ag_gemm  sm90  e4m3  nt  tiles 128x256x128  3 stages
// What each role does, in order; every wait, fence, release and acquire is a prelude function that says why.
// `#pragma unroll 1`: the loop's body stands once in the machine code, where tests count instructions.
#include "prelude.cuh"

typedef e4m3 T;  // of operands
constexpr u32 TILE_M = 128, TILE_N = 256, TILE_K = 128;
constexpr u32 CONSUMERS = 2;  // warpgroups, 64 rows each
constexpr u32 STAGES = 3;  // stages of x and w in flight
constexpr u32 SUBTILES = 4;  // output subtiles in flight
constexpr u32 STAGING_SLOTS = 12;  // staging buffers of a CTA that moves data, where stages and subtiles will be
constexpr u32 STAGING_N_NARROW = 128;  // the same, of elements of one byte
constexpr u32 BATCH = 16;  // staging buffers of a chunk that one CTA sends, with one signal
constexpr u32 COMM_CTAS = 8;  // blocks that move data: such blocks come first in the grid
constexpr u32 CHUNK = 128;  // rows that have one counter cell
constexpr u32 PARTIAL_BOX_ROWS = 32;  // of an operand's box, loaded if one of them exists
constexpr u32 SENDING = 5;  // stores of staging buffers under way that may still read them
constexpr u32 SUBTILE_N = 64;  // columns of an output subtile

// Shared memory, from a 1024-byte aligned base (the swizzle's period).
constexpr u32 X_AT = 0, X_BYTES = 16384;
constexpr u32 W_AT = 49152, W_BYTES = 32768;
constexpr u32 SUBTILE_AT = 147456, SUBTILE_BYTES = 16384;
constexpr u32 STAGING_AT = 0, STAGING_BYTES = 16384;
constexpr u32 STAGE_FULL_AT = 212992, STAGE_EMPTY_AT = 213016;
constexpr u32 SUBTILE_FULL_AT = 213040, SUBTILE_EMPTY_AT = 213072;
constexpr u32 STAGING_FULL_AT = 213104, STAGING_EMPTY_AT = 213200;
constexpr u32 SHARED_BYTES = 213296;
static_assert(SHARED_BYTES <= 232448);  // what a CTA may have

// Names for stall records.
enum Role : u32 { LOAD, STORE, MULTIPLY };
enum What : u32 { STAGE_FULL, STAGE_EMPTY, SUBTILE_FULL, SUBTILE_EMPTY, STAGING_FULL, STAGING_EMPTY, ARRIVED, READY_X };

// What the host passes for one launch.
struct Plan {
    Cells cells;
    const float* x_scale;  // a number a row
    const float* w_scale;  // a number a column
    u32 m;  // rows of the product, over all shards
    u32 k;  // its depth
    u32 n;  // its columns
    u32 rows;  // of m, in a full shard
    u32 partial_shard;  // the partial shard: it has some rows, but not all, and a map of its own
    u32 me;  // this rank
    u32 world;  // how many ranks there are
    u32 arrived;  // a counter: its first cell
    u32 ready_x;  // a counter: its first cell
    u32 chunks_m;  // rows of chunks in a shard, each with its cells
    u32 late_join;  // waves of items before the first blocks take part
};

// Rows of a shard: the split rounds up, so the last ones may be short, or empty.
__device__ __forceinline__ u32 rows_of(const Plan& plan, u32 shard) {
    const u32 first = shard * plan.rows;
    return first >= plan.m ? 0 : min(plan.rows, plan.m - first);
}

// A cell's number in arrived[shard: plan.world][row: plan.chunks_m].
__device__ __forceinline__ u32 cell_of_arrived(const Plan& plan, u32 shard, u32 row) {
    return shard * plan.chunks_m + row;
}

// Tile `index` of a grid, grouped(8).
__device__ __forceinline__ Tile grouped_8(u32 index, u32 rows, u32 columns) {
    const u32 sweep = 8 * columns;
    const u32 first = index / sweep * 8;
    const u32 within = index % sweep;
    const u32 height = min(rows - first, 8);
    return {first + within % height, within / height};
}

// What a store writes, before it is rounded.
__device__ __forceinline__ float y_value(float product, float x_scale, float w_scale) {
    return product * x_scale * w_scale;
}

extern "C" __global__ void __launch_bounds__(384, 1)
ag_gemm(
        const __grid_constant__ TensorMap x,  // everyone's, a shard a rank: peers write it meanwhile; boxes of 128x128
        const __grid_constant__ TensorMap x_partial_shard,  // the partial shard; boxes of 128x128
        // everyone's, a shard a rank: peers write it meanwhile; boxes of 32x128
        const __grid_constant__ TensorMap x_partial_box,
        const __grid_constant__ TensorMap w,  // own memory, one matrix; boxes of 256x128
        const __grid_constant__ TensorMap w_partial_box,  // own memory, one matrix; boxes of 32x128
        const __grid_constant__ TensorMap y,  // own memory, a matrix for each rank's shard; boxes of 128x64
        const __grid_constant__ TensorMap y_partial_shard,  // the partial shard; boxes of 128x64
        const __grid_constant__ Plan plan,
        const __grid_constant__ Watch watch) {
    extern __shared__ __align__(1024) u8 shared[];
    const u32 base = shared_address(shared);
    const u32 warp = warp_index();
    const u32 lane = threadIdx.x % 32;
    const Buffer<X_AT, X_BYTES> smem_x = {base};
    const Buffer<W_AT, W_BYTES> smem_w = {base};
    const Buffer<SUBTILE_AT, SUBTILE_BYTES> smem_subtile = {base};
    const Buffer<STAGING_AT, STAGING_BYTES> smem_staging = {base};
    const Barriers<STAGE_FULL_AT, STAGE_FULL, Scope::Cta> stage_full = {base};
    const Barriers<STAGE_EMPTY_AT, STAGE_EMPTY, Scope::Cta> stage_empty = {base};
    const Barriers<SUBTILE_FULL_AT, SUBTILE_FULL, Scope::Cta> subtile_full = {base};
    const Barriers<SUBTILE_EMPTY_AT, SUBTILE_EMPTY, Scope::Cta> subtile_empty = {base};
    const Barriers<STAGING_FULL_AT, STAGING_FULL, Scope::Cta> staging_full = {base};
    const Barriers<STAGING_EMPTY_AT, STAGING_EMPTY, Scope::Cta> staging_empty = {base};

    if (warp == 0 && elect_one()) {
        tma_prefetch_map(x);
        tma_prefetch_map(x_partial_box);
        tma_prefetch_map(w);
        tma_prefetch_map(w_partial_box);
        tma_prefetch_map(y);
        stage_full.init(STAGES, 1, stage_empty, CONSUMERS * 4);
        subtile_full.init(SUBTILES, CONSUMERS * 4, subtile_empty, 1);
        staging_full.init(STAGING_SLOTS, 1, staging_empty, 1);
        mbarrier_init_fence();
    }
    __syncthreads();

    const u32 me = plan.me, world = plan.world;
    const u32 tiles_n = ceil_div(plan.n, TILE_N);
    const u32 steps = ceil_div(plan.k, TILE_K);

    if (warp < 4) {
        reg_dealloc<72>();
        if (warp == 0 && elect_one()) {  // load
            // The first CTAs move data before they take items of the GEMM.
            if (blockIdx.x < COMM_CTAS) {
                TileScheduler scheduler(blockIdx.x, COMM_CTAS);
                PipelineState<STAGING_SLOTS> staging;
                if (blockIdx.x == 0) {
                    // signal ready_x.on(peer)[me] += 1 (credit: my x may be touched)
                    #pragma unroll 1
                    for (u32 peer_step = 0; peer_step < world - 1; ++peer_step) {
                        const u32 peer = (me + 1 + peer_step) % world;
                        counter_add(plan.cells, peer, plan.ready_x + me, 1);
                    }
                }
                #pragma unroll 1
                for (u32 peer_step = 0; peer_step < world - 1; ++peer_step) {
                    const u32 chunks = ceil_div(rows_of(plan, me), CHUNK);
                    const u32 batches = ceil_div(ceil_div(plan.k, STAGING_N_NARROW), BATCH);
                    const u32 items = chunks * batches;
                    for (; scheduler.has(items); scheduler.next()) {
                        const u32 c_row = scheduler.tile() / batches;
                        const u32 batch = scheduler.tile() % batches;
                        // x.on(peer)[c] = x[c]
                        #pragma unroll 1
                        for (u32 i = 0; i < BATCH; ++i) {
                            staging_empty[staging.index].wait(staging.phase ^ 1, watch, LOAD);
                            const auto full = staging_full[staging.index];
                            full.expect(STAGING_BYTES);
                            tma_load(smem_staging[staging.index], x, full.at, (batch * BATCH + i) * STAGING_N_NARROW,
                                c_row * CHUNK, me, me);
                            staging.advance();
                        }
                    }
                    scheduler.end_loop(items);
                }
                // All staging buffers were sent: stages and subtiles may lie over them.
                #pragma unroll 1
                for (u32 i = 0; i < STAGING_SLOTS; ++i) {
                    staging_empty[staging.index].wait(staging.phase ^ 1, watch, LOAD);
                    staging.advance();
                }
            }
            TileScheduler scheduler = TileScheduler::late_comm(plan.late_join, COMM_CTAS);
            PipelineState<STAGES> stage;
            #pragma unroll 1
            for (u32 shard_step = 0; shard_step < world; ++shard_step) {
                const u32 shard = (me + shard_step) % world;
                const u32 tiles_m = ceil_div(rows_of(plan, shard), TILE_M);
                const u32 tiles = tiles_m * tiles_n;
                for (; scheduler.has(tiles); scheduler.next()) {
                    const Tile t = grouped_8(scheduler.tile(), tiles_m, tiles_n);
                    // acc0 += dot(x[t.rows, :], w[t.columns, :])
                    const u32 x_rows =
                        min(ceil_div(rows_of(plan, shard) - t.row * TILE_M, PARTIAL_BOX_ROWS) * PARTIAL_BOX_ROWS,
                        TILE_M);
                    const u32 w_rows =
                        min(ceil_div(plan.n - t.column * TILE_N, PARTIAL_BOX_ROWS) * PARTIAL_BOX_ROWS, TILE_N);
                    #pragma unroll 1
                    for (u32 step = 0; step < steps; ++step) {
                        stage_empty[stage.index].wait(stage.phase ^ 1, watch, LOAD);
                        const auto full = stage_full[stage.index];
                        tma_load_partial<PARTIAL_BOX_ROWS, TILE_N>(smem_w[stage.index], w, w_partial_box, w_rows,
                            full.at, step * TILE_K, t.column * TILE_N);
                        if (step == 0) {
                            // wait arrived[t.rows]
                            const u32 arrived_cell = cell_of_arrived(plan, shard, t.row * TILE_M / CHUNK);
                            counter_wait(plan.cells, me, plan.arrived + arrived_cell, watch, LOAD, ARRIVED);
                            fence_async_global();
                        }
                        full.expect(x_rows * TILE_K + w_rows * TILE_K);
                        tma_load_partial<PARTIAL_BOX_ROWS, TILE_M>(smem_x[stage.index], x, x_partial_box, x_rows,
                            full.at, step * TILE_K, t.row * TILE_M, shard, me);
                        stage.advance();
                    }
                }
                scheduler.end_loop(tiles);
            }
        } else if (warp == 1 && elect_one()) {  // store
            // The first CTAs move data before they take items of the GEMM.
            if (blockIdx.x < COMM_CTAS) {
                TileScheduler scheduler(blockIdx.x, COMM_CTAS);
                PipelineState<STAGING_SLOTS> staging;
                u32 held = 0;  // stores whose staging buffers may not have been read
                PipelineState<STAGING_SLOTS> oldest;  // the first of those
                Counter* unsignalled = nullptr;  // of the item before, while its stores are in flight
                #pragma unroll 1
                for (u32 peer_step = 0; peer_step < world - 1; ++peer_step) {
                    const u32 peer = (me + world - 1 - peer_step) % world;
                    const u32 chunks = ceil_div(rows_of(plan, me), CHUNK);
                    const u32 batches = ceil_div(ceil_div(plan.k, STAGING_N_NARROW), BATCH);
                    const u32 items = chunks * batches;
                    // Without items here there is nothing to wait for.
                    if (scheduler.has(items)) {
                        // wait ready_x[peer] (credit: its x may be touched)
                        counter_wait(plan.cells, me, plan.ready_x + peer, watch, STORE, READY_X);
                        fence_async_global();
                    }
                    for (; scheduler.has(items); scheduler.next()) {
                        const u32 c_row = scheduler.tile() / batches;
                        const u32 batch = scheduler.tile() % batches;
                        // x.on(peer)[c] = x[c]
                        #pragma unroll 1
                        for (u32 i = 0; i < BATCH; ++i) {
                            staging_full[staging.index].wait(staging.phase, watch, STORE);
                            tma_store(me == plan.partial_shard ? x_partial_shard : x, smem_staging[staging.index],
                                (batch * BATCH + i) * STAGING_N_NARROW, c_row * CHUNK, me, peer);
                            ++held;
                            tma_commit();
                            staging.advance();
                            tma_wait_read<SENDING>();  // the latest stores may still read what they send
                            for (; held > SENDING; --held, oldest.advance()) staging_empty[oldest.index].arrive();
                        }
                        // x.scale.on(peer)[c.rows, :] = x.scale[c.rows, :]
                        if (batch == 0) {
                            scales_copy(scales_on(plan.x_scale, plan.cells, me, peer) + me * plan.rows + c_row * CHUNK,
                                scales_on(plan.x_scale, plan.cells, me, me) + me * plan.rows + c_row * CHUNK,
                                min(CHUNK, rows_of(plan, me) - c_row * CHUNK));
                        }
                        tma_wait<BATCH>();  // all but the latest item's stores are complete
                        if (unsignalled) counter_add(unsignalled, 1);
                        unsignalled = nullptr;
                        // signal arrived.on(peer)[c] += 1
                        const u32 arrived_cell = cell_of_arrived(plan, me, c_row);
                        unsignalled = counter_on(plan.cells, peer, plan.arrived + arrived_cell);
                    }
                    scheduler.end_loop(items);
                    // Nothing stays unsignalled across a wait for the next peer.
                    tma_wait<0>();
                    if (unsignalled) counter_add(unsignalled, 1);
                    unsignalled = nullptr;
                }
                // All stores are complete: the last staging buffers are released.
                for (; held > 0; --held, oldest.advance()) staging_empty[oldest.index].arrive();
            }
            TileScheduler scheduler = TileScheduler::late_comm(plan.late_join, COMM_CTAS);
            PipelineState<SUBTILES> subtile;
            #pragma unroll 1
            for (u32 shard_step = 0; shard_step < world; ++shard_step) {
                const u32 shard = (me + shard_step) % world;
                const u32 tiles_m = ceil_div(rows_of(plan, shard), TILE_M);
                const u32 tiles = tiles_m * tiles_n;
                for (; scheduler.has(tiles); scheduler.next()) {
                    const Tile t = grouped_8(scheduler.tile(), tiles_m, tiles_n);
                    // y[t] = acc0 * x.scale * w.scale
                    #pragma unroll 1
                    for (u32 part = 0; part < TILE_N / SUBTILE_N; ++part) {
                        subtile_full[subtile.index].wait(subtile.phase, watch, STORE);
                        tma_store(shard == plan.partial_shard ? y_partial_shard : y, smem_subtile[subtile.index],
                            t.column * TILE_N + part * SUBTILE_N, t.row * TILE_M, shard);
                        tma_commit();
                        tma_wait_read<0>();
                        subtile_empty[subtile.index].arrive();
                        subtile.advance();
                    }
                }
                scheduler.end_loop(tiles);
            }
            tma_wait<0>();
        }
    } else {  // multiply
        reg_alloc<216>();
        const u32 consumer = warp / 4 - 1;
        const u64 x_tile = wgmma_descriptor(smem_x[0]) + consumer * WGMMA_64_ROWS;
        const u64 w_tile = wgmma_descriptor(smem_w[0]);
        const u32 first_row = consumer * 64 + warp % 4 * 16;  // of this warp's 16 in a tile
        TileScheduler scheduler = TileScheduler::late_comm(plan.late_join, COMM_CTAS);
        PipelineState<STAGES> stage;
        PipelineState<SUBTILES> subtile;
        #pragma unroll 1
        for (u32 shard_step = 0; shard_step < world; ++shard_step) {
            const u32 shard = (me + shard_step) % world;
            const u32 tiles_m = ceil_div(rows_of(plan, shard), TILE_M);
            const u32 tiles = tiles_m * tiles_n;
            for (; scheduler.has(tiles); scheduler.next()) {
                const Tile t = grouped_8(scheduler.tile(), tiles_m, tiles_n);
                // acc0 += dot(x[t.rows, :], w[t.columns, :])
                vector_read_ahead<TILE_N>(plan.w_scale, t.column * TILE_N, plan.n, lane);
                float acc[TILE_N / 2];  // this thread's of 64 rows
                u32 previous = 0;
                #pragma unroll 1
                for (u32 step = 0; step < steps; ++step) {
                    stage_full[stage.index].wait(stage.phase, watch, MULTIPLY);
                    wgmma_fence();
                    const u64 xs = wgmma_at<X_BYTES>(x_tile, stage.index), ws = wgmma_at<W_BYTES>(w_tile, stage.index);
                    #pragma unroll
                    for (u32 k = 0; k < TILE_K / 32; ++k)
                        wgmma_m64k32<TILE_N>(acc, xs + k * WGMMA_K_STEP, ws + k * WGMMA_K_STEP, step + k != 0, e4m3(),
                            e4m3());
                    wgmma_commit();
                    wgmma_wait<1>();  // the step before this one is done with its stage
                    if (step != 0 && lane == 0) stage_empty[previous].arrive();
                    previous = stage.index;
                    stage.advance();
                }
                wgmma_wait<0>();
                if (lane == 0) stage_empty[previous].arrive();
                // y[t] = acc0 * x.scale * w.scale
                #pragma unroll
                for (u32 part = 0; part < TILE_N / SUBTILE_N; ++part) {
                    subtile_empty[subtile.index].wait(subtile.phase ^ 1, watch, MULTIPLY);
                    float x_scale[2];
                    vector_read_transposed(x_scale, plan.x_scale, shard * plan.rows + t.row * TILE_M + first_row,
                        shard * plan.rows + rows_of(plan, shard), lane);
                    float w_scale[SUBTILE_N / 4];
                    vector_read<SUBTILE_N>(w_scale, plan.w_scale, t.column * TILE_N + part * SUBTILE_N, plan.n, lane);
                    float y_values[SUBTILE_N / 2];
                    #pragma unroll
                    for (u32 i = 0; i < SUBTILE_N / 2; ++i)
                        y_values[i] =
                            y_value(acc[part * SUBTILE_N / 2 + i], x_scale[vector_index_transposed(i)],
                            w_scale[vector_index(i)]);
                    subtile_store<bf16, SUBTILE_N>(y_values, smem_subtile[subtile.index], first_row, lane);
                    fence_async_shared();
                    __syncwarp();
                    if (lane == 0) subtile_full[subtile.index].arrive();
                    subtile.advance();
                }
            }
            scheduler.end_loop(tiles);
        }
    }

    __syncwarp();  // the one thread of a role meets its warp again
    __syncthreads();
    if (warp == 0) {
        // Every CTA is done with its waits, loads and stores when the last one comes here.
        const bool last = __shfl_sync(~0u, threadIdx.x == 0 && last_of(plan.cells.finished, gridDim.x), 0);
        if (last) {
            counters_advance(plan.cells, me, plan.arrived, world * plan.chunks_m, threadIdx.x);
            counters_advance(plan.cells, me, plan.ready_x, world, threadIdx.x);
        }
    }
}
