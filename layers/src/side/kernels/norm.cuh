// Normalisation of rows, one CTA for each. The text before says what normed.cuh reads.

#include "normed.cuh"

// y = norm(x); `statistics` has the mean and one over the deviation of each row.
extern "C" __global__ void __launch_bounds__(THREADS)
    norm_forward(const void* x, const void* gamma, const void* beta, void* y, float* statistics, u32 columns) {
    const u64 first = u64(blockIdx.x) * (columns / 8);
    normalise(x, gamma, beta, statistics, columns, [&](u32 at, const Eight& y8, bool is_there) {
        if (is_there) y8.store(y, first + at);
    });
}

// dx of dy = the gradient of the norm's output; what `residual` has of each element is added before dx is rounded.
extern "C" __global__ void __launch_bounds__(THREADS) norm_backward(const void* x, const void* dy, const void* gamma, const float* statistics,
                                                                    const void* residual, void* dx, u32 columns) {
    const u32 eights = columns / 8;
    const u64 first = u64(blockIdx.x) * eights;
    const Num count = static_cast<float>(columns), center = statistics[2 * blockIdx.x], rstd = statistics[2 * blockIdx.x + 1];
    Num sum = 0.f, along = 0.f;
    of_row(eights, [&](u32, u32 at) {
        Eight x8, dy8, gamma8;
        x8.load(x, first + at), dy8.load(dy, first + at), gamma8.load(gamma, at);
#pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            const Num scaled = dy8[j] * gamma_of(gamma8, j);
            sum = sum + scaled;
            along = along + scaled * ((x8[j] - center) * rstd);
        }
    });
    Num mean = 0.f;
#if LAYER
    mean = sum_of_cta(sum) / count;
#endif
    along = sum_of_cta(along) / count;
    of_row(eights, [&](u32, u32 at) {
        Eight x8, dy8, gamma8, more, dx8;
        x8.load(x, first + at), dy8.load(dy, first + at), gamma8.load(gamma, at);
        if (residual != nullptr) more.load(residual, first + at);
#pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            const Num scaled = dy8[j] * gamma_of(gamma8, j), normed = (x8[j] - center) * rstd;
            const Num own = rstd * (scaled - mean - normed * along);
            dx8.set(j, residual != nullptr ? own + more[j] : own);
        }
        dx8.store(dx, first + at);
    });
}

// Sums of gamma's and beta's gradients over SLAB rows: a slab for each CTA along y, 8 columns for each thread.
extern "C" __global__ void __launch_bounds__(THREADS)
    norm_slabs(const void* x, const void* dy, const float* statistics, float* slabs, u32 rows, u32 columns) {
    const u32 across = (columns / 8 + THREADS - 1) / THREADS, slab = blockIdx.x / across;
    const u32 eight = blockIdx.x % across * THREADS + threadIdx.x;
    if (eight >= columns / 8) return;
    Num gammas[8], betas[8];
#pragma unroll
    for (u32 j = 0; j < 8; ++j) gammas[j] = 0.f, betas[j] = 0.f;
    const u32 last = min(rows, (slab + 1) * SLAB);
    for (u32 row = slab * SLAB; row < last; ++row) {
        Eight x8, dy8;
        x8.load(x, u64(row) * (columns / 8) + eight), dy8.load(dy, u64(row) * (columns / 8) + eight);
        const Num center = statistics[2 * row], rstd = statistics[2 * row + 1];
#pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            gammas[j] = gammas[j] + dy8[j] * ((x8[j] - center) * rstd);
            betas[j] = betas[j] + dy8[j];
        }
    }
    float* to = slabs + u64(slab) * 2 * columns + 8 * eight;
#pragma unroll
    for (u32 j = 0; j < 8; ++j) to[j] = gammas[j].v, to[columns + j] = betas[j].v;
}

// Adds the slabs to the gradients, one slab after another.
extern "C" __global__ void __launch_bounds__(THREADS) norm_add(const float* slabs, float* of_gamma, float* of_beta, u32 count, u32 columns) {
    const u32 column = blockIdx.x * THREADS + threadIdx.x;
    if (column >= columns) return;
    Num gamma = of_gamma[column], beta = of_beta == nullptr ? 0.f : of_beta[column];
    for (u32 slab = 0; slab < count; ++slab) {
        gamma = gamma + Num(slabs[u64(slab) * 2 * columns + column]);
        beta = beta + Num(slabs[u64(slab) * 2 * columns + columns + column]);
    }
    of_gamma[column] = gamma.v;
    if (of_beta != nullptr) of_beta[column] = beta.v;
}
