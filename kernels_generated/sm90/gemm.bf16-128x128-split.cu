// gemm  sm90  bf16  nt  tiles 128x128x64  split 3  7 stages
// What each role does, in order; every wait, fence, release and acquire is a prelude function that says why.
// `#pragma unroll 1`: the loop's body stands once in the machine code, where tests count instructions.
#include "prelude.cuh"

typedef bf16 T;  // of operands and results
constexpr u32 TILE_M = 128, TILE_N = 128, TILE_K = 64;
constexpr u32 CONSUMERS = 2;  // warpgroups, 64 rows each
constexpr u32 SPLIT = 3;  // CTAs of a cluster, which split the K of each tile
constexpr u32 STAGES = 7;  // stages of x and w in flight
constexpr u32 SUBTILES = 3;  // output subtiles in flight
constexpr u32 SPLIT_PARTIALS = 1;  // partials of other CTAs that a CTA holds, for each consumer
constexpr u32 PARTIAL_BOX_ROWS = 32;  // of an operand's box, loaded if one of them exists
constexpr u32 SUBTILE_N = 16;  // columns of an output subtile
constexpr u32 SPLIT_PARTIAL_SUBTILES = 3;  // subtiles of a tile that a CTA has the partials of, at most
constexpr u32 SPLIT_PARTIAL_THREADS = 128;  // of a consumer: those that have rows of the tile
constexpr u32 SPLIT_PARTIAL_SUBTILE_BYTES = SUBTILE_N * 2 * SPLIT_PARTIAL_THREADS;  // of a subtile's accumulators

// Shared memory, from a 1024-byte aligned base (the swizzle's period).
constexpr u32 X_AT = 0, X_BYTES = 16384;
constexpr u32 W_AT = 114688, W_BYTES = 16384;
constexpr u32 SUBTILE_AT = 0, SUBTILE_BYTES = 4096;
constexpr u32 SPLIT_PARTIAL_AT = 12288, SPLIT_PARTIAL_BYTES = 24576;
constexpr u32 STAGE_FULL_AT = 229376, STAGE_EMPTY_AT = 229432;
constexpr u32 SUBTILE_FULL_AT = 229488;
constexpr u32 SPLIT_PARTIAL_FULL_AT = 229512;
constexpr u32 TILE_FULL_AT = 229528, TILE_EMPTY_AT = 229536;
constexpr u32 SHARED_BYTES = 229544;
static_assert(SHARED_BYTES <= 232448);  // what a CTA may have

// Names for stall records.
enum Role : u32 { LOAD, STORE, MULTIPLY };
enum What : u32 { STAGE_FULL, STAGE_EMPTY, SUBTILE_FULL, SPLIT_PARTIAL_FULL, TILE_FULL, TILE_EMPTY };

// What the host passes for one launch.
struct Plan {
    u32 m;  // rows of the product, over all shards
    u32 k;  // its depth
    u32 n;  // its columns
};

// Tile `index` of a grid, grouped(8).
__device__ __forceinline__ Tile grouped_8(u32 index, u32 rows, u32 columns) {
    const u32 sweep = 8 * columns;
    const u32 first = index / sweep * 8;
    const u32 within = index % sweep;
    const u32 height = min(rows - first, 8);
    return {first + within % height, within / height};
}

extern "C" __global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(384, 1)
gemm(
        const __grid_constant__ TensorMap x,  // own memory, one matrix; boxes of 128x64
        const __grid_constant__ TensorMap x_partial_box,  // own memory, one matrix; boxes of 32x64
        const __grid_constant__ TensorMap w,  // own memory, one matrix; boxes of 128x64
        const __grid_constant__ TensorMap w_partial_box,  // own memory, one matrix; boxes of 32x64
        const __grid_constant__ TensorMap y,  // own memory, one matrix; boxes of 128x16
        const __grid_constant__ Plan plan,
        const __grid_constant__ Watch watch) {
    launch_dependents();
    extern __shared__ __align__(1024) u8 shared[];
    const u32 base = shared_address(shared);
    const u32 warp = warp_index();
    const u32 lane = threadIdx.x % 32;
    const u32 split_rank = cluster_rank();  // which of its cluster's CTAs this is, and which part of the steps it has
    const Buffer<X_AT, X_BYTES> smem_x = {base};
    const Buffer<W_AT, W_BYTES> smem_w = {base};
    const Buffer<SUBTILE_AT, SUBTILE_BYTES> smem_subtile = {base};
    const Buffer<SPLIT_PARTIAL_AT, SPLIT_PARTIAL_BYTES> smem_split_partial = {base};
    const Barriers<STAGE_FULL_AT, STAGE_FULL, Scope::Cta> stage_full = {base};
    const Barriers<STAGE_EMPTY_AT, STAGE_EMPTY, Scope::Cta> stage_empty = {base};
    const Barriers<SUBTILE_FULL_AT, SUBTILE_FULL, Scope::Cta> subtile_full = {base};
    const Barriers<SPLIT_PARTIAL_FULL_AT, SPLIT_PARTIAL_FULL, Scope::Cluster> split_partial_full = {base};
    const Barriers<TILE_FULL_AT, TILE_FULL, Scope::Relaxed> tile_full = {base};
    const Barriers<TILE_EMPTY_AT, TILE_EMPTY, Scope::Cta> tile_empty = {base};

    if (warp == 0 && elect_one()) {
        tma_prefetch_map(x);
        tma_prefetch_map(x_partial_box);
        tma_prefetch_map(w);
        tma_prefetch_map(w_partial_box);
        tma_prefetch_map(y);
        stage_full.init(STAGES, 1, stage_empty, CONSUMERS * 4);
        subtile_full.init(SUBTILES, CONSUMERS * 4);
        split_partial_full.init(CONSUMERS * SPLIT_PARTIALS, 1);
        tile_full.init(1, SPLIT * CONSUMERS * 4, tile_empty, 1);
        mbarrier_init_fence();
    }
    cluster_sync();

    wait_prerequisites();
    const u32 tiles_n = ceil_div(plan.n, TILE_N);
    const u32 all_steps = ceil_div(plan.k, TILE_K);
    const u32 first_step = all_steps * split_rank / SPLIT;
    const u32 steps = all_steps * (split_rank + 1) / SPLIT - first_step;

    if (warp < 4) {
        reg_dealloc<40>();
        if (warp == 0 && elect_one()) {  // load
            TileScheduler scheduler(blockIdx.x / SPLIT, gridDim.x / SPLIT);
            PipelineState<STAGES> stage;
            PipelineState<1> tile;
            const u32 tiles_m = ceil_div(plan.m, TILE_M);
            const u32 tiles = tiles_m * tiles_n;
            for (; scheduler.has(tiles); scheduler.next()) {
                const Tile t = grouped_8(scheduler.tile(), tiles_m, tiles_n);
                // Partials and subtiles of the tile before lay where the stages are.
                tile_empty[0].wait(tile.phase ^ 1, watch, LOAD);
                tile.advance();
                // acc0 += dot(x[t.rows, :], w[t.columns, :])
                const u32 x_rows = min(ceil_div(plan.m - t.row * TILE_M, PARTIAL_BOX_ROWS) * PARTIAL_BOX_ROWS, TILE_M);
                const u32 w_rows =
                    min(ceil_div(plan.n - t.column * TILE_N, PARTIAL_BOX_ROWS) * PARTIAL_BOX_ROWS, TILE_N);
                #pragma unroll 1
                for (u32 step = 0; step < steps; ++step) {
                    stage_empty[stage.index].wait(stage.phase ^ 1, watch, LOAD);
                    const auto full = stage_full[stage.index];
                    full.expect(x_rows * TILE_K * 2 + w_rows * TILE_K * 2);
                    tma_load_partial<PARTIAL_BOX_ROWS, TILE_M>(smem_x[stage.index], x, x_partial_box, x_rows, full.at,
                        (first_step + step) * TILE_K, t.row * TILE_M);
                    tma_load_partial<PARTIAL_BOX_ROWS, TILE_N>(smem_w[stage.index], w, w_partial_box, w_rows, full.at,
                        (first_step + step) * TILE_K, t.column * TILE_N);
                    stage.advance();
                }
            }
        } else if (warp == 1 && elect_one()) {  // store
            TileScheduler scheduler(blockIdx.x / SPLIT, gridDim.x / SPLIT);
            PipelineState<SUBTILES> subtile;
            const u32 tiles_m = ceil_div(plan.m, TILE_M);
            const u32 tiles = tiles_m * tiles_n;
            for (; scheduler.has(tiles); scheduler.next()) {
                const Tile t = grouped_8(scheduler.tile(), tiles_m, tiles_n);
                // y[t] = acc0
                #pragma unroll 1
                for (u32 part = split_rank; part < TILE_N / SUBTILE_N; part += SPLIT) {
                    subtile_full[subtile.index].wait(subtile.phase, watch, STORE);
                    tma_store(y, smem_subtile[subtile.index], t.column * TILE_N + part * SUBTILE_N, t.row * TILE_M);
                    tma_commit();
                    subtile.advance();
                }
                // Then stages may be loaded again where they lay.
                tma_wait_read<0>();
                tile_empty[0].arrive();
            }
            tma_wait<0>();
        }
    } else {  // multiply
        reg_alloc<232>();
        const u32 consumer = warp / 4 - 1;
        const u64 x_tile = wgmma_descriptor(smem_x[0]) + consumer * WGMMA_64_ROWS;
        const u64 w_tile = wgmma_descriptor(smem_w[0]);
        const u32 first_row = consumer * 64 + warp % 4 * 16;  // of this warp's 16 in a tile
        TileScheduler scheduler(blockIdx.x / SPLIT, gridDim.x / SPLIT);
        PipelineState<STAGES> stage;
        PipelineState<SUBTILES> subtile;
        PipelineState<SPLIT_PARTIALS> split_partial(consumer);
        PipelineState<1> tile;
        const u32 tiles_m = ceil_div(plan.m, TILE_M);
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
            // This CTA had a part of the steps: it sends the others its partials of their subtiles, and adds theirs to
            // its own.
            // Once all are done with its steps, partials and subtiles lie where the stages are.
            if (lane < SPLIT) tile_full[0].arrive_on(lane);
            tile_full[0].wait(tile.phase, watch, MULTIPLY);
            if (warp % 4 == 0 && lane == 0)
                split_partial_full[split_partial.index].expect((TILE_N / SUBTILE_N + SPLIT - 1 - split_rank) / SPLIT
                    * (SPLIT - 1) * SPLIT_PARTIAL_SUBTILE_BYTES);
            #pragma unroll
            for (u32 part = 0; part < TILE_N / SUBTILE_N; ++part) {
                if (part % SPLIT != split_rank) {
                    partial_send<SUBTILE_N, SPLIT_PARTIAL_THREADS>(acc + part * SUBTILE_N / 2,
                        smem_split_partial[split_partial.index]
                        + ((split_rank + SPLIT - 1 - part % SPLIT) % SPLIT * SPLIT_PARTIAL_SUBTILES + part / SPLIT)
                        * SPLIT_PARTIAL_SUBTILE_BYTES, split_partial_full[split_partial.index].at, part % SPLIT,
                        threadIdx.x % 128);
                }
            }
            split_partial_full[split_partial.index].wait(split_partial.phase, watch, MULTIPLY);
            #pragma unroll
            for (u32 part = 0; part < TILE_N / SUBTILE_N; ++part) {
                if (part % SPLIT == split_rank) {
                    #pragma unroll
                    for (u32 from = 0; from < SPLIT - 1; ++from) {
                        partial_add<SUBTILE_N, SPLIT_PARTIAL_THREADS>(acc + part * SUBTILE_N / 2,
                            smem_split_partial[split_partial.index]
                            + (from * SPLIT_PARTIAL_SUBTILES + part / SPLIT) * SPLIT_PARTIAL_SUBTILE_BYTES,
                            threadIdx.x % 128);
                    }
                }
            }
            // y[t] = acc0
            #pragma unroll
            for (u32 part = 0; part < TILE_N / SUBTILE_N; ++part) {
                if (part % SPLIT == split_rank) {
                    subtile_store<T, SUBTILE_N>(acc + part * SUBTILE_N / 2, smem_subtile[subtile.index], first_row,
                        lane);
                    fence_async_shared();
                    __syncwarp();
                    if (lane == 0) subtile_full[subtile.index].arrive();
                    subtile.advance();
                }
            }
            split_partial.advance();
            tile.advance();
        }
    }

    __syncwarp();
    cluster_sync();
}
