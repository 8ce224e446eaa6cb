// Normalisation of rows. The text before says what normed.cuh reads, and the bytes of shared memory
// that launches of norm_backward and norm_backward_long give: SHORT_SHARED and LONG_SHARED.

#include "ahead.cuh"
#include "normed.cuh"

// y = norm(x), a CTA for each row; `statistics` has the mean and one over the deviation of each row.
extern "C" __global__ void __launch_bounds__(THREADS)
    norm_forward(const void* x, const void* gamma, const void* beta, void* y, float* statistics, u32 columns) {
    const u64 first = u64(blockIdx.x) * (columns / 8);
    normalise(x, gamma, beta, statistics, columns, [&](u32 at, const Eight& y8, bool is_there) {
        if (is_there) y8.store(y, first + at);
    });
}

// Rows that are on their way: more would keep the first one from coming.
constexpr u32 STAGES = 2;
// Eights that a thread has of a row of 8192 columns, and of a longer one in a stage: 16,384 columns. Their sums are in registers.
constexpr u32 SHORT = 2, LONG = 4;
static_assert(SHORT_SHARED == STAGES * 3 * SHORT * WIDE * sizeof(uint4) && LONG_SHARED == STAGES * 3 * LONG * WIDE * sizeof(uint4),
              "rows of x, dy and what is added");

// f(which of this thread's, or SUMMED; which of the row's) for each eight of this thread.
template <u32 SUMMED, class F>
__device__ __forceinline__ void of_wide_row(u32 eights, F f) {
#pragma unroll
    for (u32 i = 0; i < SUMMED; ++i)
        if (i * WIDE < eights && i * WIDE + threadIdx.x < eights) f(i, i * WIDE + threadIdx.x);
    for (u32 at = SUMMED * WIDE + threadIdx.x; SUMMED == LONG && at < eights; at += WIDE) f(SUMMED, at);
}

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

// Eight elements of x, dy and gamma.
struct Three {
    Eight x, dy, gamma;
    __device__ __forceinline__ Num scaled(u32 j) const { return dy[j] * gamma_of(gamma, j); }
    __device__ __forceinline__ Num normed(u32 j, float2 of) const { return centered(x[j], of.x) * Num(of.y); }
};

// dx of dy = the gradient of the norm's output; what `residual` has of each element is added before dx is rounded. A CTA has every row
// that is gridDim.x behind its last one, and leaves the sums of gamma's and beta's gradients over them in its slab: gammas, then betas.
//
// Rows come to shared memory while those before are worked on. SUMMED is SHORT: no row is longer, threads read it once, and its stage is
// free when they meet. LONG: they read it twice; columns behind SUMMED eights of each thread come from memory, twice, and their sums are
// kept in the slab.
template <u32 SUMMED>
__device__ __forceinline__ void backward(const void* x, const void* dy, const void* gamma, const float2* statistics, const void* residual,
                                         void* dx, float* slabs, u32 rows, u32 columns, u32 has_beta) {
    constexpr bool KEEPS = SUMMED == SHORT;
    extern __shared__ __align__(128) uint4 stages[];
    __shared__ __align__(8) u64 barriers[STAGES];
    // Of each stage's row: threads that still read those of a row are one row behind at most.
    __shared__ float of_warps[STAGES][1 + LAYER][WIDE_WARPS];
    const u32 eights = columns / 8, here = min(eights, SUMMED * WIDE);
    const Num count = static_cast<float>(columns);
    float* const slab = slabs + u64(blockIdx.x) * 2 * columns;
    Stages ahead;
    ahead.begin(barriers, STAGES);
    const auto ask = [&](u32 row, u32 stage) {
        if (threadIdx.x != 0 || row >= rows) return;
        uint4* const to = stages + stage * 3 * here;
        const u64 first = u64(row) * eights;
        ahead.expect(stage, (residual != nullptr ? 3 : 2) * here);
        ahead.copy(stage, to, x, first, here);
        ahead.copy(stage, to + here, dy, first, here);
        if (residual != nullptr) ahead.copy(stage, to + 2 * here, residual, first, here);
    };
    ask(blockIdx.x, 0);
    ask(blockIdx.x + gridDim.x, 1);
    Num gammas[SUMMED][8], betas[SUMMED][8];
    Three kept[SUMMED];
    Eight more[SUMMED];
#pragma unroll
    for (u32 i = 0; i < SUMMED; ++i) {
#pragma unroll
        for (u32 j = 0; j < 8; ++j) gammas[i][j] = 0.f, betas[i][j] = 0.f;
    }
    of_wide_row<SUMMED>(eights, [&](u32 i, u32 at) {
        if (KEEPS && i < SUMMED) kept[i % SUMMED].gamma.load(gamma, at);
    });
    u32 stage = 0, turn = 0;
    float2 of = statistics[blockIdx.x];
    for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
        const u64 first = u64(row) * eights;
        const float2 its = of;
        if (row + gridDim.x < rows) of = statistics[row + gridDim.x];
        const uint4* const there = stages + stage * 3 * here;
        const auto read = [&](u32 i, u32 at, Three& three) {
            if (!KEEPS) three.gamma.load(gamma, at);
            if (i < SUMMED) three.x.load(there, at), three.dy.load(there, here + at);
            else three.x.load(x, first + at), three.dy.load(dy, first + at);
        };
        const auto read_more = [&](u32 i, u32 at, Eight& eight) {
            if (residual == nullptr) return;
            if (i < SUMMED) eight.load(there, 2 * here + at);
            else eight.load(residual, first + at);
        };
        ahead.wait(stage, turn);
        // Along the row, and for LayerNorm the sum.
        Num sums[1 + LAYER];
#pragma unroll
        for (u32 i = 0; i < 1 + LAYER; ++i) sums[i] = 0.f;
        of_wide_row<SUMMED>(eights, [&](u32 i, u32 at) {
            Three once, &three = KEEPS ? kept[i % SUMMED] : once;
            read(i, at, three);
            if (KEEPS) read_more(i, at, more[i % SUMMED]);
#pragma unroll
            for (u32 j = 0; j < 8; ++j) {
                const Num normed = three.normed(j, its);
                sums[0] = fma_of(three.scaled(j), normed, sums[0]);
#if LAYER
                sums[1] = sums[1] + three.scaled(j);
#endif
                if (i < SUMMED) gammas[i % SUMMED][j] = fma_of(three.dy[j], normed, gammas[i % SUMMED][j]);
                if (i < SUMMED && has_beta) betas[i % SUMMED][j] = betas[i % SUMMED][j] + three.dy[j];
            }
            if (i < SUMMED) return;
            const auto add = [&](float* kept, bool is_beta) {
                Num sums[8];
                load_sums(kept, at, sums);
#pragma unroll
                for (u32 j = 0; j < 8; ++j) {
                    const Num sum = row == blockIdx.x ? Num(0.f) : sums[j];
                    sums[j] = is_beta ? sum + three.dy[j] : fma_of(three.dy[j], three.normed(j, its), sum);
                }
                store_sums(kept, at, sums);
            };
            add(slab, false);
            if (has_beta) add(slab + columns, true);
        });
        sums_of_cta(of_warps[stage], sums);
        const u32 next = row + STAGES * gridDim.x;
        if (KEEPS) ask(next, stage);
        const Num along = -(sums[0] / count);
        Num mean = 0.f;
#if LAYER
        mean = sums[1] / count;
#endif
        of_wide_row<SUMMED>(eights, [&](u32 i, u32 at) {
            Three once, &three = KEEPS ? kept[i % SUMMED] : once;
            Eight added, &plus = KEEPS ? more[i % SUMMED] : added, dx8;
            if (!KEEPS) read(i, at, three), read_more(i, at, plus);
            dx8.fill([&](u32 j) {
                const Num own = fma_of(three.normed(j, its), along, centered(three.scaled(j), mean));
                return residual != nullptr ? fma_of(its.y, own, plus[j]) : Num(its.y) * own;
            });
            dx8.store(dx, first + at);
        });
        if (!KEEPS) {
            has_read();
            __syncthreads();
            ask(next, stage);
        }
        turn ^= stage, stage ^= 1;
    }
    of_wide_row<SUMMED>(eights, [&](u32 i, u32 at) {
        if (i >= SUMMED) return;
        store_sums(slab, at, gammas[i % SUMMED]);
        if (has_beta) store_sums(slab + columns, at, betas[i % SUMMED]);
    });
}

// Of rows of 8192 columns at most.
extern "C" __global__ void __launch_bounds__(WIDE, 1)
    norm_backward(const void* x, const void* dy, const void* gamma, const float2* statistics, const void* residual, void* dx, float* slabs,
                  u32 rows, u32 columns, u32 has_beta) {
    backward<SHORT>(x, dy, gamma, statistics, residual, dx, slabs, rows, columns, has_beta);
}

// Of longer rows.
extern "C" __global__ void __launch_bounds__(WIDE, 1)
    norm_backward_long(const void* x, const void* dy, const void* gamma, const float2* statistics, const void* residual, void* dx, float* slabs,
                       u32 rows, u32 columns, u32 has_beta) {
    backward<LONG>(x, dy, gamma, statistics, residual, dx, slabs, rows, columns, has_beta);
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
    float* const to = is_beta ? of_beta : of_gamma;
    // It starts while the launch before ends.
    asm volatile("griddepcontrol.wait;" ::: "memory");
    const Num before = column < columns && warp == 0 ? to[column] : 0.f;
    Num sum = 0.f;
    if (column < columns) {
#pragma unroll 17
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
    to[column] = (before + sums[0]).v;
}
