#include "numbers.cuh"

// Keys of the ten rounds, in pairs.
#define PHILOX_KEYS 20

// Both halves of a product at once. As a product of 64-bit numbers it would have the upper words added, too.
__device__ __forceinline__ uint2 product(u32 a, u32 b) {
    u64 both;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(both) : "r"(a), "r"(b));
    return make_uint2(u32(both), u32(both >> 32));
}

// Philox 4x32 of ten rounds, where key(i) is the i-th of their keys.
template <class Key>
__device__ __forceinline__ uint4 philox_by(uint4 counter, Key key) {
#pragma unroll
    for (u32 round = 0; round < 10; ++round) {
        const uint2 product0 = product(counter.x, 0xD2511F53u), product1 = product(counter.z, 0xCD9E8D57u);
        counter = make_uint4(product1.y ^ counter.y ^ key(2 * round), product1.x, product0.y ^ counter.w ^ key(2 * round + 1), product0.x);
    }
    return counter;
}

__device__ __forceinline__ uint4 philox(uint4 counter, const u32 (&keys)[PHILOX_KEYS]) {
    return philox_by(counter, [&](u32 i) { return keys[i]; });
}

__device__ __forceinline__ uint4 philox(uint4 counter, uint2 key) {
    return philox_by(counter, [&](u32 i) { return i % 2 == 0 ? key.x + i / 2 * 0x9E3779B9u : key.y + i / 2 * 0xBB67AE85u; });
}
