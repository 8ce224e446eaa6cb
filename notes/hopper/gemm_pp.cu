// y = x * w^T, one GPU. Persistent, warp-specialised, ping-pong: one warp loads, two warpgroups take tiles in turn, so that
// one rounds and hands over its tile while the other multiplies; a warp for each stores.

typedef bf16 T;
constexpr u32 TILE_M = 128, TILE_N = 160, TILE_K = 64;
constexpr u32 STAGES = 5;    // stages of x and w in flight
constexpr u32 PANEL_N = 32;  // columns of an output panel
constexpr u32 PANELS = 2;    // output panels in flight, for each consumer

// Shared memory, from a 1024-byte aligned base (the swizzle's period).
constexpr u32 X_BYTES = TILE_M * TILE_K * 2, W_BYTES = TILE_N * TILE_K * 2, PANEL_BYTES = TILE_M * PANEL_N * 2;
constexpr u32 X_AT = 0;
constexpr u32 W_AT = X_AT + STAGES * X_BYTES;
constexpr u32 PANELS_AT = W_AT + STAGES * W_BYTES;
constexpr u32 FULL_AT = PANELS_AT + 2 * PANELS * PANEL_BYTES;
constexpr u32 EMPTY_AT = FULL_AT + STAGES * 8;
constexpr u32 PANEL_FULL_AT = EMPTY_AT + STAGES * 8;
constexpr u32 PANEL_EMPTY_AT = PANEL_FULL_AT + 2 * PANELS * 8;
constexpr u32 TURN_AT = PANEL_EMPTY_AT + 2 * PANELS * 8;
constexpr u32 SHARED_BYTES = TURN_AT + 2 * 8;
static_assert(SHARED_BYTES <= 232448);  // what a CTA may have on sm_90

// Names for stall records.
enum Role : u32 { LOAD, MULTIPLY, STORE };
enum What : u32 { FULL, EMPTY, PANEL_FULL, PANEL_EMPTY, TURN };

struct Shape {
    u32 m, n, k;
    u32 group;  // row tiles swept together along the columns, so that their x stays in L2
};

struct Tile {
    u32 row, column;
};

// Tile `index` in grouped order: all columns of `group` row tiles before the next row tiles.
__device__ __forceinline__ Tile grouped(u32 index, u32 tiles_m, u32 tiles_n, u32 group) {
    const u32 sweep = group * tiles_n;
    const u32 first = index / sweep * group;
    const u32 rows = min(group, tiles_m - first);
    const u32 within = index % sweep;
    return {first + within % rows, within / rows};
}

// What the host must know to launch this variant.
extern "C" __constant__ u32 facts[] = {TILE_M, TILE_N, SHARED_BYTES, 1, PANEL_N};

extern "C" __global__ void __launch_bounds__(384, 1)
gemm(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const __grid_constant__ TensorMap y,
     const __grid_constant__ Shape shape, const __grid_constant__ Watch watch) {
    extern __shared__ __align__(1024) u8 shared[];
    const u32 base = shared_address(shared);
    const u32 warp = warp_index();
    const u32 lane = threadIdx.x % 32;

    if (warp == 0 && elect_one()) {
        tma_prefetch_map(x);
        tma_prefetch_map(w);
        tma_prefetch_map(y);
        for (u32 stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(base + FULL_AT + stage * 8, 1);
            mbarrier_init(base + EMPTY_AT + stage * 8, 4);
        }
        for (u32 panel = 0; panel < 2 * PANELS; ++panel) {
            mbarrier_init(base + PANEL_FULL_AT + panel * 8, 4);
            mbarrier_init(base + PANEL_EMPTY_AT + panel * 8, 1);
        }
        mbarrier_init(base + TURN_AT, 4);
        mbarrier_init(base + TURN_AT + 8, 4);
        mbarrier_init_fence();
    }
    __syncthreads();

    const u32 tiles_m = (shape.m + TILE_M - 1) / TILE_M;
    const u32 tiles_n = (shape.n + TILE_N - 1) / TILE_N;
    const u32 tiles = tiles_m * tiles_n;
    const u32 steps = (shape.k + TILE_K - 1) / TILE_K;

    if (warp < 4) {
        registers_give<40>();
        if (warp == 0 && elect_one()) {
            u32 stage = 0, parity = 0;
            for (u32 index = blockIdx.x; index < tiles; index += gridDim.x) {
                const Tile tile = grouped(index, tiles_m, tiles_n, shape.group);
                const u32 row = tile.row * TILE_M, column = tile.column * TILE_N;
                for (u32 step = 0; step < steps; ++step) {
                    const u32 full = base + FULL_AT + stage * 8, empty = base + EMPTY_AT + stage * 8;
                    mbarrier_wait(empty, parity ^ 1, watch, LOAD, EMPTY, stage);
                    mbarrier_expect(full, X_BYTES + W_BYTES);
                    tma_load(base + X_AT + stage * X_BYTES, x, full, step * TILE_K, row, 0, 0);
                    tma_load(base + W_AT + stage * W_BYTES, w, full, step * TILE_K, column, 0, 0);
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        } else if (warp == 1 || warp == 2) {
            if (elect_one()) {
                const u32 consumer = warp - 1;
                const u32 panels = base + PANELS_AT + consumer * PANELS * PANEL_BYTES;
                const u32 panel_full = base + PANEL_FULL_AT + consumer * PANELS * 8, panel_empty = base + PANEL_EMPTY_AT + consumer * PANELS * 8;
                u32 panel = 0, parity = 0;
                for (u32 index = blockIdx.x + consumer * gridDim.x; index < tiles; index += 2 * gridDim.x) {
                    const Tile tile = grouped(index, tiles_m, tiles_n, shape.group);
                    const u32 row = tile.row * TILE_M, column = tile.column * TILE_N;
                    for (u32 part = 0; part < TILE_N / PANEL_N; ++part) {
                        mbarrier_wait(panel_full + panel * 8, parity, watch, STORE, PANEL_FULL, panel);
                        tma_store(y, panels + panel * PANEL_BYTES, column + part * PANEL_N, row, 0, 0);
                        tma_commit();
                        tma_wait_read<0>();
                        mbarrier_arrive(panel_empty + panel * 8);
                        if (++panel == PANELS) panel = 0, parity ^= 1;
                    }
                }
                tma_wait<0>();
            }
        }
    } else {
        registers_take<232>();
        const u32 consumer = warp / 4 - 1;
        const u64 x_tile = wgmma_descriptor(base + X_AT), w_tile = wgmma_descriptor(base + W_AT);
        const u32 first_row = warp % 4 * 16;
        const u32 panels = base + PANELS_AT + consumer * PANELS * PANEL_BYTES;
        const u32 panel_full = base + PANEL_FULL_AT + consumer * PANELS * 8, panel_empty = base + PANEL_EMPTY_AT + consumer * PANELS * 8;
        u32 panel = 0, panel_parity = 0, turn_parity = consumer ^ 1;
        u32 position = consumer * steps;  // in the ring, counted in steps; the other consumer's tile lies between two of mine
        u32 stage = position % STAGES, parity = position / STAGES % 2;
        const u32 skip_stages = steps % STAGES, skip_laps = steps / STAGES % 2;
        for (u32 index = blockIdx.x + consumer * gridDim.x; index < tiles; index += 2 * gridDim.x) {
            float acc[2][TILE_N / 2];
            u32 previous = 0;
            // Also keeps the waits below within a lap of the ring, where a parity names one phase.
            mbarrier_wait(base + TURN_AT + consumer * 8, turn_parity, watch, MULTIPLY, TURN, consumer);
            turn_parity ^= 1;
            for (u32 step = 0; step < steps; ++step) {
                mbarrier_wait(base + FULL_AT + stage * 8, parity, watch, MULTIPLY, FULL, stage);
                const u64 xs = x_tile + stage * (X_BYTES >> 4), ws = w_tile + stage * (W_BYTES >> 4);
                wgmma_fence();
#pragma unroll
                for (u32 k = 0; k < TILE_K / 16; ++k) {
                    wgmma_m64k16(acc[0], xs + k * WGMMA_K_STEP, ws + k * WGMMA_K_STEP, step + k != 0, T());
                    wgmma_m64k16(acc[1], xs + WGMMA_64_ROWS + k * WGMMA_K_STEP, ws + k * WGMMA_K_STEP, step + k != 0, T());
                }
                wgmma_commit();
                wgmma_wait<1>();  // the step before this one is done with its stage
                if (step != 0 && lane == 0) mbarrier_arrive(base + EMPTY_AT + previous * 8);
                previous = stage;
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
            if (lane == 0) mbarrier_arrive(base + TURN_AT + (consumer ^ 1) * 8);
            wgmma_wait<0>();
            if (lane == 0) mbarrier_arrive(base + EMPTY_AT + previous * 8);
            stage += skip_stages, parity ^= skip_laps;
            if (stage >= STAGES) stage -= STAGES, parity ^= 1;
#pragma unroll
            for (u32 part = 0; part < TILE_N / PANEL_N; ++part) {
                mbarrier_wait(panel_empty + panel * 8, panel_parity ^ 1, watch, MULTIPLY, PANEL_EMPTY, panel);
                panel_store<T, PANEL_N>(acc[0] + part * PANEL_N / 2, panels + panel * PANEL_BYTES, first_row, lane);
                panel_store<T, PANEL_N>(acc[1] + part * PANEL_N / 2, panels + panel * PANEL_BYTES, 64 + first_row, lane);
                fence_async_shared();
                __syncwarp();
                if (lane == 0) mbarrier_arrive(panel_full + panel * 8);
                if (++panel == PANELS) panel = 0, panel_parity ^= 1;
            }
        }
    }
}
