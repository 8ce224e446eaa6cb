// gemm  sm90  bf16  nt  tiles 128x256x64  cluster 2x1  3 stages
// What each role does, in order; every wait, fence, release and acquire is a prelude function that says why.
// `#pragma unroll 1`: the loop's body stands once in the machine code, where tests count instructions.
#include "prelude.cuh"

typedef bf16 T;  // of operands and results
constexpr u32 TILE_M = 128, TILE_N = 256, TILE_K = 64;
constexpr u32 CONSUMERS = 2;  // warpgroups, 64 rows each
constexpr u32 CLUSTER = 2;  // CTAs along rows that load w together
constexpr u32 STAGES = 3;  // stages of x and w in flight
constexpr u32 PANELS = 4;  // output panels in flight
constexpr u32 STRIP_ROWS = 32;  // of an operand's box, loaded if one of them exists
constexpr u32 PANEL_N = 64;  // columns of an output panel

// Shared memory, from a 1024-byte aligned base (the swizzle's period).
constexpr u32 X_AT = 0, X_BYTES = 16384;
constexpr u32 W_AT = 49152, W_BYTES = 32768;
constexpr u32 PANEL_AT = 147456, PANEL_BYTES = 16384;
constexpr u32 STAGE_FULL_AT = 212992, STAGE_EMPTY_AT = 213016;
constexpr u32 PANEL_FULL_AT = 213040, PANEL_EMPTY_AT = 213072;
constexpr u32 SHARED_BYTES = 213104;
static_assert(SHARED_BYTES <= 232448);  // what a CTA may have

// Names for stall records.
enum Role : u32 { LOAD, STORE, MULTIPLY };
enum What : u32 { STAGE_FULL, STAGE_EMPTY, PANEL_FULL, PANEL_EMPTY };

// What the host passes for one launch.
struct Plan {
    u32 m;  // rows of the product, over all chunks
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

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(384, 1)
gemm(
        const __grid_constant__ TensorMap x,  // mine, in one piece; boxes of 128x64
        const __grid_constant__ TensorMap x_strip,  // mine, in one piece; boxes of 32x64
        const __grid_constant__ TensorMap w,  // mine, in one piece; boxes of 128x64
        const __grid_constant__ TensorMap w_strip,  // mine, in one piece; boxes of 32x64
        const __grid_constant__ TensorMap y,  // mine, in one piece; boxes of 128x64
        const __grid_constant__ Plan plan,
        const __grid_constant__ Watch watch) {
    launch_dependents();
    extern __shared__ __align__(1024) u8 shared[];
    const u32 base = shared_address(shared);
    const u32 warp = warp_index();
    const u32 lane = threadIdx.x % 32;
    const u32 half = cluster_rank();  // which CTA of its cluster this is
    const Buffer<X_AT, X_BYTES> smem_x = {base};
    const Buffer<W_AT, W_BYTES> smem_w = {base};
    const Buffer<PANEL_AT, PANEL_BYTES> smem_panel = {base};
    const Barriers<STAGE_FULL_AT, STAGE_FULL, Order::Cta> stage_full = {base};
    const Barriers<STAGE_EMPTY_AT, STAGE_EMPTY, Order::Complete> stage_empty = {base};
    const Barriers<PANEL_FULL_AT, PANEL_FULL, Order::Cta> panel_full = {base};
    const Barriers<PANEL_EMPTY_AT, PANEL_EMPTY, Order::Cta> panel_empty = {base};

    if (warp == 0 && elect_one()) {
        tma_prefetch_map(x);
        tma_prefetch_map(x_strip);
        tma_prefetch_map(w);
        tma_prefetch_map(w_strip);
        tma_prefetch_map(y);
        stage_full.init(STAGES, 1, stage_empty, CLUSTER * CONSUMERS * 4);
        panel_full.init(PANELS, CONSUMERS * 4, panel_empty, 1);
        mbarrier_init_fence();
    }
    cluster_sync();

    wait_prerequisites();
    const u32 tiles_n = ceil_div(plan.n, TILE_N);
    const u32 steps = ceil_div(plan.k, TILE_K);

    if (warp < 4) {
        registers_give<40>();
        if (warp == 0 && elect_one()) {  // load
            TileScheduler scheduler(blockIdx.x / CLUSTER, gridDim.x / CLUSTER);
            PipelineState<STAGES> stage;
            const u32 tiles_m = ceil_div(plan.m, TILE_M * CLUSTER);
            const u32 tiles = tiles_m * tiles_n;
            for (; scheduler.has(tiles); scheduler.next()) {
                const Tile t = grouped_8(scheduler.tile(), tiles_m, tiles_n);
                // acc0 += dot(x[t.rows, :], w[t.columns, :])
                const u32 x_rows =
                    min(ceil_div(plan.m - min((t.row * CLUSTER + half) * TILE_M, plan.m), STRIP_ROWS) * STRIP_ROWS,
                    TILE_M);
                const u32 w_rows = min(ceil_div(plan.n - t.column * TILE_N, STRIP_ROWS) * STRIP_ROWS, TILE_N);
                const u32 my_w_rows = min(w_rows - min(half * (TILE_N / CLUSTER), w_rows), TILE_N / CLUSTER);
                #pragma unroll 1
                for (u32 step = 0; step < steps; ++step) {
                    stage_empty[stage.index].wait(stage.phase ^ 1, watch, LOAD);
                    const auto full = stage_full[stage.index];
                    full.expect(x_rows * TILE_K * 2 + w_rows * TILE_K * 2);
                    tma_load_strips<STRIP_ROWS, TILE_M>(smem_x[stage.index], x, x_strip, x_rows, full.at,
                        step * TILE_K, (t.row * CLUSTER + half) * TILE_M, 0, 0);
                    tma_load_multicast_strips<STRIP_ROWS,
                        TILE_N
                        / CLUSTER>(smem_w[stage.index] + half * (W_BYTES / CLUSTER), w, w_strip, my_w_rows, full.at,
                        step * TILE_K, t.column * TILE_N + half * (TILE_N / CLUSTER), 0, 0, (1 << CLUSTER) - 1);
                    stage.advance();
                }
            }
            scheduler.end_loop(tiles);
            // All of the cluster is done with what was loaded here: nothing of it is still on its way to this CTA.
            #pragma unroll 1
            for (u32 i = 0; i < STAGES; ++i) {
                stage_empty[stage.index].wait(stage.phase ^ 1, watch, LOAD);
                stage.advance();
            }
        } else if (warp == 1 && elect_one()) {  // store
            TileScheduler scheduler(blockIdx.x / CLUSTER, gridDim.x / CLUSTER);
            PipelineState<PANELS> panel;
            const u32 tiles_m = ceil_div(plan.m, TILE_M * CLUSTER);
            const u32 tiles = tiles_m * tiles_n;
            for (; scheduler.has(tiles); scheduler.next()) {
                const Tile t = grouped_8(scheduler.tile(), tiles_m, tiles_n);
                // y[t] = acc0
                #pragma unroll 1
                for (u32 part = 0; part < TILE_N / PANEL_N; ++part) {
                    panel_full[panel.index].wait(panel.phase, watch, STORE);
                    tma_store(y, smem_panel[panel.index], t.column * TILE_N + part * PANEL_N,
                        (t.row * CLUSTER + half) * TILE_M, 0, 0);
                    tma_commit();
                    tma_wait_read<0>();
                    panel_empty[panel.index].arrive();
                    panel.advance();
                }
            }
            scheduler.end_loop(tiles);
            tma_wait<0>();
        }
    } else {  // multiply
        registers_take<232>();
        const u32 consumer = warp / 4 - 1;
        const u64 x_tile = wgmma_descriptor(smem_x[0]) + consumer * WGMMA_64_ROWS;
        const u64 w_tile = wgmma_descriptor(smem_w[0]);
        const u32 first_row = consumer * 64 + warp % 4 * 16;  // of this warp's 16 in a tile
        TileScheduler scheduler(blockIdx.x / CLUSTER, gridDim.x / CLUSTER);
        PipelineState<STAGES> stage;
        PipelineState<PANELS> panel;
        const u32 tiles_m = ceil_div(plan.m, TILE_M * CLUSTER);
        const u32 tiles = tiles_m * tiles_n;
        for (; scheduler.has(tiles); scheduler.next()) {
            // acc0 += dot(x[t.rows, :], w[t.columns, :])
            float acc[TILE_N / 2];  // this thread's of 64 rows
            u32 previous = 0;
            #pragma unroll 1
            for (u32 step = 0; step < steps; ++step) {
                stage_full[stage.index].wait(stage.phase, watch, MULTIPLY);
                wgmma_fence();
                const u64 xs = x_tile + stage.index * (X_BYTES >> 4), ws = w_tile + stage.index * (W_BYTES >> 4);
                #pragma unroll
                for (u32 k = 0; k < TILE_K / 16; ++k)
                    wgmma_m64k16(acc, xs + k * WGMMA_K_STEP, ws + k * WGMMA_K_STEP, step + k != 0, T());
                wgmma_commit();
                wgmma_wait<1>();  // the step before this one is done with its stage
                if (step != 0 && lane < CLUSTER) stage_empty[previous].arrive_on(lane);
                previous = stage.index;
                stage.advance();
            }
            wgmma_wait<0>();
            if (lane < CLUSTER) stage_empty[previous].arrive_on(lane);
            // y[t] = acc0
            #pragma unroll
            for (u32 part = 0; part < TILE_N / PANEL_N; ++part) {
                panel_empty[panel.index].wait(panel.phase ^ 1, watch, MULTIPLY);
                panel_store<T, PANEL_N>(acc + part * PANEL_N / 2, smem_panel[panel.index], first_row, lane);
                fence_async_shared();
                __syncwarp();
                if (lane == 0) panel_full[panel.index].arrive();
                panel.advance();
            }
        }
        scheduler.end_loop(tiles);
    }

    __syncwarp();
    cluster_sync();
}
