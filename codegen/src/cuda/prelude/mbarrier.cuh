// mbarriers: how warps of a CTA (and of a cluster) hand each other stages of shared memory.
// A barrier counts arrivals and outstanding TMA bytes; a phase ends when both reach zero. Waiters name a phase by its
// parity, so a role keeps one running (stage, parity) pair and never resets a barrier. Who empties waits for the phase of
// its own lap; who fills waits for the lap before (parity ^ 1), which is over at once in the first lap.

// `arrivals` of them end a phase.
__device__ __forceinline__ void mbarrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// After the inits, before the CTA (or cluster) barrier: makes them visible to the async proxy and to peer CTAs.
__device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Release at CTA scope: what this thread did before is ordered before what a waiter of this phase does after.
__device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
    jitter();
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// An arrival on CTA `cta` of the cluster: it may write into a place of this CTA's shared memory again. Relaxed on purpose,
// since all who used that place are complete, so that there is nothing left to order; a release at cluster scope would be
// a GPU-wide fence, at every step of K. Operands were read by wgmma, and wgmma_wait saw that. Panels were read by TMA, and
// tma_wait_read saw that; so what wrote them, and the sums of others that went into them, is past, too.
// Never hand over written data with this one. Pairs with mbarrier_wait_relaxed.
__device__ __forceinline__ void mbarrier_arrive_cluster(u32 barrier, u32 cta) {
    jitter();
    asm volatile(
        "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1;\n\t"
        "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote]; }" ::"r"(barrier), "r"(cta)
        : "memory");
}

// The same for memory that threads of this warp read by ordinary loads, after `__syncwarp`: CTA `cta` may write it again.
// Once a tile, when nothing waits for it. Pairs with mbarrier_wait_cluster.
__device__ __forceinline__ void mbarrier_arrive_release_cluster(u32 barrier, u32 cta) {
    jitter();
    asm volatile(
        "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1;\n\t"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote]; }" ::"r"(barrier), "r"(cta)
        : "memory");
}

// One arrival that also announces `bytes` of TMA data; the phase ends when they have landed, and the data is then
// visible to every waiter (TMA's complete_tx pairs with the wait, no proxy fence needed on the reading side).
__device__ __forceinline__ void mbarrier_expect(u32 barrier, u32 bytes) {
    jitter();
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// The hardware may suspend the thread for a while before it answers no: no sleep is needed around it.
__device__ __forceinline__ bool mbarrier_try_wait(u32 barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}

__device__ __forceinline__ bool mbarrier_try_wait_relaxed(u32 barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}

// Acquire at CTA scope. Bounded, at twice the counters' limit: when a counter is late, the counter is what gets named.
// The clock is read only after a try_wait failed, so the usual path is one instruction and a branch.
__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 parity, const Watch& watch, u32 role, u32 what, u32 stage) {
    jitter();
    if (mbarrier_try_wait(barrier, parity)) return;
    const u64 start = global_nanoseconds();
    while (!mbarrier_try_wait(barrier, parity)) {
        if (global_nanoseconds() - start > 2 * watch.timeout_ns) stalled(watch, role, what, stage, parity, parity ^ 1);
    }
}

// Relaxed at cluster scope, for places whose users are all complete: the arrivals are mbarrier_arrive_cluster's.
__device__ __forceinline__ void mbarrier_wait_relaxed(u32 barrier, u32 parity, const Watch& watch, u32 role, u32 what, u32 stage) {
    jitter();
    if (mbarrier_try_wait_relaxed(barrier, parity)) return;
    const u64 start = global_nanoseconds();
    while (!mbarrier_try_wait_relaxed(barrier, parity)) {
        if (global_nanoseconds() - start > 2 * watch.timeout_ns) stalled(watch, role, what, stage, parity, parity ^ 1);
    }
}

// Acquire at cluster scope: what other CTAs sent, or read, comes before what this thread does next.
__device__ __forceinline__ bool mbarrier_try_wait_cluster(u32 barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}
__device__ __forceinline__ void mbarrier_wait_cluster(u32 barrier, u32 parity, const Watch& watch, u32 role, u32 what, u32 stage) {
    jitter();
    if (mbarrier_try_wait_cluster(barrier, parity)) return;
    const u64 start = global_nanoseconds();
    while (!mbarrier_try_wait_cluster(barrier, parity)) {
        if (global_nanoseconds() - start > 2 * watch.timeout_ns) stalled(watch, role, what, stage, parity, parity ^ 1);
    }
}
