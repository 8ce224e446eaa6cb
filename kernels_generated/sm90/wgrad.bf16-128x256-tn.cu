// wgrad  sm90  bf16  tn  tiles 128x256x64  4 stages
// What each role does, in order; every wait, fence, release and acquire is a prelude function that says why.
// `#pragma unroll 1`: the loop's body stands once in the machine code, where tests count instructions.
#include "prelude.cuh"

typedef bf16 T;  // of operands and results
constexpr u32 TILE_M = 128, TILE_N = 256, TILE_K = 64;
constexpr u32 CONSUMERS = 2;  // warpgroups, 64 rows each
constexpr u32 STAGES = 4;  // stages of dy and x in flight
constexpr u32 SUBTILES = 2;  // output subtiles in flight
constexpr u32 BLOCK_ROWS = 64;  // rows of a block of an MN-major operand: one 128-byte line for each k
constexpr u32 SUBTILE_N = 32;  // columns of an output subtile
constexpr u32 BLOCK_BYTES = BLOCK_ROWS * TILE_K * 2;

// Shared memory, from a 1024-byte aligned base (the swizzle's period).
constexpr u32 DY_AT = 0, DY_BYTES = 16384;
constexpr u32 X_AT = 65536, X_BYTES = 32768;
constexpr u32 SUBTILE_AT = 196608, SUBTILE_BYTES = 16384;
constexpr u32 STAGE_FULL_AT = 229376, STAGE_EMPTY_AT = 229408;
constexpr u32 SUBTILE_FULL_AT = 229440, SUBTILE_EMPTY_AT = 229456;
constexpr u32 SHARED_BYTES = 229472;
static_assert(SHARED_BYTES <= 232448);  // what a CTA may have

// Names for stall records.
enum Role : u32 { LOAD, STORE, MULTIPLY };
enum What : u32 { STAGE_FULL, STAGE_EMPTY, SUBTILE_FULL, SUBTILE_EMPTY };

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

extern "C" __global__ void __launch_bounds__(384, 1)
wgrad(
        const __grid_constant__ TensorMap dy,  // own memory, one matrix; boxes of 64x64
        const __grid_constant__ TensorMap x,  // own memory, one matrix; boxes of 64x64
        const __grid_constant__ TensorMap grad,  // own memory, one matrix; boxes of 128x32
        const __grid_constant__ Plan plan,
        const __grid_constant__ Watch watch) {
    launch_dependents();
    extern __shared__ __align__(1024) u8 shared[];
    const u32 base = shared_address(shared);
    const u32 warp = warp_index();
    const u32 lane = threadIdx.x % 32;
    const Buffer<DY_AT, DY_BYTES> smem_dy = {base};
    const Buffer<X_AT, X_BYTES> smem_x = {base};
    const Buffer<SUBTILE_AT, SUBTILE_BYTES> smem_subtile = {base};
    const Barriers<STAGE_FULL_AT, STAGE_FULL, Scope::Cta> stage_full = {base};
    const Barriers<STAGE_EMPTY_AT, STAGE_EMPTY, Scope::Cta> stage_empty = {base};
    const Barriers<SUBTILE_FULL_AT, SUBTILE_FULL, Scope::Cta> subtile_full = {base};
    const Barriers<SUBTILE_EMPTY_AT, SUBTILE_EMPTY, Scope::Cta> subtile_empty = {base};

    if (warp == 0 && elect_one()) {
        tma_prefetch_map(dy);
        tma_prefetch_map(x);
        tma_prefetch_map(grad);
        stage_full.init(STAGES, 1, stage_empty, CONSUMERS * 4);
        subtile_full.init(SUBTILES, CONSUMERS * 4, subtile_empty, 1);
        mbarrier_init_fence();
    }
    __syncthreads();

    wait_prerequisites();
    const u32 tiles_n = ceil_div(plan.n, TILE_N);
    const u32 steps = ceil_div(plan.k, TILE_K);

    if (warp < 4) {
        reg_dealloc<40>();
        if (warp == 0 && elect_one()) {  // load
            TileScheduler scheduler(blockIdx.x, gridDim.x);
            PipelineState<STAGES> stage;
            const u32 tiles_m = ceil_div(plan.m, TILE_M);
            const u32 tiles = tiles_m * tiles_n;
            for (; scheduler.has(tiles); scheduler.next()) {
                const Tile t = grouped_8(scheduler.tile(), tiles_m, tiles_n);
                // acc0 += dot(dy[t.rows, :], x[t.columns, :])
                // Blocks outside the tensor do not come: nobody stores what they would be multiplied into.
                const u32 dy_blocks = min(ceil_div(plan.m - t.row * TILE_M, BLOCK_ROWS), 2);
                const u32 x_blocks = min(ceil_div(plan.n - t.column * TILE_N, BLOCK_ROWS), 4);
                #pragma unroll 1
                for (u32 step = 0; step < steps; ++step) {
                    stage_empty[stage.index].wait(stage.phase ^ 1, watch, LOAD);
                    const auto full = stage_full[stage.index];
                    full.expect(dy_blocks * BLOCK_BYTES + x_blocks * BLOCK_BYTES);
                    #pragma unroll 1
                    for (u32 block = 0; block < dy_blocks; ++block) {
                        tma_load(smem_dy[stage.index] + block * BLOCK_BYTES, dy, full.at,
                            t.row * TILE_M + block * BLOCK_ROWS, step * TILE_K);
                    }
                    #pragma unroll 1
                    for (u32 block = 0; block < x_blocks; ++block) {
                        tma_load(smem_x[stage.index] + block * BLOCK_BYTES, x, full.at,
                            t.column * TILE_N + block * BLOCK_ROWS, step * TILE_K);
                    }
                    stage.advance();
                }
            }
        } else if (warp == 1 && elect_one()) {  // store
            TileScheduler scheduler(blockIdx.x, gridDim.x);
            PipelineState<SUBTILES> subtile;
            const u32 tiles_m = ceil_div(plan.m, TILE_M);
            const u32 tiles = tiles_m * tiles_n;
            for (; scheduler.has(tiles); scheduler.next()) {
                const Tile t = grouped_8(scheduler.tile(), tiles_m, tiles_n);
                // grad[t] += acc0
                u32 previous = 0;
                #pragma unroll 1
                for (u32 part = 0; part < TILE_N / SUBTILE_N; ++part) {
                    subtile_full[subtile.index].wait(subtile.phase, watch, STORE);
                    tma_reduce_add(grad, smem_subtile[subtile.index], t.column * TILE_N + part * SUBTILE_N,
                        t.row * TILE_M);
                    tma_commit();
                    if (part != 0) {
                        tma_wait_read<1>();  // the latest stores may still read what they send
                        subtile_empty[previous].arrive();
                    }
                    previous = subtile.index;
                    subtile.advance();
                }
                tma_wait_read<0>();
                subtile_empty[previous].arrive();
            }
            tma_wait<0>();
        }
    } else {  // multiply
        reg_alloc<232>();
        const u32 consumer = warp / 4 - 1;
        const u64 dy_tile = wgmma_descriptor_mn_major(smem_dy[0], BLOCK_BYTES) + consumer * (BLOCK_BYTES >> 4);
        const u64 x_tile = wgmma_descriptor_mn_major(smem_x[0], BLOCK_BYTES);
        const u32 first_row = consumer * 64 + warp % 4 * 16;  // of this warp's 16 in a tile
        TileScheduler scheduler(blockIdx.x, gridDim.x);
        PipelineState<STAGES> stage;
        PipelineState<SUBTILES> subtile;
        const u32 tiles_m = ceil_div(plan.m, TILE_M);
        const u32 tiles = tiles_m * tiles_n;
        for (; scheduler.has(tiles); scheduler.next()) {
            // acc0 += dot(dy[t.rows, :], x[t.columns, :])
            float acc[TILE_N / 2];  // this thread's of 64 rows
            u32 previous = 0;
            #pragma unroll 1
            for (u32 step = 0; step < steps; ++step) {
                stage_full[stage.index].wait(stage.phase, watch, MULTIPLY);
                wgmma_fence();
                const u64 dys = wgmma_at<DY_BYTES>(dy_tile, stage.index), xs = wgmma_at<X_BYTES>(x_tile, stage.index);
                #pragma unroll
                for (u32 k = 0; k < TILE_K / 16; ++k)
                    wgmma_m64k16<TILE_N, MN_MAJOR, MN_MAJOR>(acc, dys + k * WGMMA_MN_MAJOR_K_STEP,
                        xs + k * WGMMA_MN_MAJOR_K_STEP, step + k != 0, T());
                wgmma_commit();
                wgmma_wait<1>();  // the step before this one is done with its stage
                if (step != 0 && lane == 0) stage_empty[previous].arrive();
                previous = stage.index;
                stage.advance();
            }
            wgmma_wait<0>();
            if (lane == 0) stage_empty[previous].arrive();
            // grad[t] += acc0
            #pragma unroll
            for (u32 part = 0; part < TILE_N / SUBTILE_N; ++part) {
                subtile_empty[subtile.index].wait(subtile.phase ^ 1, watch, MULTIPLY);
                subtile_store<float, SUBTILE_N>(acc + part * SUBTILE_N / 2, smem_subtile[subtile.index], first_row,
                    lane);
                fence_async_shared();
                __syncwarp();
                if (lane == 0) subtile_full[subtile.index].arrive();
                subtile.advance();
            }
        }
    }
}
