// One row of each CTA, normalised. LAYER: LayerNorm, else RMSNorm; ONE: what is added to a stored gamma; NORM_EPS by its bits.

#include "numbers.cuh"

// Eights that a thread keeps of a row. Longer rows are read again.
constexpr u32 HELD = 4;

// f(slot or none, eight of the row) for each eight of this thread.
template <class F>
__device__ __forceinline__ void of_row(u32 eights, F f) {
#pragma unroll
    for (u32 i = 0; i < HELD; ++i)
        if (i * THREADS + threadIdx.x < eights) f(i, i * THREADS + threadIdx.x);
    for (u32 at = HELD * THREADS + threadIdx.x; at < eights; at += THREADS) f(HELD, at);
}

__device__ __forceinline__ Num gamma_of(const Eight& gamma, u32 j) { return ONE == 0.f ? gamma[j] : gamma[j] + Num(ONE); }

// x less the mean, which RMSNorm does not have.
__device__ __forceinline__ Num centered(Num x, Num mean) { return LAYER ? x - mean : x; }

// f(eight of the row, its elements, true) for each eight of this thread; and where others have one more, f(no eight of the row, zeros,
// false): all threads call it alike. `statistics` gets the mean and one over the deviation.
template <class F>
__device__ __forceinline__ void normalise(const void* x, const void* gamma, const void* beta, float* statistics, u32 columns, F f) {
    const u32 eights = columns / 8;
    const u64 first = u64(blockIdx.x) * eights;
    const Num count = static_cast<float>(columns);
    Eight held[HELD];
    of_row(eights, [&](u32 i, u32 at) {
        if (i < HELD) held[i].load(x, first + at);
    });
    const auto of = [&](u32 i, u32 at) {
        Eight eight;
        if (i < HELD) return held[i];
        eight.load(x, first + at);
        return eight;
    };
    Num mean = 0.f;
#if LAYER
    Num sum = 0.f;
    of_row(eights, [&](u32 i, u32 at) {
        const Eight x8 = of(i, at);
#pragma unroll
        for (u32 j = 0; j < 8; ++j) sum = sum + x8[j];
    });
    mean = sum_of_cta(sum) / count;
#endif
    Num squares = 0.f;
    of_row(eights, [&](u32 i, u32 at) {
        const Eight x8 = of(i, at);
#pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            const Num off = centered(x8[j], mean);
            squares = squares + off * off;
        }
    });
    const Num rstd = Num(1.f) / root(sum_of_cta(squares) / count + Num(NORM_EPS));
    const auto gives = [&](u32 i, u32 at) {
        Eight y8;
#pragma unroll
        for (u32 word = 0; word < 4; ++word) y8.words[word] = 0;
        if (at < eights) {
            const Eight x8 = of(i, at);
            Eight gamma8, beta8;
            gamma8.load(gamma, at);
            const auto scaled = [&](u32 j) { return centered(x8[j], mean) * rstd * gamma_of(gamma8, j); };
            if (beta != nullptr) {
                beta8.load(beta, at);
                y8.fill([&](u32 j) { return scaled(j) + beta8[j]; });
            } else {
                y8.fill(scaled);
            }
        }
        f(at, y8, at < eights);
    };
#pragma unroll
    for (u32 i = 0; i < HELD; ++i)
        if (i * THREADS < eights) gives(i, i * THREADS + threadIdx.x);
    for (u32 from = HELD * THREADS; from < eights; from += THREADS) gives(HELD, from + threadIdx.x);
    if (threadIdx.x == 0) {
        statistics[2 * blockIdx.x] = mean.v;
        statistics[2 * blockIdx.x + 1] = rstd.v;
    }
}
