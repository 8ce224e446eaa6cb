// A rule of quantisers: amaxes, scales, codes. The text before says TO, KEEPS_NAN, CONVENTION, POWER_OF_TWO and the rule's numbers, and
// has the types u8 to u64.

#define E4M3 0
#define E5M2 1

#include "scale.cuh"

// The larger of two amaxes. NaN has larger bits than any number that is not negative.
__device__ __forceinline__ float larger(float a, float b) {
#if KEEPS_NAN
    return __uint_as_float(max(__float_as_uint(a), __float_as_uint(b)));
#else
    return fmaxf(a, b);
#endif
}

// `most`: what a quotient beyond f32 becomes.
__device__ __forceinline__ Scale scale_of(float amax, float most) {
    return scale_of<CONVENTION, POWER_OF_TWO>(amax, {EPS, LARGEST, most});
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
