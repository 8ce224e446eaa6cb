// What all quantisers share: 8 elements at a time, their amaxes and codes. The text before says FROM and what rule.cuh reads. No CUDA
// header is needed.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define BF16 0
#define F16 1
#define F32 2

#include "rule.cuh"

#if FROM == F32
constexpr u32 BYTES = 4;
#else
constexpr u32 BYTES = 2;
#endif

// 8 elements of a row, as memory holds them.
struct Eight {
    u32 words[2 * BYTES];

    // Zeros.
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (u32 i = 0; i < 2 * BYTES; ++i) words[i] = 0;
    }

    // They are read once: L1 keeps nothing of them.
    __device__ __forceinline__ void load(const void* elements, u64 first) {
        const u8* at = static_cast<const u8*>(elements) + first * BYTES;
#pragma unroll
        for (u32 i = 0; i < 2 * BYTES; i += 4)
            asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(words[i]), "=r"(words[i + 1]), "=r"(words[i + 2]), "=r"(words[i + 3])
                         : "l"(at + 4 * i));
    }

    // Elements are decoded again for each use: kept from one use to the next they would take twice the registers.
    __device__ __forceinline__ void forget() {
#pragma unroll
        for (u32 i = 0; i < 2 * BYTES; ++i) asm volatile("" : "+r"(words[i]));
    }

    __device__ __forceinline__ float operator[](u32 i) const {
#if FROM == F32
        return __uint_as_float(words[i]);
#elif FROM == BF16
        return __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
#else
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<u16>(words[i / 2] >> (i % 2 * 16))));
        return value;
#endif
    }
};

// The largest of all lanes.
__device__ __forceinline__ float largest_of_warp(float amax) {
    return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(amax)));
}

// The largest of so many threads next to each other, of a CTA of 256, in all of them. Whole warps; every thread of the CTA is here.
__device__ __forceinline__ float largest_of_group(float amax, u32 threads) {
    __shared__ float of_warps[8];
    amax = largest_of_warp(amax);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = amax;
    __syncthreads();
    const float* of_group = of_warps + threadIdx.x / threads * (threads / 32);
    amax = of_group[0];
#pragma unroll
    for (u32 warp = 1; warp < 8; ++warp)
        if (warp < threads / 32) amax = larger(amax, of_group[warp]);
    return amax;
}

// The largest of a CTA of 256 threads, in all of them.
__device__ __forceinline__ float largest_of_cta(float amax) {
    return largest_of_group(amax, 256);
}

// The codes of 8 elements next to each other.
__device__ __forceinline__ void store(u8* at, const Eight& x, float multiplier) {
    u32 pairs[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i)
        pairs[i] = codes_of(__fmul_rn(x[2 * i], multiplier), __fmul_rn(x[2 * i + 1], multiplier));
    *reinterpret_cast<uint2*>(at) = make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}

// Cached weights: the flag says that nothing has changed.
__device__ __forceinline__ bool is_skipped(const u32* skip) {
    return skip != nullptr && *skip != 0;
}
