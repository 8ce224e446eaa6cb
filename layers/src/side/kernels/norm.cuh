// Normalisation of rows. The text before says what normed.cuh reads.

#include "normed.cuh"

// y = norm(x), a CTA for each row; `statistics` has the mean and one over the deviation of each row.
extern "C" __global__ void __launch_bounds__(THREADS)
    norm_forward(const void* x, const void* gamma, const void* beta, void* y, float* statistics, u32 columns) {
    const u64 first = u64(blockIdx.x) * (columns / 8);
    normalise(x, gamma, beta, statistics, columns, [&](u32 at, const Eight& y8, bool is_there) {
        if (is_there) y8.store(y, first + at);
    });
}

// Copies 16 bytes to shared memory; the thread that waits for its copies may read them.
__device__ __forceinline__ void copy_async(uint4* to, const void* from, u64 eight) {
    const u32 address = static_cast<u32>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(static_cast<const uint4*>(from) + eight) : "memory");
}
__device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until the copies of all rows but the last `ahead` are there.
__device__ __forceinline__ void copies_wait(u32 ahead) {
    if (ahead == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
    else if (ahead == 3) asm volatile("cp.async.wait_group 3;" ::: "memory");
    else asm volatile("cp.async.wait_group 7;" ::: "memory");
}
// Eights of x that a thread has in shared memory, and of dy: those of 2, 4 or 8 rows.
constexpr u32 SLOTS = 2 * HELD;
static_assert(HELD == 4 && SHARED == 2 * SLOTS * THREADS * sizeof(uint4), "copies_wait knows 2, 4 and 8 rows");

// 8 sums of a slab.
__device__ __forceinline__ void load_sums(const float* from, u32 eight, Num* sums) {
    const float4 low = reinterpret_cast<const float4*>(from)[2 * eight], high = reinterpret_cast<const float4*>(from)[2 * eight + 1];
    sums[0] = low.x, sums[1] = low.y, sums[2] = low.z, sums[3] = low.w;
    sums[4] = high.x, sums[5] = high.y, sums[6] = high.z, sums[7] = high.w;
}
__device__ __forceinline__ void store_sums(float* to, u32 eight, const Num* sums) {
    reinterpret_cast<float4*>(to)[2 * eight] = make_float4(sums[0].v, sums[1].v, sums[2].v, sums[3].v);
    reinterpret_cast<float4*>(to)[2 * eight + 1] = make_float4(sums[4].v, sums[5].v, sums[6].v, sums[7].v);
}

// dx of dy = the gradient of the norm's output; what `residual` has of each element is added before dx is rounded. A CTA has every row
// that is gridDim.x behind its last one, and leaves the sums of gamma's and beta's gradients over them in its slab: gammas, then betas.
//
// Rows come to shared memory while those before are worked on. A thread reads only what it copied itself. Columns behind
// HELD eights for each thread are read from memory twice, and their sums are kept in the slab.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    norm_backward(const void* x, const void* dy, const void* gamma, const float2* statistics, const void* residual, void* dx, float* slabs,
                  u32 rows, u32 columns, u32 has_beta) {
    extern __shared__ uint4 of_x[];
    uint4* const of_dy = of_x + SLOTS * THREADS;
    const u32 eights = columns / 8, per_row = (min(eights, HELD * THREADS) + THREADS - 1) / THREADS, depth = SLOTS / per_row;
    const Num count = static_cast<float>(columns);
    float* const slab = slabs + u64(blockIdx.x) * 2 * columns;
    Num gammas[HELD][8], betas[HELD][8];
#pragma unroll
    for (u32 i = 0; i < HELD; ++i)
#pragma unroll
        for (u32 j = 0; j < 8; ++j) gammas[i][j] = 0.f, betas[i][j] = 0.f;
    const auto place = [&](u32 stage, u32 i) { return (stage * per_row + i) * THREADS + threadIdx.x; };
    const auto fetch = [&](u32 row, u32 stage, u32 i, u32 at) {
        copy_async(&of_x[place(stage, i)], x, u64(row) * eights + at);
        copy_async(&of_dy[place(stage, i)], dy, u64(row) * eights + at);
    };
    for (u32 stage = 0; stage < depth; ++stage) {
        const u32 row = blockIdx.x + stage * gridDim.x;
        if (row < rows) of_row(eights, [&](u32 i, u32 at) {
            if (i < HELD) fetch(row, stage, i, at);
        });
        copies_end();
    }
    u32 stage = 0;
    float2 of = statistics[blockIdx.x];
    for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
        const u64 first = u64(row) * eights;
        const Num center = of.x, rstd = of.y;
        if (row + gridDim.x < rows) of = statistics[row + gridDim.x];
        const auto both = [&](u32 i, u32 at, Eight& x8, Eight& dy8) {
            if (i < HELD) return x8.load(of_x, place(stage, i)), dy8.load(of_dy, place(stage, i));
            x8.load(x, first + at), dy8.load(dy, first + at);
        };
        Eight more[HELD];
        if (residual != nullptr) of_row(eights, [&](u32 i, u32 at) {
            if (i < HELD) more[i].load(residual, first + at);
        });
        copies_wait(depth - 1);
        Num sum = 0.f, along = 0.f;
        of_row(eights, [&](u32 i, u32 at) {
            Eight x8, dy8, gamma8;
            both(i, at, x8, dy8);
            gamma8.load(gamma, at);
#pragma unroll
            for (u32 j = 0; j < 8; ++j) {
                const Num scaled = dy8[j] * gamma_of(gamma8, j), normed = centered(x8[j], center) * rstd;
#if LAYER
                sum = sum + scaled;
#endif
                along = along + scaled * normed;
                if (i < HELD) gammas[i % HELD][j] = gammas[i % HELD][j] + dy8[j] * normed;
                if (i < HELD && has_beta) betas[i % HELD][j] = betas[i % HELD][j] + dy8[j];
            }
            if (i < HELD) return;
            const auto add = [&](float* kept, bool is_beta) {
                Num sums[8];
                load_sums(kept, at, sums);
#pragma unroll
                for (u32 j = 0; j < 8; ++j) {
                    const Num term = is_beta ? dy8[j] : dy8[j] * (centered(x8[j], center) * rstd);
                    sums[j] = (row == blockIdx.x ? Num(0.f) : sums[j]) + term;
                }
                store_sums(kept, at, sums);
            };
            add(slab, false);
            if (has_beta) add(slab + columns, true);
        });
        Num mean = 0.f;
#if LAYER
        mean = sum_of_cta(sum) / count;
#endif
        along = sum_of_cta(along) / count;
        const u32 next = row + depth * gridDim.x;
        of_row(eights, [&](u32 i, u32 at) {
            Eight x8, dy8, gamma8, dx8;
            if (i >= HELD && residual != nullptr) more[i % HELD].load(residual, first + at);
            both(i, at, x8, dy8);
            gamma8.load(gamma, at);
            dx8.fill([&](u32 j) {
                const Num scaled = dy8[j] * gamma_of(gamma8, j), normed = centered(x8[j], center) * rstd;
                const Num own = rstd * (centered(scaled, mean) - normed * along);
                return residual != nullptr ? own + more[i % HELD][j] : own;
            });
            dx8.store(dx, first + at);
        });
        if (next < rows) of_row(eights, [&](u32 i, u32 at) {
            if (i < HELD) fetch(next, stage, i, at);
        });
        copies_end();
        stage = stage + 1 == depth ? 0 : stage + 1;
    }
    of_row(eights, [&](u32 i, u32 at) {
        if (i >= HELD) return;
        store_sums(slab, at, gammas[i % HELD]);
        if (has_beta) store_sums(slab + columns, at, betas[i % HELD]);
    });
}

// Adds the slabs to the gradients: 32 columns for each CTA, of gamma and then of beta. A warp adds every 8th slab, then warps are added in
// pairs.
extern "C" __global__ void __launch_bounds__(THREADS) norm_add(const float* slabs, float* of_gamma, float* of_beta, u32 count, u32 columns) {
    constexpr u32 WARPS = THREADS / 32;
    __shared__ float of_warps[WARPS][32];
    const u32 across = (columns + 31) / 32, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool is_beta = blockIdx.x >= across;
    const u32 column = (is_beta ? blockIdx.x - across : blockIdx.x) * 32 + lane;
    const float* from = is_beta ? slabs + columns : slabs;
    Num sum = 0.f;
    if (column < columns) {
#pragma unroll 11
        for (u32 slab = warp; slab < count; slab += WARPS) sum = sum + Num(from[u64(slab) * 2 * columns + column]);
    }
    of_warps[warp][lane] = sum.v;
    __syncthreads();
    if (warp != 0 || column >= columns) return;
    Num sums[WARPS];
#pragma unroll
    for (u32 i = 0; i < WARPS; ++i) sums[i] = of_warps[i][lane];
#pragma unroll
    for (u32 apart = WARPS / 2; apart > 0; apart /= 2)
#pragma unroll
        for (u32 i = 0; i < apart; ++i) sums[i] = sums[i] + sums[i + apart];
    float* to = is_beta ? of_beta : of_gamma;
    to[column] = (Num(to[column]) + sums[0]).v;
}
