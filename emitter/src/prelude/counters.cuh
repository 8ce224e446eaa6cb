// Counters between ranks. A cell is 64 bits and only grows; it lives in its waiter's memory on a line of its own, next
// to its base: the count before this launch. A launch waits for base + what arrives in it, and then moves the base on,
// so M may change from call to call, nothing is reset and a captured graph can be replayed.

struct alignas(128) Counter {
    u64 count;  // peers add to it
    u64 base;   // only the owner's launches touch it
};

// All counters of a kernel: the cells of one set follow those of another, in the same order on every rank.
struct Cells {
    char* heap;            // slot r of the symmetric heap starts r * stride further
    u64 stride;
    u64 offset;            // of cell 0 in a slot
    const u32* arrivals;   // in this rank's memory: how much arrives at each of its cells in this launch
    u32* finished;         // in this rank's memory: zero between launches
};

__device__ __forceinline__ Counter* counter_on(const Cells& cells, u32 rank, u32 cell) {
    return reinterpret_cast<Counter*>(cells.heap + rank * cells.stride + cells.offset) + cell;
}

// Release at system scope: what this thread did, or saw complete (tma_wait, never tma_wait_read), happens before the
// add. Pairs with counter_wait on the rank that owns the cell.
__device__ __forceinline__ void counter_add(Counter* counter, u64 amount) {
    jitter();
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(&counter->count), "l"(amount) : "memory");
}
__device__ __forceinline__ void counter_add(const Cells& cells, u32 rank, u32 cell, u64 amount) {
    counter_add(counter_on(cells, rank, cell), amount);
}

// The rest of a wait whose signal is not there. Polls relaxed, so that a poll invalidates no cache, and ends with an
// acquire of the same cell. After the time limit, or when it is told to, it returns without the signal: the caller goes
// on as usual, moves bases on and sends its own signals, so that whoever waits for those drains too. A call, which
// costs its caller no copy of this text.
__device__ __noinline__ void counter_spin(const Counter* counter, u64 wanted, const Watch& watch, u32 role, u32 what,
        u32 cell) {
    const u64 start = global_nanoseconds();
    u64 seen;
    for (u32 looks = 1;; ++looks) {
        asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(&counter->count) : "memory");
        if (seen >= wanted) break;
        if (gives_up(watch, role, what, cell, seen, wanted, start, looks)) return;
        __nanosleep(32);
    }
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(&counter->count) : "memory");
    jitter();
}

// Acquire at system scope once `arrivals` of this launch are in. If TMA touches the data next, fence_async_global
// follows.
__device__ __forceinline__ void counter_wait_for(const Cells& cells, u32 me, u32 cell, u64 arrivals,
        const Watch& watch, u32 role, u32 what) {
    const Counter* counter = counter_on(cells, me, cell);
    const u64 wanted = *reinterpret_cast<const volatile u64*>(&counter->base) + arrivals;
    u64 seen;
    jitter();
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(&counter->count) : "memory");
    if (seen < wanted) counter_spin(counter, wanted, watch, role, what, cell);
}

// For all that arrives in this launch.
__device__ __forceinline__ void counter_wait(const Cells& cells, u32 me, u32 cell, const Watch& watch, u32 role,
        u32 what) {
    counter_wait_for(cells, me, cell, cells.arrivals[cell], watch, role, what);
}

// For all that arrived in the launches before: a credit that they gave for this one.
__device__ __forceinline__ void counter_wait_before(const Cells& cells, u32 me, u32 cell, const Watch& watch, u32 role,
        u32 what) {
    counter_wait_for(cells, me, cell, 0, watch, role, what);
}

// After the last wait of this launch on the cell: by its waiter if there is one, else by the launch's last CTA.
__device__ __forceinline__ void counter_advance(const Cells& cells, u32 me, u32 cell) {
    jitter();
    volatile u64* base = &counter_on(cells, me, cell)->base;
    *base = *base + cells.arrivals[cell];
}

// `count` cells from `first` on, by the lanes of a warp together.
__device__ __forceinline__ void counters_advance(const Cells& cells, u32 me, u32 first, u32 count, u32 lane) {
    for (u32 cell = lane; cell < count; cell += 32) counter_advance(cells, me, first + cell);
}

// True in the thread that comes last of `total`, which then sees what the others did before; resets itself. Decides who
// speaks for all CTAs.
__device__ __forceinline__ bool last_of(u32* finished, u32 total) {
    jitter();
    __threadfence();
    const bool last = atomicAdd(finished, 1u) == total - 1;
    if (last) {
        *finished = 0;
        __threadfence();
    }
    return last;
}
