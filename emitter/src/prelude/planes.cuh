// Scales that travel with the rows of their tensor: f32, at one offset in every rank's slot of the heap.

// On that rank, what this rank has at `mine`.
__device__ __forceinline__ float* scales_on(const float* mine, const Cells& cells, u32 me, u32 rank) {
    const u64 offset = reinterpret_cast<const char*>(mine) - (cells.heap + me * cells.stride);
    return reinterpret_cast<float*>(cells.heap + rank * cells.stride + offset);
}

// Ordinary loads and stores of one thread, before what it announces by counter_add. Whoever waits for that reads them
// by ordinary loads too, so no proxy fence stands between. A shard may begin at any number: 16 bytes at a time need one
// that is a multiple of 4 on both sides. So many loads are under way together.
__device__ __forceinline__ void scales_copy(float* to, const float* from, u32 count) {
    constexpr u32 AHEAD = 4;
    u32 at = 0;
    if ((reinterpret_cast<u64>(to) | reinterpret_cast<u64>(from)) % sizeof(float4) == 0) {
        for (; at + 4 * AHEAD <= count; at += 4 * AHEAD) {
            float4 held[AHEAD];
#pragma unroll
            for (u32 i = 0; i < AHEAD; ++i) held[i] = reinterpret_cast<const float4*>(from + at)[i];
#pragma unroll
            for (u32 i = 0; i < AHEAD; ++i) reinterpret_cast<float4*>(to + at)[i] = held[i];
        }
    }
    for (; at + AHEAD <= count; at += AHEAD) {
        float held[AHEAD];
#pragma unroll
        for (u32 i = 0; i < AHEAD; ++i) held[i] = from[at + i];
#pragma unroll
        for (u32 i = 0; i < AHEAD; ++i) to[at + i] = held[i];
    }
    for (; at < count; ++at) to[at] = from[at];
}
