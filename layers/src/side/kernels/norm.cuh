// Normalisation of rows. The text before says what normed.cuh reads.

#include "normed.cuh"
#include "ahead.cuh"

// y = norm(x), a CTA for each row; `statistics` has the mean and one over the deviation of each row.
extern "C" __global__ void __launch_bounds__(THREADS, 6)
    norm_forward(const void* x, const void* gamma, const void* beta, void* y, float* statistics, u32 columns) {
    const u64 first = u64(blockIdx.x) * (columns / 8);
    normalise(x, gamma, beta, statistics, columns, [&](u32 at, const Eight& y8, bool is_there) {
        if (is_there) y8.store(y, first + at);
    });
}

// Waits until the copies of all rows but the last `ahead` are there.
__device__ __forceinline__ void rows_wait(u32 ahead) {
    if (ahead == 1) copies_wait<1>();
    else if (ahead == 3) copies_wait<3>();
    else copies_wait<7>();
}
// Eights of x that a thread has in shared memory, of dy and of what is added: those of 2, 4 or 8 rows.
constexpr u32 SLOTS = 2 * HELD;
static_assert(HELD == 4 && SHARED == 3 * SLOTS * THREADS * sizeof(uint4), "rows_wait knows 2, 4 and 8 rows");
// Floats of a CTA's sums of one gradient that it shows to its cluster.
constexpr u32 SHOWN = 8 * HELD * THREADS;
static_assert(2 * SHOWN * sizeof(float) <= SHARED, "sums take the place of rows");

// 8 sums.
__device__ __forceinline__ void load_sums(const float* from, u32 eight, Num* sums) {
    const float4 low = reinterpret_cast<const float4*>(from)[2 * eight], high = reinterpret_cast<const float4*>(from)[2 * eight + 1];
    sums[0] = low.x, sums[1] = low.y, sums[2] = low.z, sums[3] = low.w;
    sums[4] = high.x, sums[5] = high.y, sums[6] = high.z, sums[7] = high.w;
}
__device__ __forceinline__ void store_sums(float* to, u32 eight, const Num* sums) {
    reinterpret_cast<float4*>(to)[2 * eight] = make_float4(sums[0].v, sums[1].v, sums[2].v, sums[3].v);
    reinterpret_cast<float4*>(to)[2 * eight + 1] = make_float4(sums[4].v, sums[5].v, sums[6].v, sums[7].v);
}

// Both sums over the CTA's threads, each as sum_of_cta has it. `turn` is 0 and 1 in turns, so that threads meet once.
__device__ __forceinline__ void sums_of_cta(Num& a, Num& b, u32 turn) {
    __shared__ float2 of_warps[2][THREADS / 32];
#pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2) {
#if LAYER
        a = a + Num(__shfl_xor_sync(0xffffffffu, a.v, apart));
#endif
        b = b + Num(__shfl_xor_sync(0xffffffffu, b.v, apart));
    }
    if (threadIdx.x % 32 == 0) of_warps[turn][threadIdx.x / 32] = make_float2(a.v, b.v);
    __syncthreads();
    Num sums[2][THREADS / 32];
#pragma unroll
    for (u32 warp = 0; warp < THREADS / 32; ++warp) sums[0][warp] = of_warps[turn][warp].x, sums[1][warp] = of_warps[turn][warp].y;
#pragma unroll
    for (u32 apart = THREADS / 64; apart > 0; apart /= 2)
#pragma unroll
        for (u32 warp = 0; warp < apart; ++warp)
#pragma unroll
            for (u32 i = 0; i < 2; ++i) sums[i][warp] = sums[i][warp] + sums[i][warp + apart];
    a = sums[0][0], b = sums[1][0];
}

__device__ __forceinline__ void cluster_meets() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// A launch that may become resident early waits here for all before it, and for what they wrote.
__device__ __forceinline__ void launches_before_end() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// From when all CTAs have said so, the next launch may become resident.
__device__ __forceinline__ void next_launch_may_come() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Four sums of a CTA of the cluster, from the address that this one has them at.
__device__ __forceinline__ float4 shown_by(u32 cta, const float* at) {
    const u32 own = static_cast<u32>(__cvta_generic_to_shared(at));
    u32 address;
    float4 four;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(own), "r"(cta));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
                 : "r"(address)
                 : "memory");
    return four;
}
// Sums of a cluster's CTAs, in pairs.
template <class F>
__device__ __forceinline__ float4 in_pairs(F of) {
    float4 all[CLUSTER];
#pragma unroll
    for (u32 cta = 0; cta < CLUSTER; ++cta) all[cta] = of(cta);
    const auto add = [](float a, float b) { return (Num(a) + Num(b)).v; };
#pragma unroll
    for (u32 apart = CLUSTER / 2; apart > 0; apart /= 2)
#pragma unroll
        for (u32 i = 0; i < apart; ++i) {
            const float4 a = all[i], b = all[i + apart];
            all[i] = make_float4(add(a.x, b.x), add(a.y, b.y), add(a.z, b.z), add(a.w, b.w));
        }
    return all[0];
}

// dx of dy = the gradient of the norm's output; what `residual` has of each element is added before dx is rounded. A CTA has every row
// that is gridDim.x behind its last one, and sums gamma's and beta's gradients over them. A cluster adds up its CTAs' sums, and leaves
// them in its slab: gammas, then betas.
//
// Rows come to shared memory while those before are worked on. A thread reads only what it copied itself. Columns behind
// HELD eights for each thread are read from memory twice, and a CTA's sums of them are kept in its slab of `behind`.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    norm_backward(const void* x, const void* dy, const void* gamma, const float2* statistics, const void* residual, void* dx, float* slabs,
                  float* behind, u32 rows, u32 columns, u32 has_beta) {
    launches_before_end();
    extern __shared__ uint4 of_x[];
    uint4* const of_dy = of_x + SLOTS * THREADS;
    uint4* const of_more = of_dy + SLOTS * THREADS;
    const u32 eights = columns / 8, here = min(eights, HELD * THREADS), per_row = (here + THREADS - 1) / THREADS, depth = SLOTS / per_row;
    const bool with_beta = LAYER && has_beta;
    const Num share = Num(1.f) / Num(static_cast<float>(columns));
    float* const slab = behind + u64(blockIdx.x) * 2 * columns;
    Num gammas[HELD][8], betas[HELD][8];
#pragma unroll
    for (u32 i = 0; i < HELD; ++i)
#pragma unroll
        for (u32 j = 0; j < 8; ++j) gammas[i][j] = 0.f, betas[i][j] = 0.f;
    const auto place = [&](u32 stage, u32 i) { return (stage * per_row + i) * THREADS + threadIdx.x; };
    const auto fetch = [&](u32 row, u32 stage) {
        if (row < rows) of_row(eights, [&](u32 i, u32 at) {
            if (i >= HELD) return;
            copy_async(&of_x[place(stage, i)], x, u64(row) * eights + at);
            copy_async(&of_dy[place(stage, i)], dy, u64(row) * eights + at);
            if (residual != nullptr) copy_async(&of_more[place(stage, i)], residual, u64(row) * eights + at);
        });
        copies_end();
    };
    for (u32 stage = 0; stage < depth; ++stage) fetch(blockIdx.x + stage * gridDim.x, stage);
    u32 stage = 0, turn = 0;
    float2 of = make_float2(0.f, 0.f);
    if (blockIdx.x < rows) of = statistics[blockIdx.x];
    for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
        const u64 first = u64(row) * eights;
        const Num center = of.x, rstd = of.y;
        if (row + gridDim.x < rows) of = statistics[row + gridDim.x];
        const auto both = [&](u32 i, u32 at, Eight& x8, Eight& dy8) {
            if (i < HELD) return x8.load(of_x, place(stage, i)), dy8.load(of_dy, place(stage, i));
            x8.load(x, first + at), dy8.load(dy, first + at);
        };
        rows_wait(depth - 1);
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
                along = fma_of(scaled, normed, along);
                if (i < HELD) gammas[i % HELD][j] = fma_of(dy8[j], normed, gammas[i % HELD][j]);
                if (i < HELD && with_beta) betas[i % HELD][j] = betas[i % HELD][j] + dy8[j];
            }
            if (i < HELD) return;
            const auto add = [&](float* kept, bool is_beta) {
                Num sums[8];
                load_sums(kept, at, sums);
#pragma unroll
                for (u32 j = 0; j < 8; ++j) {
                    const Num before = row == blockIdx.x ? Num(0.f) : sums[j];
                    sums[j] = is_beta ? before + dy8[j] : fma_of(dy8[j], centered(x8[j], center) * rstd, before);
                }
                store_sums(kept, at, sums);
            };
            add(slab, false);
            if (with_beta) add(slab + columns, true);
        });
        sums_of_cta(sum, along, turn);
        turn ^= 1;
        const Num mean = sum * share;
        along = along * share;
        of_row(eights, [&](u32 i, u32 at) {
            Eight x8, dy8, gamma8, more, dx8;
            if (residual != nullptr) i < HELD ? more.load(of_more, place(stage, i)) : more.load(residual, first + at);
            both(i, at, x8, dy8);
            gamma8.load(gamma, at);
            dx8.fill([&](u32 j) {
                const Num scaled = dy8[j] * gamma_of(gamma8, j), normed = centered(x8[j], center) * rstd;
                const Num own = fma_of(-normed, along, centered(scaled, mean));
                return residual != nullptr ? fma_of(rstd, own, more[j]) : rstd * own;
            });
            dx8.store(dx, first + at);
        });
        fetch(row + depth * gridDim.x, stage);
        stage = stage + 1 == depth ? 0 : stage + 1;
    }
    next_launch_may_come();
    // All threads have read their rows, whose place the sums take.
    __syncthreads();
    float* const shown = reinterpret_cast<float*>(of_x);
    of_row(eights, [&](u32 i, u32 at) {
        if (i >= HELD) return;
        store_sums(shown, at, gammas[i % HELD]);
        if (with_beta) store_sums(shown + SHOWN, at, betas[i % HELD]);
    });
    cluster_meets();
    const u32 cluster = blockIdx.x / CLUSTER, own = blockIdx.x % CLUSTER;
    for (u32 part = 0; part < 1 + with_beta; ++part) {
        float4* const to = reinterpret_cast<float4*>(slabs + (u64(cluster) * 2 + part) * columns);
        // A float4 is half an eight.
        for (u32 at = own * THREADS + threadIdx.x; at < 2 * here; at += CLUSTER * THREADS)
            to[at] = in_pairs([&](u32 cta) { return shown_by(cta, shown + part * SHOWN + 4 * at); });
        for (u32 at = 2 * here + own * THREADS + threadIdx.x; at < 2 * eights; at += CLUSTER * THREADS)
            to[at] = in_pairs([&](u32 cta) {
                const u32 of_cta = cluster * CLUSTER + cta;
                // Who had no row has left nothing there. What others wrote is not in this SM's cache of L1.
                if (of_cta >= rows) return make_float4(0.f, 0.f, 0.f, 0.f);
                return __ldcg(reinterpret_cast<const float4*>(behind + (u64(of_cta) * 2 + part) * columns) + at);
            });
    }
    // Shared memory stays until the others have read it.
    cluster_meets();
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
    float* to = is_beta ? of_beta : of_gamma;
    launches_before_end();
    next_launch_may_come();
    const bool is_last = warp == 0 && column < columns;
    const Num before = is_last ? to[column] : 0.f;
    Num sum = 0.f;
    if (column < columns) {
#pragma unroll 8
        for (u32 slab = warp; slab < count; slab += WARPS) sum = sum + Num(from[u64(slab) * 2 * columns + column]);
    }
    of_warps[warp][lane] = sum.v;
    __syncthreads();
    if (!is_last) return;
    Num sums[WARPS];
#pragma unroll
    for (u32 i = 0; i < WARPS; ++i) sums[i] = of_warps[i][lane];
#pragma unroll
    for (u32 apart = WARPS / 2; apart > 0; apart /= 2)
#pragma unroll
        for (u32 i = 0; i < apart; ++i) sums[i] = sums[i] + sums[i + apart];
    to[column] = (before + sums[0]).v;
}
