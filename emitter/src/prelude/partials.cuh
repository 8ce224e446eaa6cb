// Accumulators between the CTAs of a cluster that share the K steps of a tile, for the same thread of another CTA. Four
// of them lie together, and those of a warp's threads one after another: 512 bytes, which meet no bank twice.

// Send a thread's accumulators of a subtile to a place of CTA `cta`. `place` and `barrier` are addresses as in this
// CTA; the stores complete on the barrier there with their bytes, as TMA's do, and are then visible to who waits at
// cluster scope. So nobody waits for them here: an arrival that releases ordinary stores would be a GPU-wide fence.
template <u32 width, u32 threads>
__device__ __forceinline__ void partial_send(const float* d, u32 place, u32 barrier, u32 cta, u32 thread) {
    u32 there, full;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(place + thread * 16), "r"(cta));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(full) : "r"(barrier), "r"(cta));
    jitter();
#pragma unroll
    for (u32 i = 0; i < width / 2; i += 4)
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
            "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(there + i / 4 * threads * 16),
            "f"(d[i]), "f"(d[i + 1]), "f"(d[i + 2]), "f"(d[i + 3]), "r"(full)
            : "memory");
}

// Add what another CTA sent.
template <u32 width, u32 threads>
__device__ __forceinline__ void partial_add(float* d, u32 place, u32 thread) {
#pragma unroll
    for (u32 i = 0; i < width / 2; i += 4) {
        float4 sum;
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(sum.x), "=f"(sum.y), "=f"(sum.z), "=f"(sum.w)
                     : "r"(place + thread * 16 + i / 4 * threads * 16)
                     : "memory");
        d[i] += sum.x, d[i + 1] += sum.y, d[i + 2] += sum.z, d[i + 3] += sum.w;
    }
}
