// Rows that come to shared memory while those before are worked on: one thread asks for them, and the CTA's threads read them. The sums
// of such a CTA take one barrier.

#include "numbers.cuh"

// Threads of a CTA that has an SM to itself.
constexpr u32 WIDE = 512;
constexpr u32 WIDE_WARPS = WIDE / 32;

__device__ __forceinline__ u32 shared_of(const void* at) { return static_cast<u32>(__cvta_generic_to_shared(at)); }

// Threads that read a stage say so before they meet, and the one that asks for the next copies does it behind that.
__device__ __forceinline__ void has_read() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Barriers of stages, one each.
struct Stages {
    u32 barriers;

    // By all threads, before the first copy.
    __device__ __forceinline__ void begin(u64* at, u32 count) {
        barriers = shared_of(at);
        if (threadIdx.x == 0) {
            for (u32 stage = 0; stage < count; ++stage)
                asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers + 8 * stage) : "memory");
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            has_read();
        }
        __syncthreads();
    }

    // By one thread: so many eights are to come, by the copies that follow.
    __device__ __forceinline__ void expect(u32 stage, u32 eights) const {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barriers + 8 * stage), "r"(eights * 16) : "memory");
    }
    __device__ __forceinline__ void copy(u32 stage, uint4* to, const void* from, u64 eight, u32 eights) const {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_of(to)),
                     "l"(static_cast<const uint4*>(from) + eight), "r"(eights * 16), "r"(barriers + 8 * stage)
                     : "memory");
    }

    // By all threads. `turn`: 0 for a stage's first copies, 1 for the second, and so on in turns. Copies that do not come end the launch
    // with an error.
    __device__ __forceinline__ void wait(u32 stage, u32 turn) const {
        u32 is_there = 0;
#pragma unroll 1
        for (u32 tries = 0; tries < 1u << 24; ++tries) {
            asm volatile(
                "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                : "=r"(is_there)
                : "r"(barriers + 8 * stage), "r"(turn)
                : "memory");
            if (is_there) return;
        }
        __trap();
    }
};

// Adds warps in pairs.
template <u32 COUNT>
__device__ __forceinline__ void fold(Num (&sums)[WIDE_WARPS]) {
    if constexpr (COUNT > 1) {
#pragma unroll
        for (u32 warp = 0; warp < COUNT / 2; ++warp) sums[warp] = sums[warp] + sums[warp + COUNT / 2];
        fold<COUNT / 2>(sums);
    }
}

// COUNT sums over the CTA's threads in all of them, in the order of `sum_of_cta`, with one barrier: `of_warps` is not that of the sums
// before. What threads have read they have read for who asks for copies behind it.
template <u32 COUNT>
__device__ __forceinline__ void sums_of_cta(float (*of_warps)[WIDE_WARPS], Num (&sums)[COUNT]) {
#pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2)
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) sums[i] = sums[i] + Num(__shfl_xor_sync(0xffffffffu, sums[i].v, apart));
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i)
        if (threadIdx.x % 32 == 0) of_warps[i][threadIdx.x / 32] = sums[i].v;
    has_read();
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i) {
        Num all[WIDE_WARPS];
#pragma unroll
        for (u32 warp = 0; warp < WIDE_WARPS; ++warp) all[warp] = of_warps[i][warp];
        fold<WIDE_WARPS>(all);
        sums[i] = all[0];
    }
}
