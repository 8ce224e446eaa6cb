// Counters between ranks. A cell is 64 bits and only grows; it lives in its waiter's memory on a line of its own, next to
// its base: the count before this launch. A launch waits for base + what it expects and then moves the base on, so M may
// change from call to call, nothing is reset and a captured graph can be replayed.

struct alignas(128) Counter {
    u64 count;  // peers add to it
    u64 base;   // only the owner's launches touch it
};

// Release at system scope: what this thread did, or saw complete (tma_wait, never tma_wait_read), happens before the
// add. Pairs with counter_wait on the rank that owns the cell.
__device__ __forceinline__ void counter_add(Counter* cell, u64 amount) {
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(&cell->count), "l"(amount) : "memory");
}

// Acquire at system scope once `arrivals` of this launch are in. If TMA touches the data next, fence_async_global
// follows. Polls relaxed, so that a poll invalidates no cache, and ends with an acquire of the same cell. Gives up after
// the time limit, or when a peer did.
__device__ __forceinline__ void counter_wait(const Counter* cell, u64 arrivals, const Watch& watch, u32 role, u32 what, u32 index) {
    const u64 wanted = *reinterpret_cast<const volatile u64*>(&cell->base) + arrivals;
    u64 seen;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(&cell->count) : "memory");
    if (seen >= wanted) return;
    const u64 start = global_nanoseconds();
    for (;;) {
        asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(&cell->count) : "memory");
        if (seen >= wanted) break;
        if (aborted(watch) || global_nanoseconds() - start > watch.timeout_ns) stalled(watch, role, what, index, seen, wanted);
        __nanosleep(32);
    }
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(&cell->count) : "memory");
}

// After the last wait of this launch on the cell: by its waiter if there is one, else by the launch's last CTA.
__device__ __forceinline__ void counter_advance(Counter* cell, u64 arrivals) {
    volatile u64* base = &cell->base;
    *base = *base + arrivals;
}

// True in the thread that comes last of `total`, which then sees what the others did before; resets itself. Decides who
// advances cells that several CTAs waited on.
__device__ __forceinline__ bool last_of(u32* finished, u32 total) {
    __threadfence();
    const bool last = atomicAdd(finished, 1u) == total - 1;
    if (last) {
        *finished = 0;
        __threadfence();
    }
    return last;
}
