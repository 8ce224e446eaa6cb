// y = x * w^T, one GPU. Persistent, warp-specialised: one warp loads, two warpgroups multiply, one warp stores.

typedef bf16 T;
constexpr u32 TILE_M = 128, TILE_N = 256, TILE_K = 64;
constexpr u32 STAGES = 3;         // stages of x and w in flight
constexpr u32 PANEL_N = 64;       // columns of an output panel
constexpr u32 PANELS = 4;         // output panels in flight
constexpr u32 CONSUMERS = 2;      // warpgroups, 64 rows each

// Shared memory, from a 1024-byte aligned base (the swizzle's period).
constexpr u32 X_BYTES = TILE_M * TILE_K * 2, W_BYTES = TILE_N * TILE_K * 2, PANEL_BYTES = TILE_M * PANEL_N * 2;
constexpr u32 X_AT = 0;
constexpr u32 W_AT = X_AT + STAGES * X_BYTES;
constexpr u32 PANELS_AT = W_AT + STAGES * W_BYTES;
constexpr u32 FULL_AT = PANELS_AT + PANELS * PANEL_BYTES;
constexpr u32 EMPTY_AT = FULL_AT + STAGES * 8;
constexpr u32 PANEL_FULL_AT = EMPTY_AT + STAGES * 8;
constexpr u32 PANEL_EMPTY_AT = PANEL_FULL_AT + PANELS * 8;
constexpr u32 SHARED_BYTES = PANEL_EMPTY_AT + PANELS * 8;
static_assert(SHARED_BYTES <= 232448);  // what a CTA may have on sm_90

// Names for stall records.
enum Role : u32 { LOAD, MULTIPLY, STORE };
enum What : u32 { FULL, EMPTY, PANEL_FULL, PANEL_EMPTY };

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
            mbarrier_init(base + EMPTY_AT + stage * 8, CONSUMERS * 4);
        }
        for (u32 panel = 0; panel < PANELS; ++panel) {
            mbarrier_init(base + PANEL_FULL_AT + panel * 8, CONSUMERS * 4);
            mbarrier_init(base + PANEL_EMPTY_AT + panel * 8, 1);
        }
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
        } else if (warp == 1 && elect_one()) {
            u32 panel = 0, parity = 0;
            for (u32 index = blockIdx.x; index < tiles; index += gridDim.x) {
                const Tile tile = grouped(index, tiles_m, tiles_n, shape.group);
                const u32 row = tile.row * TILE_M, column = tile.column * TILE_N;
                for (u32 part = 0; part < TILE_N / PANEL_N; ++part) {
                    mbarrier_wait(base + PANEL_FULL_AT + panel * 8, parity, watch, STORE, PANEL_FULL, panel);
                    tma_store(y, base + PANELS_AT + panel * PANEL_BYTES, column + part * PANEL_N, row, 0, 0);
                    tma_commit();
                    tma_wait_read<0>();
                    mbarrier_arrive(base + PANEL_EMPTY_AT + panel * 8);
                    if (++panel == PANELS) panel = 0, parity ^= 1;
                }
            }
            tma_wait<0>();
        }
    } else {
        registers_take<232>();
        const u32 consumer = warp / 4 - 1;
        const u64 x_tile = wgmma_descriptor(base + X_AT) + consumer * WGMMA_64_ROWS;
        const u64 w_tile = wgmma_descriptor(base + W_AT);
        const u32 first_row = consumer * 64 + warp % 4 * 16;
        u32 stage = 0, parity = 0, panel = 0, panel_parity = 0;
        for (u32 index = blockIdx.x; index < tiles; index += gridDim.x) {
            float acc[TILE_N / 2];
            u32 previous = 0;
            for (u32 step = 0; step < steps; ++step) {
                mbarrier_wait(base + FULL_AT + stage * 8, parity, watch, MULTIPLY, FULL, stage);
                const u64 xs = x_tile + stage * (X_BYTES >> 4), ws = w_tile + stage * (W_BYTES >> 4);
                wgmma_fence();
#pragma unroll
                for (u32 k = 0; k < TILE_K / 16; ++k) wgmma_m64k16(acc, xs + k * WGMMA_K_STEP, ws + k * WGMMA_K_STEP, step + k != 0, T());
                wgmma_commit();
                wgmma_wait<1>();  // the step before this one is done with its stage
                if (step != 0 && lane == 0) mbarrier_arrive(base + EMPTY_AT + previous * 8);
                previous = stage;
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
            wgmma_wait<0>();
            if (lane == 0) mbarrier_arrive(base + EMPTY_AT + previous * 8);
#pragma unroll
            for (u32 part = 0; part < TILE_N / PANEL_N; ++part) {
                mbarrier_wait(base + PANEL_EMPTY_AT + panel * 8, panel_parity ^ 1, watch, MULTIPLY, PANEL_EMPTY, panel);
                panel_store<T, PANEL_N>(acc + part * PANEL_N / 2, base + PANELS_AT + panel * PANEL_BYTES, first_row, lane);
                fence_async_shared();
                __syncwarp();
                if (lane == 0) mbarrier_arrive(base + PANEL_FULL_AT + panel * 8);
                if (++panel == PANELS) panel = 0, panel_parity ^= 1;
            }
        }
    }
}
