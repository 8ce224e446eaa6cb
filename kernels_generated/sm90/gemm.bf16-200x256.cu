// gemm  sm90  bf16  nt  tiles 200x256x64  3 stages
// What each role does, in order; every wait, fence, release and acquire is a prelude function that says why.
// `#pragma unroll 1`: the loop's body stands once in the machine code, where tests count instructions.
#include "prelude.cuh"

typedef bf16 T;  // of operands and results
constexpr u32 TILE_M = 200, TILE_N = 256, TILE_K = 64;
// Columns of the tile are on the instruction's M side, its rows on the N side: accumulators hold it transposed.
constexpr u32 CONSUMERS = 2;  // warpgroups, 128 columns each
constexpr u32 BLOCKS = 2;  // of 64 columns, which a consumer multiplies
constexpr u32 STAGES = 3;  // stages of x and w in flight
constexpr u32 SUBTILES = 5;  // output subtiles in flight, in places that go from one consumer to the other
constexpr u32 SUBTILE_M = 40;  // rows of an output subtile
constexpr u32 SUBTILE_N = 128;  // columns of an output subtile
constexpr u32 SLICE_N = 64;  // columns of a slice of a subtile: a 128-byte line; slices lie one after another
constexpr u32 BEHIND = 2;  // steps of a tile that the second consumer begins when the first one has begun all
constexpr u32 SLICE_BYTES = SUBTILE_M * 128;

// Shared memory, from a 1024-byte aligned base (the swizzle's period).
constexpr u32 X_AT = 0, X_BYTES = 25600;
constexpr u32 W_AT = 76800, W_BYTES = 32768;
constexpr u32 SUBTILE_AT = 175104, SUBTILE_BYTES = 10240;
constexpr u32 STAGE_FULL_AT = 226304, STAGE_EMPTY_AT = 226328;
constexpr u32 SUBTILE_FULL_AT = 226352, SUBTILE_EMPTY_AT = 226432;
constexpr u32 ORDER_AT = 226512;
constexpr u32 SHARED_BYTES = 226528;
static_assert(SHARED_BYTES <= 232448);  // what a CTA may have

// Names for stall records.
enum Role : u32 { LOAD, STORE, MULTIPLY };
enum What : u32 { STAGE_FULL, STAGE_EMPTY, SUBTILE_FULL, SUBTILE_EMPTY, ORDER };

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
gemm(
        const __grid_constant__ TensorMap x,  // own memory, one matrix; boxes of 200x64
        const __grid_constant__ TensorMap w,  // own memory, one matrix; boxes of 256x64
        const __grid_constant__ TensorMap y,  // own memory, one matrix; boxes of 40x64
        const __grid_constant__ Plan plan,
        const __grid_constant__ Watch watch) {
    launch_dependents();
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
        tma_prefetch_map(w);
        tma_prefetch_map(y);
        stage_full.init(STAGES, 1, stage_empty, CONSUMERS * 4);
        subtile_full.init(CONSUMERS * SUBTILES, 4, subtile_empty, 1);
        OrderBarrier::init(base + ORDER_AT, 4);
        mbarrier_init_fence();
    }
    __syncthreads();

    wait_prerequisites();
    const u32 tiles_n = ceil_div(plan.n, TILE_N);
    const u32 steps = ceil_div(plan.k, TILE_K);

    if (warp < 4) {
        reg_dealloc<24>();
        if (warp == 0 && elect_one()) {  // load
            TileScheduler scheduler(blockIdx.x, gridDim.x);
            PipelineState<STAGES> stage;
            const u32 tiles_m = ceil_div(plan.m, TILE_M);
            const u32 tiles = tiles_m * tiles_n;
            for (; scheduler.has(tiles); scheduler.next()) {
                const Tile t = grouped_8(scheduler.tile(), tiles_m, tiles_n);
                // acc0 += dot(x[t.rows, :], w[t.columns, :])
                #pragma unroll 1
                for (u32 step = 0; step < steps; ++step) {
                    stage_empty[stage.index].wait(stage.phase ^ 1, watch, LOAD);
                    const auto full = stage_full[stage.index];
                    full.expect(X_BYTES + W_BYTES);
                    tma_load(smem_x[stage.index], x, full.at, step * TILE_K, t.row * TILE_M);
                    tma_load(smem_w[stage.index], w, full.at, step * TILE_K, t.column * TILE_N);
                    stage.advance();
                }
            }
        } else if (warp >= 1 && warp <= 2 && elect_one()) {  // store
            const u32 consumer = warp - 1;  // whose subtiles
            TileScheduler scheduler(blockIdx.x, gridDim.x);
            PipelineState<SUBTILES> subtile(consumer);
            const u32 tiles_m = ceil_div(plan.m, TILE_M);
            const u32 tiles = tiles_m * tiles_n;
            for (; scheduler.has(tiles); scheduler.next()) {
                const Tile t = grouped_8(scheduler.tile(), tiles_m, tiles_n);
                // y[t] = acc0
                #pragma unroll 1
                for (u32 part = 0; part < TILE_M / SUBTILE_M; ++part) {
                    subtile_full[subtile.index].wait(subtile.phase, watch, STORE);
                    #pragma unroll 1
                    for (u32 slice = 0; slice < SUBTILE_N / SLICE_N; ++slice) {
                        tma_store(y, smem_subtile[subtile.place()] + slice * SLICE_BYTES,
                            t.column * TILE_N + consumer * SUBTILE_N + slice * SLICE_N,
                            t.row * TILE_M + part * SUBTILE_M);
                    }
                    tma_commit();
                    tma_wait_read<0>();
                    subtile_empty[subtile.of_other()].arrive();  // the other consumer has the place next
                    subtile.advance();
                }
            }
            tma_wait<0>();
        }
    } else {  // multiply
        reg_alloc<240>();
        const u32 consumer = warp / 4 - 1;
        const u64 x_tile = wgmma_descriptor(smem_x[0]);
        const u64 w_tile = wgmma_descriptor(smem_w[0]) + consumer * BLOCKS * WGMMA_64_ROWS;
        const u32 first_column = warp % 4 * 16;  // of this warp's 16 in its half of a tile
        TileScheduler scheduler(blockIdx.x, gridDim.x);
        PipelineState<STAGES> stage;
        PipelineState<SUBTILES> subtile(consumer);
        OrderBarrier order(base + ORDER_AT, consumer);  // only the second consumer waits
        const u32 tiles_m = ceil_div(plan.m, TILE_M);
        const u32 tiles = tiles_m * tiles_n;
        for (; scheduler.has(tiles); scheduler.next()) {
            // acc0 += dot(x[t.rows, :], w[t.columns, :])
            float acc[BLOCKS][TILE_M / 2];  // this thread's of each 64 columns
            u32 previous = 0;
            // The second consumer's last steps come after the first one's, which meanwhile rounds and hands over its
            // half.
            #pragma unroll 1
            for (u32 step = 0; step < steps; ++step) {
                if (consumer == 1) {
                    if (step + BEHIND == steps) {
                        order.wait(watch, MULTIPLY, ORDER);
                    }
                }
                stage_full[stage.index].wait(stage.phase, watch, MULTIPLY);
                wgmma_fence();
                const u64 xs = wgmma_at<X_BYTES>(x_tile, stage.index), ws = wgmma_at<W_BYTES>(w_tile, stage.index);
                #pragma unroll
                for (u32 k = 0; k < TILE_K / 16; ++k) {
                    #pragma unroll
                    for (u32 block = 0; block < BLOCKS; ++block)
                        wgmma_m64k16<TILE_M>(acc[block], ws + k * WGMMA_K_STEP + block * WGMMA_64_ROWS,
                            xs + k * WGMMA_K_STEP, step + k != 0, T());
                }
                wgmma_commit();
                wgmma_wait<1>();  // the step before this one is done with its stage
                if (step != 0 && lane == 0) stage_empty[previous].arrive();
                previous = stage.index;
                stage.advance();
            }
            if (consumer == 0) {
                if (lane == 0) order.arrive();
            }
            wgmma_wait<0>();
            if (lane == 0) stage_empty[previous].arrive();
            // y[t] = acc0
            #pragma unroll
            for (u32 part = 0; part < TILE_M / SUBTILE_M; ++part) {
                subtile_empty[subtile.index].wait(subtile.phase ^ consumer ^ 1, watch, MULTIPLY);
                #pragma unroll
                for (u32 block = 0; block < BLOCKS; ++block)
                    subtile_store_transposed<T, SUBTILE_M>(acc[block] + part * SUBTILE_M / 2,
                        smem_subtile[subtile.place()], first_column + block * 64, lane);
                fence_async_shared();
                __syncwarp();
                if (lane == 0) subtile_full[subtile.index].arrive();
                subtile.advance();
            }
        }
    }
}
