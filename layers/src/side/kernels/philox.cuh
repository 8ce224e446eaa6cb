#include "numbers.cuh"

// Philox 4x32 of ten rounds.
__device__ __forceinline__ uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
    for (u32 round = 0; round < 10; ++round) {
        // Both halves of a product at once.
        const u64 product0 = u64(0xD2511F53u) * counter.x, product1 = u64(0xCD9E8D57u) * counter.z;
        counter = make_uint4(u32(product1 >> 32) ^ counter.y ^ key.x, u32(product1), u32(product0 >> 32) ^ counter.w ^ key.y, u32(product0));
        key.x += 0x9E3779B9u, key.y += 0xBB67AE85u;
    }
    return counter;
}
