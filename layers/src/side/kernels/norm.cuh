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

// A row of x and of dy.
struct Both {
    Eight held[HELD], of_held[HELD];
    const void *x, *dy;
    u64 first;
    u32 eights;

    __device__ __forceinline__ void load(const void* x_, const void* dy_, u64 first_, u32 eights_) {
        x = x_, dy = dy_, first = first_, eights = eights_;
        of_row(eights, [&](u32 i, u32 at) {
            if (i < HELD) held[i].load(x, first + at), of_held[i].load(dy, first + at);
        });
    }

    // f(eight of the row, elements of x, elements of dy) for each eight of this thread.
    template <class F>
    __device__ __forceinline__ void each(F f) const {
        of_row(eights, [&](u32 i, u32 at) {
            if (i < HELD) return f(at, held[i], of_held[i]);
            Eight x8, dy8;
            x8.load(x, first + at), dy8.load(dy, first + at);
            f(at, x8, dy8);
        });
    }
};

// dx of dy = the gradient of the norm's output; what `residual` has of each element is added before dx is rounded.
extern "C" __global__ void __launch_bounds__(THREADS) norm_backward(const void* x, const void* dy, const void* gamma, const float* statistics,
                                                                    const void* residual, void* dx, u32 columns) {
    const u32 eights = columns / 8;
    const u64 first = u64(blockIdx.x) * eights;
    const Num count = static_cast<float>(columns), center = statistics[2 * blockIdx.x], rstd = statistics[2 * blockIdx.x + 1];
    Both row;
    row.load(x, dy, first, eights);
    Num sum = 0.f, along = 0.f;
    row.each([&](u32 at, const Eight& x8, const Eight& dy8) {
        Eight gamma8;
        gamma8.load(gamma, at);
#pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            const Num scaled = dy8[j] * gamma_of(gamma8, j);
#if LAYER
            sum = sum + scaled;
#endif
            along = along + scaled * (centered(x8[j], center) * rstd);
        }
    });
    Num mean = 0.f;
#if LAYER
    mean = sum_of_cta(sum) / count;
#endif
    along = sum_of_cta(along) / count;
    row.each([&](u32 at, const Eight& x8, const Eight& dy8) {
        Eight gamma8, more, dx8;
        gamma8.load(gamma, at);
        if (residual != nullptr) more.load(residual, first + at);
        dx8.fill([&](u32 j) {
            const Num scaled = dy8[j] * gamma_of(gamma8, j), normed = centered(x8[j], center) * rstd;
            const Num own = rstd * (centered(scaled, mean) - normed * along);
            return residual != nullptr ? own + more[j] : own;
        });
        dx8.store(dx, first + at);
    });
}

// Sums of gamma's and beta's gradients over SLAB rows: a slab for each CTA along y, 8 columns for each thread. Rows are loaded some at a
// time, and added one after another.
extern "C" __global__ void __launch_bounds__(THREADS)
    norm_slabs(const void* x, const void* dy, const float2* statistics, float* slabs, u32 rows, u32 columns, u32 has_beta) {
    const u32 across = (columns / 8 + THREADS - 1) / THREADS, slab = blockIdx.x / across;
    const u32 eight = blockIdx.x % across * THREADS + threadIdx.x;
    if (eight >= columns / 8) return;
    Num gammas[8], betas[8];
#pragma unroll
    for (u32 j = 0; j < 8; ++j) gammas[j] = 0.f, betas[j] = 0.f;
    const u32 last = min(rows, (slab + 1) * SLAB);
#pragma unroll 4
    for (u32 row = slab * SLAB; row < last; ++row) {
        Eight x8, dy8;
        x8.load(x, u64(row) * (columns / 8) + eight), dy8.load(dy, u64(row) * (columns / 8) + eight);
        const float2 of = statistics[row];
#pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            gammas[j] = gammas[j] + dy8[j] * (centered(x8[j], of.x) * Num(of.y));
            betas[j] = betas[j] + dy8[j];
        }
    }
    const auto store = [&](float* to, const Num* of) {
        reinterpret_cast<float4*>(to)[0] = make_float4(of[0].v, of[1].v, of[2].v, of[3].v);
        reinterpret_cast<float4*>(to)[1] = make_float4(of[4].v, of[5].v, of[6].v, of[7].v);
    };
    float* to = slabs + u64(slab) * 2 * columns + 8 * eight;
    store(to, gammas);
    if (has_beta) store(to + columns, betas);
}

// Adds the slabs to the gradients, one slab after another.
extern "C" __global__ void __launch_bounds__(THREADS) norm_add(const float* slabs, float* of_gamma, float* of_beta, u32 count, u32 columns) {
    const u32 column = blockIdx.x * THREADS + threadIdx.x;
    if (column >= columns) return;
    const auto add = [&](float* to, const float* from) {
        Num sum = to[column];
#pragma unroll 16
        for (u32 slab = 0; slab < count; ++slab) sum = sum + Num(from[u64(slab) * 2 * columns + column]);
        to[column] = sum.v;
    };
    add(of_gamma, slabs);
    if (of_beta != nullptr) add(of_beta, slabs + columns);
}
