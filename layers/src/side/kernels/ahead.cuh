// Copies to shared memory that are on their way while threads work.

// One copy at a time, for the whole CTA.
struct Copied {
    u32 barrier;
    __device__ __forceinline__ Copied(u64* barrier) : barrier(static_cast<u32>(__cvta_generic_to_shared(barrier))) {}
    // By all threads, before the first copy.
    __device__ __forceinline__ void begin() const {
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        }
        __syncthreads();
    }
    // By one thread, behind a barrier that all threads pass when they have read what was there.
    __device__ __forceinline__ void copy(uint4* to, const uint4* from, u32 eights) const {
        const u32 address = static_cast<u32>(__cvta_generic_to_shared(to));
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(eights * 16) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address), "l"(from),
                     "r"(eights * 16), "r"(barrier)
                     : "memory");
    }
    // By all threads. `turn`: 0 for the first copy, 1 for the second, and so on in turns. A copy that does not come ends the launch with
    // an error.
    __device__ __forceinline__ void wait(u32 turn) const {
        u32 is_there = 0;
#pragma unroll 1
        for (u32 tries = 0; tries < 1u << 24; ++tries) {
            asm volatile(
                "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                : "=r"(is_there)
                : "r"(barrier), "r"(turn)
                : "memory");
            if (is_there) return;
        }
        __trap();
    }
};

// The next ones are each thread's own: the thread that waits for its copies may read them.

// Copies 16 bytes.
__device__ __forceinline__ void copy_async(uint4* to, const void* from, u64 eight) {
    const u32 address = static_cast<u32>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(static_cast<const uint4*>(from) + eight) : "memory");
}
// Ends a group: the copies since the last one.
__device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for the copies of all groups but the last AHEAD.
template <u32 AHEAD>
__device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD) : "memory");
}
