// What all quantisers share: 8 elements at a time, amaxes, scales, codes. The text before says FROM, TO, KEEPS_NAN,
// CONVENTION, POWER_OF_TWO and the numbers of the rule. No CUDA header is needed.
//
// The compiler's options allow approximate quotients, so each one here is asked for with its rounding.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define BF16 0
#define F16 1
#define F32 2
#define E4M3 0
#define E5M2 1
#define TRANSFORMER_ENGINE 0
#define DEEP_GEMM 1
#define DEEP_GEMM_ON_GPU 2

#define LARGEST_F32 __uint_as_float(0x7f7fffffu)

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

// The larger of two amaxes. NaN has larger bits than any number that is not negative.
__device__ __forceinline__ float larger(float a, float b) {
#if KEEPS_NAN
    return __uint_as_float(max(__float_as_uint(a), __float_as_uint(b)));
#else
    return fmaxf(a, b);
#endif
}

// The largest of all lanes.
__device__ __forceinline__ float largest_of_warp(float amax) {
    return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(amax)));
}

// The largest of a CTA of 256 threads, in all of them.
__device__ __forceinline__ float largest_of_cta(float amax) {
    __shared__ float of_warps[8];
    amax = largest_of_warp(amax);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = amax;
    __syncthreads();
    amax = of_warps[0];
#pragma unroll
    for (u32 warp = 1; warp < 8; ++warp) amax = larger(amax, of_warps[warp]);
    return amax;
}

__device__ __forceinline__ float same_nan(float value) {
    return value == value ? value : __uint_as_float(0x7fc00000u);
}

struct Scale {
    float multiplier, stored;
};

// `most`: what a quotient beyond f32 becomes.
__device__ __forceinline__ Scale scale_of(float amax, float most) {
    amax = amax < EPS ? EPS : amax;
#if CONVENTION == TRANSFORMER_ENGINE
    if (amax == 0.f || !(amax <= LARGEST_F32)) return {1.f, 1.f};
    float exact = __fdiv_rn(LARGEST, amax);
    exact = exact <= LARGEST_F32 ? exact : most;
#if POWER_OF_TWO
    exact = __uint_as_float(__float_as_uint(exact) & 0xff800000u);
#endif
    return {exact, __frcp_rn(exact)};
#else
#if CONVENTION == DEEP_GEMM
    float stored = __fdiv_rn(amax, LARGEST);
#else
    float stored = __fmul_rn(amax, ONE_OVER_LARGEST);
#endif
#if POWER_OF_TWO
    const u32 bits = __float_as_uint(stored) & 0x7fffffffu;
    const u32 exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0);
    stored = __uint_as_float(min(max(exponent, 1u), 254u) << 23);
#endif
    return {__frcp_rn(stored), same_nan(stored)};
#endif
}

// Two codes, the first one in the low byte.
__device__ __forceinline__ u32 codes_of(float first, float second) {
    u16 both;
#if TO == E4M3
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(second), "f"(first));
#else
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(second), "f"(first));
#endif
    return both;
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
