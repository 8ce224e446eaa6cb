// Normalised rows as FP8 codes with their scales: those of a quantiser of the elements that the norm gives, which are rounded to bf16
// first. A row is a CTA. The text before says what normed.cuh and rule.cuh read.

#include "normed.cuh"
#include "rule.cuh"

__device__ __forceinline__ float amax_of(const Eight& y8) {
    float amax = 0.f;
#pragma unroll
    for (u32 j = 0; j < 8; ++j) amax = larger(amax, fabsf(y8[j].v));
    return amax;
}

__device__ __forceinline__ uint2 coded(const Eight& y8, float multiplier) {
    u32 pairs[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) pairs[i] = codes_of(__fmul_rn(y8[2 * i].v, multiplier), __fmul_rn(y8[2 * i + 1].v, multiplier));
    return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}

// By one scale that is known. `amax` becomes the largest of what it was and of the elements. `kept` gets the codes, too, if it is there.
extern "C" __global__ void __launch_bounds__(THREADS)
    norm_delayed(const void* x, const void* gamma, const void* beta, const float* multiplier, const float* stored, u8* codes, float* scale,
                 float* amax, float* statistics, u8* kept, u32 columns) {
    const u64 first = u64(blockIdx.x) * (columns / 8);
    const float by = *multiplier;
    float own = 0.f;
    normalise(x, gamma, beta, statistics, columns, [&](u32 at, const Eight& y8, bool is_there) {
        own = larger(own, amax_of(y8));
        if (!is_there) return;
        const uint2 eight = coded(y8, by);
        reinterpret_cast<uint2*>(codes)[first + at] = eight;
        if (kept != nullptr) reinterpret_cast<uint2*>(kept)[first + at] = eight;
    });
    own = largest_of_cta(Num(own)).v;
    if (threadIdx.x != 0) return;
    // Numbers that are not negative are in the order of their bits.
    atomicMax(reinterpret_cast<u32*>(amax), __float_as_uint(own));
    if (blockIdx.x == 0) *scale = *stored;
}

// By a scale for each 128 columns of a row. Scales of a block lie behind each other, `line` of them: those behind the rows are 0.
extern "C" __global__ void __launch_bounds__(THREADS)
    norm_one_by_128(const void* x, const void* gamma, const void* beta, u8* codes, float* scales, float* statistics, u32 columns, u32 rows,
                    u32 line) {
    const u64 first = u64(blockIdx.x) * (columns / 8);
    normalise(x, gamma, beta, statistics, columns, [&](u32 at, const Eight& y8, bool is_there) {
        // 16 threads next to each other have a block.
        float amax = amax_of(y8);
#pragma unroll
        for (u32 apart = 8; apart > 0; apart /= 2) amax = larger(amax, __shfl_xor_sync(0xffffffffu, amax, apart));
        const Scale scale = scale_of(amax, MOST);
        if (!is_there) return;
        reinterpret_cast<uint2*>(codes)[first + at] = coded(y8, scale.multiplier);
        if (at % 16 == 0) scales[u64(at / 16) * line + blockIdx.x] = scale.stored;
    });
    if (blockIdx.x + 1 != rows) return;
    const u32 padding = line - rows, blocks = (columns + 127) / 128;
    for (u32 at = threadIdx.x; at < blocks * padding; at += THREADS) scales[u64(at / padding) * line + rows + at % padding] = 0.f;
}
