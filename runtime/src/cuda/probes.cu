// Kernels that measure memory and links. Their data mean nothing. No kernel of a schedule includes this.
#include "prelude.cuh"

constexpr u32 CHUNK = 16 << 10;  // bytes of one bulk copy
constexpr u32 SLOTS = 8;         // chunks in flight, in dynamic shared memory
constexpr u32 LEAD = SLOTS / 2;  // loads ahead of their stores
constexpr u32 TICKET = 8;        // chunks that a CTA takes at a time
constexpr u64 LIMIT = 2000000000;  // nanoseconds of any wait

__device__ __forceinline__ void bulk_load(u32 shared, const char* from, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
        "l"(from), "r"(CHUNK), "r"(barrier)
        : "memory");
}

__device__ __forceinline__ void bulk_store(char* to, u32 shared) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared), "r"(CHUNK)
        : "memory");
}

// bf16 sums. What is added is zero in all probes.
__device__ __forceinline__ void bulk_add(char* to, u32 shared) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%0], [%1], %2;" ::"l"(to),
        "r"(shared), "r"(CHUNK)
        : "memory");
}

// A chunk that never lands is a fault of the GPU: the launch ends with an error.
__device__ __forceinline__ void landed(u32 barrier, u32 parity) {
    if (mbarrier_try_wait(barrier, parity)) return;
    const u64 start = global_nanoseconds();
    while (!mbarrier_try_wait(barrier, parity)) {
        if (global_nanoseconds() - start > LIMIT) asm volatile("trap;");
    }
}

__device__ __forceinline__ void make_barriers(u32 barriers) {
    for (u32 slot = 0; slot < SLOTS; ++slot) mbarrier_init(barriers + slot * 8, 1);
    mbarrier_init_fence();
}

// Each CTA reads `each` chunks, and keeps none. `alike` CTAs read the same ones. The first chunk is `first` further on from
// one of them to the next, and each is `step` further on than the one before; beyond the last one comes the first.
extern "C" __global__ void __launch_bounds__(32) probe_read(const char* from, u64 chunks, u64 each, u64 first, u64 step,
        u32 alike) {
    extern __shared__ __align__(128) u8 slots[];
    __shared__ u64 full[SLOTS];
    if (threadIdx.x != 0) return;
    const u32 barriers = shared_address(full);
    make_barriers(barriers);
    u64 at = blockIdx.x / alike * first % chunks;
    for (u64 i = 0; i < each + SLOTS; ++i) {
        const u32 slot = i % SLOTS;
        if (i >= SLOTS && i - SLOTS < each) landed(barriers + slot * 8, (i / SLOTS - 1) & 1);
        if (i >= each) continue;
        mbarrier_expect(barriers + slot * 8, CHUNK);
        bulk_load(shared_address(slots) + slot * CHUNK, from + at * CHUNK, barriers + slot * 8);
        at = (at + step) % chunks;
    }
}

// CTAs copy chunks, or add them to what is there, each the next ones that no other has taken. `ticket` is 0 before.
extern "C" __global__ void __launch_bounds__(32) probe_move(const char* from, char* to, u64 chunks, u32 add,
        u32* ticket) {
    extern __shared__ __align__(128) u8 slots[];
    __shared__ u64 full[SLOTS];
    __shared__ u64 place[SLOTS];
    if (threadIdx.x != 0) return;
    const u32 barriers = shared_address(full);
    make_barriers(barriers);
    u64 next = u64(atomicAdd(ticket, 1)) * TICKET;
    u64 at = chunks, end = 0;
    u64 loaded = 0, stored = 0;
    while (true) {
        if (at >= end && next < chunks) {
            at = next;
            end = min(at + TICKET, chunks);
            next = u64(atomicAdd(ticket, 1)) * TICKET;
        }
        const bool more = at < end;
        if (!more && stored == loaded) break;
        if (more) {
            const u32 slot = loaded % SLOTS;
            // The store from this slot has read it: of those since, as many may be under way.
            tma_wait_read<SLOTS - LEAD - 1>();
            place[slot] = at * CHUNK;
            mbarrier_expect(barriers + slot * 8, CHUNK);
            bulk_load(shared_address(slots) + slot * CHUNK, from + at * CHUNK, barriers + slot * 8);
            ++loaded;
            ++at;
        }
        if (loaded - stored > LEAD || !more) {
            const u32 slot = stored % SLOTS;
            landed(barriers + slot * 8, (stored / SLOTS) & 1);
            const u32 shared = shared_address(slots) + slot * CHUNK;
            if (add) {
                bulk_add(to + place[slot], shared);
            } else {
                bulk_store(to + place[slot], shared);
            }
            tma_commit();
            ++stored;
        }
    }
    tma_wait<0>();
}

// Two sides signal each other in turn, `rounds` times; the first `warm` are not timed. The second CTA, if there is one, is the
// other side. Both cells are 0 before. `told` becomes the nanoseconds, or stays 0 where the other side did not come.
extern "C" __global__ void __launch_bounds__(32) probe_signal(u64* own, u64* other, u32 begins, u64 rounds, u64 warm,
        u64* told) {
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 1) {
        u64* swapped = own;
        own = other;
        other = swapped;
        begins ^= 1;
    }
    u64 start = global_nanoseconds();
    const u64 limit = start + LIMIT;
    for (u64 round = 1; round <= rounds; ++round) {
        for (u32 turn = 0; turn < 2; ++turn) {
            if ((turn == 0) == (begins != 0)) {
                asm volatile("red.release.sys.global.add.u64 [%0], 1;" ::"l"(other) : "memory");
                continue;
            }
            u64 seen = 0;
            while (seen < round) {
                asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(own) : "memory");
                if (global_nanoseconds() > limit) return;
            }
        }
        if (round == warm) start = global_nanoseconds();
    }
    if (begins) *told = global_nanoseconds() - start;
}

// For the question how many clusters run at once: asked, never launched.
extern "C" __global__ void __launch_bounds__(32) probe_whole_sm() {}
