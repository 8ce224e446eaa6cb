// Kernels that see a tensor, or a row, as a line of elements.

#include "elements.cuh"

// The amax of what each CTA sees. `eights`: how many times 8 elements there are.
extern "C" __global__ void __launch_bounds__(256) amax_of_ctas(const void* x, float* partials, const u32* skip, u64 eights) {
    if (is_skipped(skip)) return;
    const u64 step = u64(gridDim.x) * 256;
    float amax = 0.f;
    for (u64 at = u64(blockIdx.x) * 256 + threadIdx.x; at < eights; at += 4 * step) {
        Eight x8[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            x8[i].clear();
            if (at + i * step < eights) x8[i].load(x, 8 * (at + i * step));
        }
#pragma unroll
        for (u32 i = 0; i < 4; ++i)
#pragma unroll
            for (u32 j = 0; j < 8; ++j) amax = larger(amax, fabsf(x8[i][j]));
    }
    amax = largest_of_cta(amax);
    if (threadIdx.x == 0) partials[blockIdx.x] = amax;
}

// The amax of all CTAs, if there are some, else the one that is in `state` already, and the scale that it makes.
extern "C" __global__ void __launch_bounds__(256) settle(const float* partials, float* state, float* scale, const u32* skip, u32 ctas) {
    if (is_skipped(skip)) return;
    float amax = 0.f;
    for (u32 i = threadIdx.x; i < ctas; i += 256) amax = larger(amax, partials[i]);
    amax = largest_of_cta(amax);
    if (threadIdx.x != 0) return;
    amax = ctas == 0 ? state[0] : same_nan(amax);
    const Scale made = scale_of(amax, LARGEST_F32);
    state[0] = amax;
    state[1] = made.multiplier;
    *scale = made.stored;
}

// So many threads of a CTA for each row, 32 or more. What fits into registers is read once.
extern "C" __global__ void __launch_bounds__(256) cast_rows(const void* x, u8* codes, float* scales, const u32* skip, u32 rows, u32 columns,
                                                            u32 threads) {
    if (is_skipped(skip)) return;
    const u32 own = threadIdx.x % threads, row = blockIdx.x * (256 / threads) + threadIdx.x / threads;
    // Whoever has no row waits with the others.
    const u32 end = row < rows ? columns : 0;
    const u64 first = u64(row) * columns;
    constexpr u32 HELD = 4;
    Eight held[HELD];
    float amax = 0.f;
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) {
        const u32 column = (i * threads + own) * 8;
        held[i].clear();
        if (column < end) held[i].load(x, first + column);
    }
#pragma unroll
    for (u32 i = 0; i < HELD; ++i)
#pragma unroll
        for (u32 j = 0; j < 8; ++j) amax = larger(amax, fabsf(held[i][j]));
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) held[i].forget();
    const u32 rest = (HELD * threads + own) * 8;
    for (u32 column = rest; column < end; column += threads * 8) {
        Eight x8;
        x8.load(x, first + column);
#pragma unroll
        for (u32 j = 0; j < 8; ++j) amax = larger(amax, fabsf(x8[j]));
    }
    const Scale scale = scale_of(largest_of_group(amax, threads), LARGEST_F32);
    if (own == 0 && row < rows) scales[row] = scale.stored;
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) {
        const u32 column = (i * threads + own) * 8;
        if (column < end) store(codes + first + column, held[i], scale.multiplier);
    }
    for (u32 column = rest; column < end; column += threads * 8) {
        Eight x8;
        x8.load(x, first + column);
        store(codes + first + column, x8, scale.multiplier);
    }
}

// Amaxes of nothing yet.
extern "C" __global__ void __launch_bounds__(256) clear(float* amaxes, const u32* skip, u32 count) {
    if (is_skipped(skip)) return;
    const u32 at = blockIdx.x * 256 + threadIdx.x;
    if (at < count) amaxes[at] = 0.f;
}

// The end of a step of delayed scaling, a CTA for each history. `scales` has the multiplier and the stored scale of each, `amaxes` that of the
// current step, `pasts` the `past` ones before it, the latest last. With `of_ranks` the current one is the largest of all ranks', each of
// which has a row of `pitch` numbers; NaN is not seen there.
extern "C" __global__ void __launch_bounds__(256)
    next_step(float* scales, float* amaxes, float* pasts, const float* targets, const float* of_ranks, u32 ranks, u32 pitch, u32 past,
              u32 most_recent, u32 skips_zero) {
    const u32 own = blockIdx.x;
    float latest = of_ranks == nullptr ? amaxes[own] : 0.f;
    for (u32 rank = 0; rank < ranks; ++rank) {
        const float amax = of_ranks[u64(rank) * pitch + own];
        latest = amax > latest ? amax : latest;
    }
    float* before = pasts + u64(own) * past;
    float amax = fmaxf(0.f, latest);
    for (u32 i = threadIdx.x; i < past; i += 256) amax = fmaxf(amax, before[i]);
    // All threads have read the current one behind this.
    amax = largest_of_cta(amax);
    if (threadIdx.x == 0) amaxes[own] = 0.f;
    if (latest == 0.f && skips_zero) return;
    for (u32 first = 0; first < past; first += 256) {
        const u32 at = first + threadIdx.x;
        const float next = at + 1 < past ? before[at + 1] : latest;
        __syncthreads();
        if (at < past) before[at] = next;
    }
    if (most_recent) amax = latest;
    if (threadIdx.x != 0 || !(amax > 0.f && amax <= LARGEST_F32)) return;
    const float multiplier = fminf(__fdiv_rn(targets[own], amax), LARGEST_F32);
    scales[2 * own] = multiplier;
    scales[2 * own + 1] = __frcp_rn(multiplier);
}
