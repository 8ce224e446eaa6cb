// y = all_gather(x) * w^T. A few CTAs push my rows of x to every peer, piece by piece, and then join the others, which
// multiply my own rows first and then every chunk in the order it arrives, each tile as soon as the piece it reads is
// here. Tiles are dealt out in that one order, wave by wave; the plan says from which wave on the pushing CTAs take part.

typedef bf16 T;
constexpr u32 TILE_M = 128, TILE_N = 256, TILE_K = 64;
constexpr u32 STAGES = 3;      // stages of x and w in flight
constexpr u32 PANEL_N = 64;    // columns of an output panel
constexpr u32 PANELS = 4;      // output panels in flight
constexpr u32 CONSUMERS = 2;   // warpgroups, 64 rows each
constexpr u32 COMM_CTAS = 8;   // the first blocks push before they multiply
constexpr u32 PIECE = 128;     // rows that travel and are signalled together
constexpr u32 UNIT = 16;       // boxes of a piece (64 columns each) that one comm CTA sends and signals together
constexpr u32 SLOTS = 12;      // boxes a comm CTA holds,
constexpr u32 SENDING = 5;     // of which so many may be stores still to be read, the rest loads

// Shared memory, from a 1024-byte aligned base (the swizzle's period).
constexpr u32 X_BYTES = TILE_M * TILE_K * 2, W_BYTES = TILE_N * TILE_K * 2, PANEL_BYTES = TILE_M * PANEL_N * 2;
constexpr u32 BOX_BYTES = PIECE * 64 * 2;
constexpr u32 X_AT = 0;
constexpr u32 W_AT = X_AT + STAGES * X_BYTES;
constexpr u32 PANELS_AT = W_AT + STAGES * W_BYTES;
constexpr u32 FULL_AT = PANELS_AT + PANELS * PANEL_BYTES;
constexpr u32 EMPTY_AT = FULL_AT + STAGES * 8;
constexpr u32 PANEL_FULL_AT = EMPTY_AT + STAGES * 8;
constexpr u32 PANEL_EMPTY_AT = PANEL_FULL_AT + PANELS * 8;
constexpr u32 SLOT_FULL_AT = PANEL_EMPTY_AT + PANELS * 8;
constexpr u32 SHARED_BYTES = SLOT_FULL_AT + SLOTS * 8;
static_assert(SHARED_BYTES <= 232448);  // what a CTA may have on sm_90
static_assert(SLOTS * BOX_BYTES <= FULL_AT);

// Names for stall records.
enum Role : u32 { LOAD, MULTIPLY, STORE, COMM };
enum What : u32 { FULL, EMPTY, PANEL_FULL, PANEL_EMPTY, SLOT_FULL, ARRIVED, GRANTED };

struct Plan {
    u32 m, n, k;
    u32 group;   // row tiles swept together along the columns
    u32 me, world;
    u32 rows;    // in a chunk; the last one that has any may have fewer
    u32 tail;    // that chunk, if it has fewer: its rows of y have a map of their own
    char* heap;  // slot r of the symmetric heap starts r * stride further
    u64 stride;
    u64 arrived;  // Counter[world][pieces in a chunk], offset in a slot: pieces of x that arrived here
    u64 granted;  // Counter[world]: peer r lets me overwrite its x
    u32* finished;  // CTAs done with their waits
    u32 join;       // waves of tiles before the pushing CTAs take part
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

// This CTA's tiles. Tile b of a wave is block b's: fixed, so that neighbouring SMs stay in step and L2 sees their common
// rows and columns once.
__device__ __forceinline__ u32 first_tile(const Plan& plan) {
    const u32 others = gridDim.x - COMM_CTAS;
    return blockIdx.x >= COMM_CTAS && plan.join != 0 ? blockIdx.x - COMM_CTAS : plan.join * others + blockIdx.x;
}
__device__ __forceinline__ u32 next_tile(const Plan& plan, u32 index) {
    const u32 others = gridDim.x - COMM_CTAS, joined = plan.join * others;
    if (index >= joined) return index + gridDim.x;
    return index + others < joined ? index + others : joined + blockIdx.x;
}

struct Work {
    u32 chunk;
    Tile tile;
};

// Tile `index` of all: my chunk first, then in the order the others arrive.
__device__ __forceinline__ Work work_at(const Plan& plan, u32 index, u32 tiles_n) {
    for (u32 hop = 0;; ++hop) {
        const u32 chunk = (plan.me + hop) % plan.world;
        const u32 tiles_m = (rows_of(plan, chunk) + TILE_M - 1) / TILE_M, tiles = tiles_m * tiles_n;
        if (index < tiles) return {chunk, grouped(index, tiles_m, tiles_n, plan.group)};
        index -= tiles;
    }
}

// A box on its way: the comm CTA's units in turn, box by box along the columns. Divisions once a unit, not once a box.
struct Cursor {
    u32 unit, box;  // the CTA's how-manieth unit, the box in it
    u32 peer, row, column;

    // Units go round the comm CTAs; peers me-1, me-2, ... outermost, then pieces, then columns.
    __device__ __forceinline__ void at_unit(const Plan& plan, u32 pieces, u32 units) {
        const u32 id = blockIdx.x + unit * COMM_CTAS;
        peer = (plan.me + plan.world - 1 - id / (pieces * units)) % plan.world;
        row = id / units % pieces * PIECE;
        column = id % units * UNIT * 64;
    }
    __device__ __forceinline__ void next(const Plan& plan, u32 pieces, u32 units) {
        column += 64;
        if (++box == UNIT) {
            box = 0;
            ++unit;
            at_unit(plan, pieces, units);
        }
    }
};

// A comm CTA's share of sending my chunk to every peer. One thread; the ring's memory holds its boxes.
__device__ __forceinline__ void push(const TensorMap& x, const Plan& plan, u32 base, u32 steps, const Watch& watch) {
    const u32 me = plan.me, world = plan.world;
    // This launch started, so the one before is done reading x: every peer may write its rows here.
    if (blockIdx.x == 0) {
        for (u32 peer = 0; peer < world; ++peer) {
            if (peer != me) counter_add(counter_on(plan, peer, plan.granted, me), 1);
        }
    }
    const u32 stride = (plan.rows + PIECE - 1) / PIECE, pieces = (rows_of(plan, me) + PIECE - 1) / PIECE;
    const u32 units = (steps + UNIT - 1) / UNIT;  // of a piece
    const u32 all_units = (world - 1) * pieces * units;
    if (blockIdx.x >= all_units) return;
    const u32 my_units = (all_units - blockIdx.x + COMM_CTAS - 1) / COMM_CTAS;

    Cursor in = {}, out = {};
    in.at_unit(plan, pieces, units);
    out.at_unit(plan, pieces, units);
    Counter* unsignalled = nullptr;  // of the unit before, while its stores are in flight
    u32 granted_by = me, in_slot = 0, slot = 0, parity = 0;
    const auto load = [&] {
        if (in.unit == my_units) return;
        const u32 full = base + SLOT_FULL_AT + in_slot * 8;
        mbarrier_expect(full, BOX_BYTES);
        tma_load(base + in_slot * BOX_BYTES, x, full, in.column, in.row, me, me);
        in.next(plan, pieces, units);
        if (++in_slot == SLOTS) in_slot = 0;
    };
    for (u32 ahead = 0; ahead < SLOTS - SENDING; ++ahead) load();
    while (out.unit < my_units) {
        if (out.peer != granted_by) {
            tma_wait<0>();  // nothing stays unsignalled across a wait for a peer
            if (unsignalled) counter_add(unsignalled, 1);
            unsignalled = nullptr;
            counter_wait(counter_on(plan, me, plan.granted, out.peer), 1, watch, COMM, GRANTED, out.peer);
            fence_async_global();
            granted_by = out.peer;
        }
        Counter* arrived = counter_on(plan, out.peer, plan.arrived, me * stride + out.row / PIECE);
        for (u32 box = 0; box < UNIT; ++box) {
            mbarrier_wait(base + SLOT_FULL_AT + slot * 8, parity, watch, COMM, SLOT_FULL, slot);
            tma_store(x, base + slot * BOX_BYTES, out.column, out.row, me, out.peer);
            tma_commit();
            if (++slot == SLOTS) slot = 0, parity ^= 1;
            out.next(plan, pieces, units);
            tma_wait_read<SENDING>();  // all but the latest SENDING boxes left their slots
            load();
        }
        tma_wait<UNIT>();  // all but this unit's boxes are complete
        if (unsignalled) counter_add(unsignalled, 1);
        unsignalled = arrived;
    }
    tma_wait<0>();  // and the ring's memory is free for the multiplying that follows
    counter_add(unsignalled, 1);
}

// What the host must know to launch this variant.
extern "C" __constant__ u32 facts[] = {TILE_M, TILE_N, SHARED_BYTES, 1, PANEL_N, COMM_CTAS};

extern "C" __global__ void __launch_bounds__(384, 1)
ag_gemm(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const __grid_constant__ TensorMap y,
        const __grid_constant__ TensorMap y_tail, const __grid_constant__ Plan plan, const __grid_constant__ Watch watch) {
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
        for (u32 slot = 0; slot < SLOTS; ++slot) mbarrier_init(base + SLOT_FULL_AT + slot * 8, 1);
        mbarrier_init_fence();
    }
    __syncthreads();

    const u32 me = plan.me, world = plan.world;
    const u32 pieces = (plan.rows + PIECE - 1) / PIECE;  // of a full chunk: the stride of `arrived`
    const u32 steps = (plan.k + TILE_K - 1) / TILE_K;
    const u32 units = (steps + UNIT - 1) / UNIT;  // of a piece: what a piece's counter expects
    const u32 tiles_n = (plan.n + TILE_N - 1) / TILE_N;
    u32 tiles = 0;
    for (u32 chunk = 0; chunk < world; ++chunk) tiles += (rows_of(plan, chunk) + TILE_M - 1) / TILE_M * tiles_n;

    if (warp < 4) {
        registers_give<72>();
        if (warp == 0 && elect_one()) {
            if (blockIdx.x < COMM_CTAS) push(x, plan, base, steps, watch);
            u32 index = first_tile(plan);
            u32 stage = 0, parity = 0;
            for (; index < tiles; index = next_tile(plan, index)) {
                const Work work = work_at(plan, index, tiles_n);
                for (u32 step = 0; step < steps; ++step) {
                    const u32 full = base + FULL_AT + stage * 8;
                    mbarrier_wait(base + EMPTY_AT + stage * 8, parity ^ 1, watch, LOAD, EMPTY, stage);
                    mbarrier_expect(full, X_BYTES + W_BYTES);
                    tma_load(base + W_AT + stage * W_BYTES, w, full, step * TILE_K, work.tile.column * TILE_N, 0, 0);
                    if (step == 0 && work.chunk != me) {
                        const u32 cell = work.chunk * pieces + work.tile.row * TILE_M / PIECE;
                        counter_wait(counter_on(plan, me, plan.arrived, cell), units, watch, LOAD, ARRIVED, cell);
                        fence_async_global();
                    }
                    tma_load(base + X_AT + stage * X_BYTES, x, full, step * TILE_K, work.tile.row * TILE_M, work.chunk, me);
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        } else if (warp == 1 && elect_one()) {
            u32 panel = 0, parity = 0;
            for (u32 index = first_tile(plan); index < tiles; index = next_tile(plan, index)) {
                const Work work = work_at(plan, index, tiles_n);
                const TensorMap& out = work.chunk == plan.tail ? y_tail : y;
                const u32 out_chunk = work.chunk == plan.tail ? 0 : work.chunk;
                for (u32 part = 0; part < TILE_N / PANEL_N; ++part) {
                    mbarrier_wait(base + PANEL_FULL_AT + panel * 8, parity, watch, STORE, PANEL_FULL, panel);
                    tma_store(out, base + PANELS_AT + panel * PANEL_BYTES, work.tile.column * TILE_N + part * PANEL_N, work.tile.row * TILE_M, out_chunk, 0);
                    tma_commit();
                    tma_wait_read<0>();
                    mbarrier_arrive(base + PANEL_EMPTY_AT + panel * 8);
                    if (++panel == PANELS) panel = 0, parity ^= 1;
                }
            }
            tma_wait<0>();
        }
    } else {
        registers_take<216>();
        const u32 consumer = warp / 4 - 1;
        const u64 x_tile = wgmma_descriptor(base + X_AT) + consumer * WGMMA_64_ROWS;
        const u64 w_tile = wgmma_descriptor(base + W_AT);
        const u32 first_row = consumer * 64 + warp % 4 * 16;
        u32 stage = 0, parity = 0, panel = 0, panel_parity = 0;
        for (u32 index = first_tile(plan); index < tiles; index = next_tile(plan, index)) {
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

    // Every wait of this CTA on `arrived` and `granted` is over once warp 0 is here; the last CTA moves their bases on.
    if (warp == 0) {
        __syncwarp();
        const bool last = __shfl_sync(~0u, lane == 0 && last_of(plan.finished, gridDim.x), 0);
        if (last) {
            for (u32 chunk = 0; chunk < world; ++chunk) {
                if (chunk == me) continue;
                const u32 sent = (rows_of(plan, chunk) + PIECE - 1) / PIECE;
                for (u32 piece = lane; piece < sent; piece += 32) counter_advance(counter_on(plan, me, plan.arrived, chunk * pieces + piece), units);
                if (lane == 0) counter_advance(counter_on(plan, me, plan.granted, chunk), 1);
            }
        }
    }
}
