// Compares what ranks launch on their GPUs. Replays of a graph that the program captured call no host, so a small kernel
// before each launch does for them what the hosts' ledger does: a rank writes its launch to every peer, and then looks at
// what the peers wrote. Of two ranks that differ, at least one sees the other's. It waits for nobody. A rank may be further
// ahead than there are slots. What a slot has then covers all replays before it, so a difference is seen once the other
// rank comes to a launch whose slot is still there.
#include "prelude.cuh"

// What a launch is compared by: its place among all launches of its rank, and what it is.
struct Slot {
    u64 mark;  // the low halves of place + 1, and of the launch and all replays before it, mixed; stored at once
    u64 tag;   // of kernel, plan and offsets, for the report
};

// In every rank's slot of the heap. Slots follow: for each peer as many as it may be ahead.
struct Agreement {
    u64 launches;  // of this rank's host, so far
    u64 replays;   // so far
    u64 digest;    // of all replays so far, and their places: the hosts' ledger compares what hosts launch
    u64 unused[13];
};

constexpr u32 AHEAD = 64;

__device__ __forceinline__ Slot* slot(char* boards, u64 stride, u32 home, u32 by, u32 at) {
    return reinterpret_cast<Slot*>(boards + home * stride + sizeof(Agreement)) + by * AHEAD + at;
}

// One number of three.
__device__ __forceinline__ u64 mixed(u64 digest, u64 tag, u64 count) {
    u64 mix = (digest ^ tag) * 0x9e3779b97f4a7c15;
    mix = (mix ^ mix >> 32 ^ count) * 0xd6e8feb86659fd93;
    return mix ^ mix >> 32;
}

constexpr u32 DIFFERS = 5;  // beside the causes of a wait
constexpr u64 REPLAY = ~0ull;

// One thread for each rank. `far`: host memory that says how far this rank is. `launched`: which launch of this rank's host
// it is, or REPLAY.
extern "C" __global__ void agree(const __grid_constant__ Watch watch, char* boards, u64 stride, volatile u64* far, u64 tag,
        u64 launched) {
    const u32 peer = threadIdx.x;
    volatile Agreement* own = reinterpret_cast<Agreement*>(boards + watch.rank * stride);
    const u64 launches = launched == REPLAY ? own->launches : launched;
    const u64 replays = own->replays;
    const u64 digest = own->digest;
    const u64 place = launches + replays;
    // A replay and a launch of a host differ in how many launches come before the next one.
    const u64 after = launches + (launched == REPLAY ? 0 : 1);
    const u64 wanted = (place + 1) << 32 | static_cast<u32>(mixed(digest, tag, after));
    __syncthreads();
    if (peer == 0) {
        own->launches = after;
        own->replays = replays + (launched == REPLAY ? 1 : 0);
        if (launched == REPLAY) own->digest = mixed(digest, tag, place);
        *far = place + 1;
    }
    if (peer == watch.rank || peer >= watch.world) return;
    const u32 at = place % AHEAD;
    Slot* there = slot(boards, stride, peer, watch.rank, at);
    const Slot* here = slot(boards, stride, watch.rank, peer, at);
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(&there->tag), "l"(tag) : "memory");
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(&there->mark), "l"(wanted) : "memory");
    // Each writes before this and reads after it.
    asm volatile("fence.sc.sys;" ::: "memory");
    u64 mark, theirs;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(mark) : "l"(&here->mark) : "memory");
    if (mark >> 32 != wanted >> 32 || mark == wanted) return;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(theirs) : "l"(&here->tag) : "memory");
    // Replayed or launched by a host, after the same replays. Else these differ.
    const u32 seen = static_cast<u32>(mark);
    const bool together = seen == static_cast<u32>(mixed(digest, theirs, launches)) ||
                          seen == static_cast<u32>(mixed(digest, theirs, launches + 1));
    if (atomicExch(watch.claim, 1u) == 0)
        record_stall(watch, DIFFERS, together ? 0 : 1, peer, static_cast<u32>(place), theirs, tag);
}
