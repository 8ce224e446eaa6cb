// y = reduce_scatter(x * w^T), ping-pong. Tiles of other ranks' rows come first: each goes straight to its owner, into the
// slot this rank writes there. My own rows come last; a warp of its own fetches what the others sent, and the consumer
// adds it in f32, mine first, then in rank order, while the other consumer multiplies.

typedef bf16 T;
constexpr u32 TILE_M = 128, TILE_N = 128, TILE_K = 64;
constexpr u32 STAGES = 5;    // stages of x and w in flight
constexpr u32 PANEL_N = 32;  // columns of an output or partial panel
constexpr u32 PANELS = 2;    // output panels in flight, for each consumer
constexpr u32 CARRIES = 2;   // partial panels in flight, for each consumer
constexpr u32 PARTS = TILE_N / PANEL_N;

// Shared memory, from a 1024-byte aligned base (the swizzle's period).
constexpr u32 X_BYTES = TILE_M * TILE_K * 2, W_BYTES = TILE_N * TILE_K * 2, PANEL_BYTES = TILE_M * PANEL_N * 2;
constexpr u32 X_AT = 0;
constexpr u32 W_AT = X_AT + STAGES * X_BYTES;
constexpr u32 PANELS_AT = W_AT + STAGES * W_BYTES;
constexpr u32 CARRIES_AT = PANELS_AT + 2 * PANELS * PANEL_BYTES;
constexpr u32 FULL_AT = CARRIES_AT + 2 * CARRIES * PANEL_BYTES;
constexpr u32 EMPTY_AT = FULL_AT + STAGES * 8;
constexpr u32 PANEL_FULL_AT = EMPTY_AT + STAGES * 8;
constexpr u32 PANEL_EMPTY_AT = PANEL_FULL_AT + 2 * PANELS * 8;
constexpr u32 CARRY_FULL_AT = PANEL_EMPTY_AT + 2 * PANELS * 8;
constexpr u32 CARRY_EMPTY_AT = CARRY_FULL_AT + 2 * CARRIES * 8;
constexpr u32 TURN_AT = CARRY_EMPTY_AT + 2 * CARRIES * 8;
constexpr u32 SHARED_BYTES = TURN_AT + 2 * 8;
static_assert(SHARED_BYTES <= 232448);  // what a CTA may have on sm_90

// Names for stall records.
enum Role : u32 { LOAD, MULTIPLY, STORE, CARRY };
enum What : u32 { FULL, EMPTY, PANEL_FULL, PANEL_EMPTY, CARRY_FULL, CARRY_EMPTY, TURN, LANDED, GRANTED };

struct Plan {
    u32 m, n, k;
    u32 group;   // row tiles swept together along the columns
    u32 me, world;
    u32 rows;    // in a chunk; the last one that has any may have fewer
    char* heap;  // slot r of the symmetric heap starts r * stride further
    u64 stride;
    u64 landed;   // Counter[world][tiles of a chunk], offset in a slot: partial tiles of rank r that landed here
    u64 granted;  // Counter[world]: peer r lets me overwrite my slot of its partials
    u32* finished;
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

// Rows of the chunk that rank `chunk` owns: the split rounds up, so the last ranks may own fewer, or none.
__device__ __forceinline__ u32 rows_of(const Plan& plan, u32 chunk) {
    const u32 first = chunk * plan.rows;
    return first >= plan.m ? 0 : min(plan.rows, plan.m - first);
}

__device__ __forceinline__ Counter* counter_on(const Plan& plan, u32 rank, u64 counters, u32 index) {
    return reinterpret_cast<Counter*>(plan.heap + rank * plan.stride + counters) + index;
}

struct Work {
    u32 owner;
    Tile tile;
};

// Tile `index` of all: the chunks of ranks me+1, me+2, ... and mine last.
__device__ __forceinline__ Work work_at(const Plan& plan, u32 index, u32 tiles_n) {
    for (u32 hop = 1;; ++hop) {
        const u32 owner = (plan.me + hop) % plan.world;
        const u32 tiles_m = (rows_of(plan, owner) + TILE_M - 1) / TILE_M, tiles = tiles_m * tiles_n;
        if (index < tiles) return {owner, grouped(index, tiles_m, tiles_n, plan.group)};
        index -= tiles;
    }
}

// What the host must know to launch this variant.
extern "C" __constant__ u32 facts[] = {TILE_M, TILE_N, SHARED_BYTES, 1, PANEL_N, 0};

extern "C" __global__ void __launch_bounds__(384, 1)
gemm_rs(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const __grid_constant__ TensorMap y,
        const __grid_constant__ TensorMap partial, const __grid_constant__ Plan plan, const __grid_constant__ Watch watch) {
    extern __shared__ __align__(1024) u8 shared[];
    const u32 base = shared_address(shared);
    const u32 warp = warp_index();
    const u32 lane = threadIdx.x % 32;

    if (warp == 0 && elect_one()) {
        tma_prefetch_map(x);
        tma_prefetch_map(w);
        tma_prefetch_map(y);
        tma_prefetch_map(partial);
        for (u32 stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(base + FULL_AT + stage * 8, 1);
            mbarrier_init(base + EMPTY_AT + stage * 8, 4);
        }
        for (u32 panel = 0; panel < 2 * PANELS; ++panel) {
            mbarrier_init(base + PANEL_FULL_AT + panel * 8, 4);
            mbarrier_init(base + PANEL_EMPTY_AT + panel * 8, 1);
        }
        for (u32 carry = 0; carry < 2 * CARRIES; ++carry) {
            mbarrier_init(base + CARRY_FULL_AT + carry * 8, 1);
            mbarrier_init(base + CARRY_EMPTY_AT + carry * 8, 4);
        }
        for (u32 consumer = 0; consumer < 2; ++consumer) mbarrier_init(base + TURN_AT + consumer * 8, 4);
        mbarrier_init_fence();
    }
    __syncthreads();

    const u32 me = plan.me, world = plan.world;
    const u32 steps = (plan.k + TILE_K - 1) / TILE_K;
    const u32 tiles_n = (plan.n + TILE_N - 1) / TILE_N;
    const u32 cells = (plan.rows + TILE_M - 1) / TILE_M * tiles_n;  // of a full chunk: the stride of `landed`
    u32 tiles = 0;
    for (u32 owner = 0; owner < world; ++owner) tiles += (rows_of(plan, owner) + TILE_M - 1) / TILE_M * tiles_n;
    const u32 first_own = tiles - (rows_of(plan, me) + TILE_M - 1) / TILE_M * tiles_n;

    if (warp < 4) {
        registers_give<72>();
        if (warp == 0 && elect_one()) {
            // This launch started, so the one before is done reading its partials: every peer may send new ones.
            if (blockIdx.x == 0) {
                for (u32 peer = 0; peer < world; ++peer) {
                    if (peer != me) counter_add(counter_on(plan, peer, plan.granted, me), 1);
                }
            }
            u32 stage = 0, parity = 0;
            for (u32 index = blockIdx.x; index < tiles; index += gridDim.x) {
                const Work work = work_at(plan, index, tiles_n);
                for (u32 step = 0; step < steps; ++step) {
                    const u32 full = base + FULL_AT + stage * 8;
                    mbarrier_wait(base + EMPTY_AT + stage * 8, parity ^ 1, watch, LOAD, EMPTY, stage);
                    mbarrier_expect(full, X_BYTES + W_BYTES);
                    // x is flat: the last tile of a chunk reads a few rows of the next, whose products are clipped.
                    tma_load(base + X_AT + stage * X_BYTES, x, full, step * TILE_K, work.owner * plan.rows + work.tile.row * TILE_M, 0, 0);
                    tma_load(base + W_AT + stage * W_BYTES, w, full, step * TILE_K, work.tile.column * TILE_N, 0, 0);
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        } else if (warp == 3) {
            if (elect_one()) {
                u32 consumer = 0, slot_0 = 0, slot_1 = 0, parity_0 = 0, parity_1 = 0;
                for (u32 index = blockIdx.x; index < tiles; index += gridDim.x, consumer ^= 1) {
                    if (index < first_own) continue;
                    const Tile tile = work_at(plan, index, tiles_n).tile;
                    u32 slot = consumer ? slot_1 : slot_0, parity = consumer ? parity_1 : parity_0;
                    for (u32 from = 0; from < world; ++from) {
                        if (from == me) continue;
                        const u32 cell = from * cells + tile.row * tiles_n + tile.column;
                        Counter* landed = counter_on(plan, me, plan.landed, cell);
                        counter_wait(landed, 1, watch, CARRY, LANDED, cell);
                        counter_advance(landed, 1);  // no one else waits on it
                        fence_async_global();
                        for (u32 part = 0; part < PARTS; ++part) {
                            const u32 at = consumer * CARRIES + slot, full = base + CARRY_FULL_AT + at * 8;
                            mbarrier_wait(base + CARRY_EMPTY_AT + at * 8, parity ^ 1, watch, CARRY, CARRY_EMPTY, at);
                            mbarrier_expect(full, PANEL_BYTES);
                            tma_load(base + CARRIES_AT + at * PANEL_BYTES, partial, full, tile.column * TILE_N + part * PANEL_N, tile.row * TILE_M, from, me);
                            if (++slot == CARRIES) slot = 0, parity ^= 1;
                        }
                    }
                    if (consumer) slot_1 = slot, parity_1 = parity;
                    else slot_0 = slot, parity_0 = parity;
                }
            }
        } else if (warp == 1 || warp == 2) {
            if (elect_one()) {
                const u32 consumer = warp - 1;
                u32 panel = 0, parity = 0, owner = me;
                Counter* unsignalled = nullptr;  // of the tile before, while its stores are in flight
                for (u32 index = blockIdx.x + consumer * gridDim.x; index < tiles; index += 2 * gridDim.x) {
                    const Work work = work_at(plan, index, tiles_n);
                    if (work.owner != owner) {
                        // Flushed before waiting for a peer's grant, or for a tile that waits for a peer's partials.
                        tma_wait<0>();
                        if (unsignalled) counter_add(unsignalled, 1);
                        unsignalled = nullptr;
                        owner = work.owner;
                        if (owner != me) {
                            counter_wait(counter_on(plan, me, plan.granted, owner), 1, watch, STORE, GRANTED, owner);
                            fence_async_global();
                        }
                    }
                    const TensorMap& out = owner == me ? y : partial;
                    const u32 slot = owner == me ? 0 : me, rank = owner == me ? 0 : owner;
                    for (u32 part = 0; part < PARTS; ++part) {
                        const u32 at = consumer * PANELS + panel;
                        mbarrier_wait(base + PANEL_FULL_AT + at * 8, parity, watch, STORE, PANEL_FULL, at);
                        tma_store(out, base + PANELS_AT + at * PANEL_BYTES, work.tile.column * TILE_N + part * PANEL_N, work.tile.row * TILE_M, slot, rank);
                        tma_commit();
                        tma_wait_read<0>();
                        mbarrier_arrive(base + PANEL_EMPTY_AT + at * 8);
                        if (++panel == PANELS) panel = 0, parity ^= 1;
                    }
                    if (owner == me) continue;
                    tma_wait<PARTS>();  // all but this tile's stores are complete
                    if (unsignalled) counter_add(unsignalled, 1);
                    unsignalled = counter_on(plan, owner, plan.landed, me * cells + work.tile.row * tiles_n + work.tile.column);
                }
                tma_wait<0>();
                if (unsignalled) counter_add(unsignalled, 1);
            }
        }
    } else {
        registers_take<216>();
        const u32 consumer = warp / 4 - 1;
        const u64 x_tile = wgmma_descriptor(base + X_AT), w_tile = wgmma_descriptor(base + W_AT);
        const u32 first_row = warp % 4 * 16;
        u32 panel = 0, panel_parity = 0, carry = 0, carry_parity = 0, turn_parity = consumer ^ 1;
        // In the ring the other consumer's tile lies between two of mine.
        u32 stage = consumer * steps % STAGES, parity = consumer * steps / STAGES % 2;
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

            for (u32 others = index < first_own ? 0 : world - 1; others != 0; --others) {
#pragma unroll
                for (u32 part = 0; part < PARTS; ++part) {
                    const u32 at = consumer * CARRIES + carry, panel_at = base + CARRIES_AT + at * PANEL_BYTES;
                    mbarrier_wait(base + CARRY_FULL_AT + at * 8, carry_parity, watch, MULTIPLY, CARRY_FULL, at);
                    panel_add<T, PANEL_N>(acc[0] + part * PANEL_N / 2, panel_at, first_row, lane);
                    panel_add<T, PANEL_N>(acc[1] + part * PANEL_N / 2, panel_at, 64 + first_row, lane);
                    fence_async_shared();  // these were ordinary reads; the next write to the slot is TMA's
                    __syncwarp();
                    if (lane == 0) mbarrier_arrive(base + CARRY_EMPTY_AT + at * 8);
                    if (++carry == CARRIES) carry = 0, carry_parity ^= 1;
                }
            }
#pragma unroll
            for (u32 part = 0; part < PARTS; ++part) {
                const u32 at = consumer * PANELS + panel, panel_at = base + PANELS_AT + at * PANEL_BYTES;
                mbarrier_wait(base + PANEL_EMPTY_AT + at * 8, panel_parity ^ 1, watch, MULTIPLY, PANEL_EMPTY, at);
                panel_store<T, PANEL_N>(acc[0] + part * PANEL_N / 2, panel_at, first_row, lane);
                panel_store<T, PANEL_N>(acc[1] + part * PANEL_N / 2, panel_at, 64 + first_row, lane);
                fence_async_shared();
                __syncwarp();
                if (lane == 0) mbarrier_arrive(base + PANEL_FULL_AT + at * 8);
                if (++panel == PANELS) panel = 0, panel_parity ^= 1;
            }
        }
    }

    // Every wait of this CTA on `granted` is over once warps 1 and 2 are here; the last of all moves their bases on.
    if (warp == 1 || warp == 2) {
        __syncwarp();
        const bool last = __shfl_sync(~0u, lane == 0 && last_of(plan.finished, 2 * gridDim.x), 0);
        if (last) {
            for (u32 peer = lane; peer < world; peer += 32) {
                if (peer != me) counter_advance(counter_on(plan, me, plan.granted, peer), 1);
            }
        }
    }
}
