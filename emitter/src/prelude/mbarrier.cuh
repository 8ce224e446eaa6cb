// mbarriers: how warps of a CTA (and of a cluster) hand each other stages of shared memory.
// A barrier counts arrivals and outstanding TMA bytes; a phase ends when both reach zero. Waiters name a phase by its
// parity, so a role keeps one running PipelineState and never resets a barrier. Who empties a slot waits for `phase`;
// who fills it waits for the one before (`phase ^ 1`), which is over at once in the first round.

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

// An arrival on CTA `cta` of the cluster: it may write into a place of this CTA's shared memory again. Relaxed on
// purpose, since all who used that place are complete, so that there is nothing left to order; a release at cluster
// scope would be a GPU-wide fence, at every step of K. Operands were read by wgmma, and wgmma_wait saw that. Subtiles
// were read by TMA, and tma_wait_read saw that; so what wrote them, and the sums of others that went into them, is
// past, too. Never hand over written data with this one. Pairs with mbarrier_wait_relaxed.
__device__ __forceinline__ void mbarrier_arrive_cluster(u32 barrier, u32 cta) {
    jitter();
    asm volatile(
        "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1;\n\t"
        "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote]; }" ::"r"(barrier), "r"(cta)
        : "memory");
}

// The same for memory that threads of this warp read by ordinary loads, after `__syncwarp`: CTA `cta` may write it
// again. Once a tile, when nothing waits for it. Pairs with mbarrier_wait_cluster.
__device__ __forceinline__ void mbarrier_arrive_release_cluster(u32 barrier, u32 cta) {
    jitter();
    asm volatile(
        "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1;\n\t"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote]; }" ::"r"(barrier), "r"(cta)
        : "memory");
}

// The same where CTA `cta` may be this one, whose threads also read the place by ordinary loads: a release at CTA scope
// orders those for it. At another CTA's barrier an arrival counts whatever its scope, and this one orders nothing
// there: what that CTA waits for was read by wgmma alone, and is complete. Pairs with mbarrier_wait.
__device__ __forceinline__ void mbarrier_arrive_release_own(u32 barrier, u32 cta) {
    jitter();
    asm volatile(
        "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1;\n\t"
        "mbarrier.arrive.release.cta.shared::cluster.b64 _, [remote]; }" ::"r"(barrier), "r"(cta)
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

// Answers at once.
__device__ __forceinline__ bool mbarrier_test_wait(u32 barrier, u32 parity) {
    jitter();
    u32 done;
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
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

// Acquire at CTA scope. Bounded, by more than all counters of a launch can be late: a barrier is never what gives up
// first. The clock is read only after a try_wait failed, so the usual path is one instruction and a branch.
__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 parity, const Watch& watch, u32 role, u32 what,
        u32 stage) {
    jitter();
    if (mbarrier_try_wait(barrier, parity)) return;
    const u64 start = global_nanoseconds();
    while (!mbarrier_try_wait(barrier, parity)) {
        if (global_nanoseconds() - start > watch.barrier_ns) stuck(watch, role, what, stage, parity, parity ^ 1);
    }
}

// Relaxed at cluster scope, for places whose users are all complete: the arrivals are mbarrier_arrive_cluster's.
__device__ __forceinline__ void mbarrier_wait_relaxed(u32 barrier, u32 parity, const Watch& watch, u32 role, u32 what,
        u32 stage) {
    jitter();
    if (mbarrier_try_wait_relaxed(barrier, parity)) return;
    const u64 start = global_nanoseconds();
    while (!mbarrier_try_wait_relaxed(barrier, parity)) {
        if (global_nanoseconds() - start > watch.barrier_ns) stuck(watch, role, what, stage, parity, parity ^ 1);
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
__device__ __forceinline__ void mbarrier_wait_cluster(u32 barrier, u32 parity, const Watch& watch, u32 role, u32 what,
        u32 stage) {
    jitter();
    if (mbarrier_try_wait_cluster(barrier, parity)) return;
    const u64 start = global_nanoseconds();
    while (!mbarrier_try_wait_cluster(barrier, parity)) {
        if (global_nanoseconds() - start > watch.barrier_ns) stuck(watch, role, what, stage, parity, parity ^ 1);
    }
}

// The scope at which arrivals at a barrier release and waits acquire. Relaxed: at none, since everything that they are
// about is complete by then. Own: this CTA's where it arrives itself, and relaxed where others of its cluster do.
enum class Scope { Cta, Own, Cluster, Relaxed };

// The mbarrier of one slot.
template <Scope SCOPE>
struct Barrier {
    u32 at;
    u32 name;  // in stall records
    u32 slot;

    __device__ __forceinline__ void wait(u32 parity, const Watch& watch, u32 role) const {
        if (SCOPE == Scope::Cta || SCOPE == Scope::Own) mbarrier_wait(at, parity, watch, role, name, slot);
        if (SCOPE == Scope::Cluster) mbarrier_wait_cluster(at, parity, watch, role, name, slot);
        if (SCOPE == Scope::Relaxed) mbarrier_wait_relaxed(at, parity, watch, role, name, slot);
    }

    // Whether it would not wait. Acquires as it does where that is so.
    __device__ __forceinline__ bool test(u32 parity) const {
        static_assert(SCOPE == Scope::Cta, "a wait at this CTA's scope");
        return mbarrier_test_wait(at, parity);
    }

    // Release at CTA scope.
    __device__ __forceinline__ void arrive() const {
        static_assert(SCOPE == Scope::Cta, "an arrival that other CTAs wait for has their scope: arrive_on");
        mbarrier_arrive(at);
    }

    // At this slot's barrier of CTA `cta` of the cluster.
    __device__ __forceinline__ void arrive_on(u32 cta) const {
        static_assert(SCOPE != Scope::Cta, "an arrival in another CTA orders nothing at this one's scope");
        if (SCOPE == Scope::Cluster) {
            mbarrier_arrive_release_cluster(at, cta);
        } else if (SCOPE == Scope::Own) {
            mbarrier_arrive_release_own(at, cta);
        } else {
            mbarrier_arrive_cluster(at, cta);
        }
    }

    __device__ __forceinline__ void expect(u32 bytes) const { mbarrier_expect(at, bytes); }
};

// An mbarrier of each slot, so far behind the base of shared memory.
template <u32 AT, u32 NAME, Scope SCOPE>
struct Barriers {
    u32 base;

    __device__ __forceinline__ Barrier<SCOPE> operator[](u32 slot) const { return {base + AT + slot * 8, NAME, slot}; }

    __device__ __forceinline__ void init(u32 slots, u32 arrivals) const {
        #pragma unroll 1
        for (u32 slot = 0; slot < slots; ++slot) mbarrier_init((*this)[slot].at, arrivals);
    }

    // With those that say that the same slots are empty.
    template <typename Empty>
    __device__ __forceinline__ void init(u32 slots, u32 arrivals, const Empty& empty, u32 releases) const {
        #pragma unroll 1
        for (u32 slot = 0; slot < slots; ++slot) {
            mbarrier_init((*this)[slot].at, arrivals);
            mbarrier_init(empty[slot].at, releases);
        }
    }
};

// Shared memory in slots of so many bytes, so far behind its base.
template <u32 AT, u32 BYTES>
struct Buffer {
    u32 base;

    __device__ __forceinline__ u32 operator[](u32 slot) const { return base + AT + slot * BYTES; }
};

// A role's place in a ring: its next slot, and the parity of that slot's phase. A consumer that has slots of its own
// cycles through its set of them. `token`: an early test of that phase found it over, so that its turn need not wait.
template <u32 SLOTS>
struct PipelineState {
    u32 first, index, phase;
    bool token;

    __device__ __forceinline__ explicit PipelineState(u32 set = 0)
        : first(set * SLOTS), index(first), phase(0), token(false) {}

    __device__ __forceinline__ void advance() {
        token = false;
        if (++index == first + SLOTS) index = first, phase ^= 1;
    }

    __device__ __forceinline__ void advance(u32 by) {
        token = false;
        index += by % SLOTS, phase ^= by / SLOTS % 2;
        if (index >= first + SLOTS) index -= SLOTS, phase ^= 1;
    }

    // The slot's place where the sets of all consumers have the same places.
    __device__ __forceinline__ u32 place() const { return index - first; }

    // The same slot in the set of the other one of two consumers.
    __device__ __forceinline__ u32 of_other() const { return (index + SLOTS) % (2 * SLOTS); }
};

// Two consumers one after the other: each waits until it is its turn, and arrives when it is the other one's. The first
// turn is the first consumer's.
struct OrderBarrier {
    u32 at, consumer, phase;

    __device__ __forceinline__ OrderBarrier(u32 at, u32 consumer) : at(at), consumer(consumer), phase(consumer ^ 1) {}

    // So many arrivals end a turn.
    __device__ __forceinline__ static void init(u32 at, u32 arrivals) {
        for (u32 consumer = 0; consumer < 2; ++consumer) mbarrier_init(at + consumer * 8, arrivals);
    }

    __device__ __forceinline__ void wait(const Watch& watch, u32 role, u32 name) {
        mbarrier_wait(at + consumer * 8, phase, watch, role, name, consumer);
        phase ^= 1;
    }

    __device__ __forceinline__ void arrive() const { mbarrier_arrive(at + (consumer ^ 1) * 8); }
};
