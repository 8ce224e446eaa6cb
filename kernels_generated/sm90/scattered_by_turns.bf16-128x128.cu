// scattered_by_turns  sm90  bf16  nt  tiles 128x128x64 ping-pong  6 stages
// What each role does, in order; every wait, fence, release and acquire is a prelude function that says why.
// `#pragma unroll 1`: the loop's body stands once in the machine code, where tests count instructions.
#include "prelude.cuh"

typedef bf16 T;  // of operands and results
constexpr u32 TILE_M = 128, TILE_N = 128, TILE_K = 64;
constexpr u32 CONSUMERS = 2;  // warpgroups, which take tiles in ping-pong
constexpr u32 BLOCKS = 2;  // of 64 rows, which a consumer multiplies
constexpr u32 STAGES = 6;  // stages of x and w in flight
constexpr u32 SUBTILES = 2;  // output subtiles in flight, for each consumer
constexpr u32 PARTIAL_BOX_ROWS = 32;  // of an operand's box, loaded if one of them exists
constexpr u32 SUBTILE_N = 32;  // columns of an output subtile

// Shared memory, from a 1024-byte aligned base (the swizzle's period).
constexpr u32 X_AT = 0, X_BYTES = 16384;
constexpr u32 W_AT = 98304, W_BYTES = 16384;
constexpr u32 SUBTILE_AT = 196608, SUBTILE_BYTES = 8192;
constexpr u32 STAGE_FULL_AT = 229376, STAGE_EMPTY_AT = 229424;
constexpr u32 SUBTILE_FULL_AT = 229472, SUBTILE_EMPTY_AT = 229504;
constexpr u32 ORDER_AT = 229536;
constexpr u32 SHARED_BYTES = 229552;
static_assert(SHARED_BYTES <= 232448);  // what a CTA may have

// Names for stall records.
enum Role : u32 { LOAD, STORE, MULTIPLY };
enum What : u32 { STAGE_FULL, STAGE_EMPTY, SUBTILE_FULL, SUBTILE_EMPTY, ORDER, LANDED, FREE_PARTIAL };

// What the host passes for one launch.
struct Plan {
    Cells cells;
    u32 m;  // rows of the product, over all shards
    u32 k;  // its depth
    u32 n;  // its columns
    u32 rows;  // of m, in a full shard
    u32 partial_shard;  // the partial shard: it has some rows, but not all, and a map of its own
    u32 me;  // this rank
    u32 world;  // how many ranks there are
    u32 landed;  // a counter: its first cell
    u32 free_partial;  // a counter: its first cell
    u32 tiles_m;  // rows of tiles in a shard, each with its cells
};

// Rows of a shard: the split rounds up, so the last ones may be short, or empty.
__device__ __forceinline__ u32 rows_of(const Plan& plan, u32 shard) {
    const u32 first = shard * plan.rows;
    return first >= plan.m ? 0 : min(plan.rows, plan.m - first);
}

// A cell's number in landed[rank: plan.world][shard: plan.world][row: plan.tiles_m][column: tiles_n].
__device__ __forceinline__ u32 cell_of_landed(const Plan& plan, u32 tiles_n, u32 rank, u32 shard, u32 row, u32 column) {
    return rank * (plan.world * plan.tiles_m * tiles_n) + (shard * plan.tiles_m + row) * tiles_n + column;
}

// Tile `index` of a grid, grouped(8).
__device__ __forceinline__ Tile grouped_8(u32 index, u32 rows, u32 columns) {
    const u32 sweep = 8 * columns;
    const u32 first = index / sweep * 8;
    const u32 within = index % sweep;
    const u32 height = min(rows - first, 8);
    return {first + within % height, within / height};
}

extern "C" __global__ void __launch_bounds__(384, 1)
scattered_by_turns(
        const __grid_constant__ TensorMap x,  // own memory, one matrix; boxes of 128x64
        const __grid_constant__ TensorMap x_partial_box,  // own memory, one matrix; boxes of 32x64
        const __grid_constant__ TensorMap w,  // own memory, one matrix; boxes of 128x64
        const __grid_constant__ TensorMap w_partial_box,  // own memory, one matrix; boxes of 32x64
        // everyone's, slot by slot: others write it meanwhile; boxes of 128x32
        const __grid_constant__ TensorMap partial,
        const __grid_constant__ TensorMap y,  // everyone's own shard; boxes of 128x32
        const __grid_constant__ TensorMap y_partial_shard,  // the partial shard; boxes of 128x32
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
        tma_prefetch_map(y);
        stage_full.init(STAGES, 1, stage_empty, 4);
        subtile_full.init(CONSUMERS * SUBTILES, 4, subtile_empty, 1);
        OrderBarrier::init(base + ORDER_AT, 4);
        mbarrier_init_fence();
    }
    __syncthreads();

    const u32 me = plan.me, world = plan.world;
    const u32 tiles_n = ceil_div(plan.n, TILE_N);
    const u32 steps = ceil_div(plan.k, TILE_K);

    if (warp < 4) {
        reg_dealloc<56>();
        if (warp == 0 && elect_one()) {  // load
            TileScheduler scheduler(blockIdx.x, gridDim.x);
            PipelineState<STAGES> stage;
            #pragma unroll 1
            for (u32 owner_step = 0; owner_step < world - 1; ++owner_step) {
                const u32 owner = (me + 1 + owner_step) % world;
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
                        full.expect(x_rows * TILE_K * 2 + w_rows * TILE_K * 2);
                        tma_load_partial<PARTIAL_BOX_ROWS, TILE_M>(smem_x[stage.index], x, x_partial_box, x_rows,
                            full.at, step * TILE_K, owner * plan.rows + t.row * TILE_M);
                        tma_load_partial<PARTIAL_BOX_ROWS, TILE_N>(smem_w[stage.index], w, w_partial_box, w_rows,
                            full.at, step * TILE_K, t.column * TILE_N);
                        stage.advance();
                    }
                }
                scheduler.end_loop(tiles);
            }
            const u32 my_tiles_m = ceil_div(rows_of(plan, me), TILE_M);
            const u32 my_tiles = my_tiles_m * tiles_n;
            for (; scheduler.has(my_tiles); scheduler.next()) {
                const Tile t = grouped_8(scheduler.tile(), my_tiles_m, tiles_n);
                // acc1 += dot(x[t.rows, :], w[t.columns, :])
                const u32 x_rows =
                    min(ceil_div(rows_of(plan, me) - t.row * TILE_M, PARTIAL_BOX_ROWS) * PARTIAL_BOX_ROWS, TILE_M);
                const u32 w_rows =
                    min(ceil_div(plan.n - t.column * TILE_N, PARTIAL_BOX_ROWS) * PARTIAL_BOX_ROWS, TILE_N);
                #pragma unroll 1
                for (u32 step = 0; step < steps; ++step) {
                    stage_empty[stage.index].wait(stage.phase ^ 1, watch, LOAD);
                    const auto full = stage_full[stage.index];
                    full.expect(x_rows * TILE_K * 2 + w_rows * TILE_K * 2);
                    tma_load_partial<PARTIAL_BOX_ROWS, TILE_M>(smem_x[stage.index], x, x_partial_box, x_rows, full.at,
                        step * TILE_K, me * plan.rows + t.row * TILE_M);
                    tma_load_partial<PARTIAL_BOX_ROWS, TILE_N>(smem_w[stage.index], w, w_partial_box, w_rows, full.at,
                        step * TILE_K, t.column * TILE_N);
                    stage.advance();
                }
                // acc2 += sum(partial[others][t], own acc1)
                // wait landed[others][t]
                #pragma unroll 1
                for (u32 from = 0; from < world; ++from) {
                    if (from == me) continue;
                    const u32 landed_cell = cell_of_landed(plan, tiles_n, from, me, t.row, t.column);
                    counter_wait(plan.cells, me, plan.landed + landed_cell, watch, LOAD, LANDED);
                    counter_advance(plan.cells, me, plan.landed + landed_cell);  // no one else waits for it
                }
                fence_async_global();
                #pragma unroll 1
                for (u32 part = 0; part < TILE_N / SUBTILE_N; ++part) {
                    #pragma unroll 1
                    for (u32 from = 0; from < world; ++from) {
                        if (from == me) continue;
                        stage_empty[stage.index].wait(stage.phase ^ 1, watch, LOAD);
                        const auto full = stage_full[stage.index];
                        full.expect(TILE_M * SUBTILE_N * 2);
                        tma_load(smem_x[stage.index], partial, full.at, t.column * TILE_N + part * SUBTILE_N,
                            t.row * TILE_M, from, me);
                        stage.advance();
                    }
                }
            }
        } else if (warp >= 1 && warp <= 2 && elect_one()) {  // store
            const u32 consumer = warp - 1;  // whose subtiles
            TileScheduler scheduler(blockIdx.x, gridDim.x);
            if (consumer != 0) scheduler.next();  // ping-pong: the CTA's second tile is its second consumer's
            PipelineState<SUBTILES> subtile(consumer);
            Counter* unsignalled = nullptr;  // of the item before, while its stores are in flight
            #pragma unroll 1
            for (u32 owner_step = 0; owner_step < world - 1; ++owner_step) {
                const u32 owner = (me + 1 + owner_step) % world;
                const u32 tiles_m = ceil_div(rows_of(plan, owner), TILE_M);
                const u32 tiles = tiles_m * tiles_n;
                // Without items here there is nothing to wait for.
                if (scheduler.has(tiles)) {
                    // wait free_partial[owner] (credit: partial was read in the last launch)
                    counter_wait_before(plan.cells, me, plan.free_partial + owner, watch, STORE, FREE_PARTIAL);
                    fence_async_global();
                }
                for (; scheduler.has(tiles); scheduler.next_ping_pong()) {
                    const Tile t = grouped_8(scheduler.tile(), tiles_m, tiles_n);
                    // partial.on(owner)[me][t] = acc0
                    #pragma unroll 1
                    for (u32 part = 0; part < TILE_N / SUBTILE_N; ++part) {
                        subtile_full[subtile.index].wait(subtile.phase, watch, STORE);
                        tma_store(partial, smem_subtile[subtile.index], t.column * TILE_N + part * SUBTILE_N,
                            t.row * TILE_M, me, owner);
                        tma_commit();
                        tma_wait_read<0>();
                        subtile_empty[subtile.index].arrive();
                        subtile.advance();
                    }
                    tma_wait<TILE_N / SUBTILE_N>();  // all but the latest item's stores are complete
                    if (unsignalled) counter_add(unsignalled, 1);
                    unsignalled = nullptr;
                    // signal landed.on(owner)[me][t] += 1
                    const u32 landed_cell = cell_of_landed(plan, tiles_n, me, owner, t.row, t.column);
                    unsignalled = counter_on(plan.cells, owner, plan.landed + landed_cell);
                }
                scheduler.end_loop(tiles);
                // Nothing stays unsignalled past the loop: what comes next may wait for a peer that waits for this.
                tma_wait<0>();
                if (unsignalled) counter_add(unsignalled, 1);
                unsignalled = nullptr;
            }
            const u32 my_tiles_m = ceil_div(rows_of(plan, me), TILE_M);
            const u32 my_tiles = my_tiles_m * tiles_n;
            for (; scheduler.has(my_tiles); scheduler.next_ping_pong()) {
                const Tile t = grouped_8(scheduler.tile(), my_tiles_m, tiles_n);
                // y[t] = acc2
                #pragma unroll 1
                for (u32 part = 0; part < TILE_N / SUBTILE_N; ++part) {
                    subtile_full[subtile.index].wait(subtile.phase, watch, STORE);
                    tma_store(me == plan.partial_shard ? y_partial_shard : y, smem_subtile[subtile.index],
                        t.column * TILE_N + part * SUBTILE_N, t.row * TILE_M, 0, me);
                    tma_commit();
                    tma_wait_read<0>();
                    subtile_empty[subtile.index].arrive();
                    subtile.advance();
                }
            }
            tma_wait<0>();
        }
    } else {  // multiply
        reg_alloc<224>();
        const u32 consumer = warp / 4 - 1;
        const u64 x_tile = wgmma_descriptor(smem_x[0]);
        const u64 w_tile = wgmma_descriptor(smem_w[0]);
        const u32 first_row = warp % 4 * 16;  // of this warp's 16 in a tile
        TileScheduler scheduler(blockIdx.x, gridDim.x);
        if (consumer != 0) scheduler.next();  // ping-pong: the CTA's second tile is its second consumer's
        PipelineState<STAGES> stage;
        PipelineState<SUBTILES> subtile(consumer);
        OrderBarrier order(base + ORDER_AT, consumer);
        if (consumer != 0) {
            stage.advance(steps);  // past the other consumer's tile
        }
        #pragma unroll 1
        for (u32 owner_step = 0; owner_step < world - 1; ++owner_step) {
            const u32 owner = (me + 1 + owner_step) % world;
            const u32 tiles_m = ceil_div(rows_of(plan, owner), TILE_M);
            const u32 tiles = tiles_m * tiles_n;
            for (; scheduler.has(tiles); scheduler.next_ping_pong()) {
                // acc0 += dot(x[t.rows, :], w[t.columns, :])
                float acc[BLOCKS][TILE_N / 2];  // this thread's of each 64 rows
                u32 previous = 0;
                // From here on, the waits below are within one round of the stages, where a parity names one phase.
                order.wait(watch, MULTIPLY, ORDER);
                #pragma unroll 1
                for (u32 step = 0; step < steps; ++step) {
                    stage_full[stage.index].wait(stage.phase, watch, MULTIPLY);
                    wgmma_fence();
                    const u64 xs = wgmma_at<X_BYTES>(x_tile, stage.index), ws = wgmma_at<W_BYTES>(w_tile, stage.index);
                    #pragma unroll
                    for (u32 k = 0; k < TILE_K / 16; ++k) {
                        #pragma unroll
                        for (u32 block = 0; block < BLOCKS; ++block)
                            wgmma_m64k16<TILE_N>(acc[block], xs + k * WGMMA_K_STEP + block * WGMMA_64_ROWS,
                                ws + k * WGMMA_K_STEP, step + k != 0, T());
                    }
                    wgmma_commit();
                    wgmma_wait<1>();  // the step before this one is done with its stage
                    if (step != 0 && lane == 0) stage_empty[previous].arrive();
                    previous = stage.index;
                    stage.advance();
                }
                if (lane == 0) order.arrive();
                wgmma_wait<0>();
                if (lane == 0) stage_empty[previous].arrive();
                stage.advance(steps);  // past the other consumer's tile
                // partial.on(owner)[me][t] = acc0
                #pragma unroll
                for (u32 part = 0; part < TILE_N / SUBTILE_N; ++part) {
                    subtile_empty[subtile.index].wait(subtile.phase ^ 1, watch, MULTIPLY);
                    #pragma unroll
                    for (u32 block = 0; block < BLOCKS; ++block)
                        subtile_store<T, SUBTILE_N>(acc[block] + part * SUBTILE_N / 2, smem_subtile[subtile.index],
                            first_row + block * 64, lane);
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
        // The other consumer has this CTA's first tile of the loop, with a sum behind its steps.
        if (scheduler.tile() >= gridDim.x) {
            stage.advance(TILE_N / SUBTILE_N * (world - 1));  // past the other consumer's tile
        }
        for (; scheduler.has(my_tiles); scheduler.next_ping_pong()) {
            // acc1 += dot(x[t.rows, :], w[t.columns, :])
            float acc[BLOCKS][TILE_N / 2];  // this thread's of each 64 rows
            u32 previous = 0;
            // From here on, the waits below are within one round of the stages, where a parity names one phase.
            order.wait(watch, MULTIPLY, ORDER);
            #pragma unroll 1
            for (u32 step = 0; step < steps; ++step) {
                stage_full[stage.index].wait(stage.phase, watch, MULTIPLY);
                wgmma_fence();
                const u64 xs = wgmma_at<X_BYTES>(x_tile, stage.index), ws = wgmma_at<W_BYTES>(w_tile, stage.index);
                #pragma unroll
                for (u32 k = 0; k < TILE_K / 16; ++k) {
                    #pragma unroll
                    for (u32 block = 0; block < BLOCKS; ++block)
                        wgmma_m64k16<TILE_N>(acc[block], xs + k * WGMMA_K_STEP + block * WGMMA_64_ROWS,
                            ws + k * WGMMA_K_STEP, step + k != 0, T());
                }
                wgmma_commit();
                wgmma_wait<1>();  // the step before this one is done with its stage
                if (step != 0 && lane == 0) stage_empty[previous].arrive();
                previous = stage.index;
                stage.advance();
            }
            wgmma_wait<0>();
            if (lane == 0) stage_empty[previous].arrive();
            const auto stage_before = stage;
            // y[t] = acc2
            #pragma unroll
            for (u32 part = 0; part < TILE_N / SUBTILE_N; ++part) {
                subtile_empty[subtile.index].wait(subtile.phase ^ 1, watch, MULTIPLY);
                float partial[BLOCKS][SUBTILE_N / 2] = {};
                #pragma unroll 1
                for (u32 from = 0; from < world; ++from) {
                    if (from == me) {
                        #pragma unroll
                        for (u32 block = 0; block < BLOCKS; ++block)
                            add_own<T, SUBTILE_N>(partial[block], acc[block] + part * SUBTILE_N / 2);
                        continue;
                    }
                    stage_full[stage.index].wait(stage.phase, watch, MULTIPLY);
                    #pragma unroll
                    for (u32 block = 0; block < BLOCKS; ++block)
                        subtile_add<T, SUBTILE_N>(partial[block], smem_x[stage.index], first_row + block * 64, lane);
                    fence_async_shared();
                    __syncwarp();
                    if (lane == 0) stage_empty[stage.index].arrive();
                    stage.advance();
                }
                #pragma unroll
                for (u32 block = 0; block < BLOCKS; ++block)
                    subtile_store<T, SUBTILE_N>(partial[block], smem_subtile[subtile.index], first_row + block * 64,
                        lane);
                fence_async_shared();
                __syncwarp();
                if (lane == 0) subtile_full[subtile.index].arrive();
                subtile.advance();
            }
            stage = stage_before;
            if (lane == 0) order.arrive();
            stage.advance(steps + TILE_N / SUBTILE_N * (world - 1) * 2);  // past the other consumer's tile
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
            counters_advance(plan.cells, me, plan.free_partial, world, threadIdx.x);
        }
    }
}
