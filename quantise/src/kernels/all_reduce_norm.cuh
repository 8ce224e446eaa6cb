// Rows of ranks added up, a residual added to them, normalised, and quantised if asked: a launch on every rank, in one shot. A CTA
// writes its rows to every peer, then does each of them once the peers' have come. The text before says WORLD, THREADS, HELD (how
// many times a thread has 8 elements of a row), BATCH (how many of them it waits for at once), OUT and NORM_EPS.
//
// slots.cuh says how words come, and why no launch touches memory before the one before it in the stream has ended. It has no
// `griddepcontrol.wait`, which would hold it until then, so it must not be a programmatic dependent launch.
#include "watch.cuh"
#include "slots.cuh"
#include "elements.cuh"

#define BFLOAT 0
#define GIVEN 1
#define EACH_ROW 2
#define EACH_BLOCK 3

constexpr u32 WARPS = THREADS / 32;

// 8 elements of a row: whether this thread has them, and where they are, counted in 16 bytes from the first row.
struct Place {
    bool there;
    u64 at;
};

// Two numbers, rounded: the first one in the low half. Every NaN becomes the same.
__device__ __forceinline__ u32 pair_of(float first, float second) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}

// The sum over the CTA's threads in all of them: lanes of a warp in pairs 16, 8, 4, 2 and 1 apart, then warp after warp. `turn` is
// another one than the last call's: a warp may be a call ahead.
__device__ __forceinline__ float sum_of_cta(float x, u32 turn) {
    __shared__ float of_warps[2][WARPS];
#pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2) x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, apart));
    if (threadIdx.x % 32 == 0) of_warps[turn % 2][threadIdx.x / 32] = x;
    __syncthreads();
    x = of_warps[turn % 2][0];
#pragma unroll
    for (u32 warp = 1; warp < WARPS; ++warp) x = __fadd_rn(x, of_warps[turn % 2][warp]);
    return x;
}

#if OUT == EACH_ROW
__device__ __forceinline__ float largest_of_row(float amax, u32 turn) {
    __shared__ float of_warps[2][WARPS];
    amax = largest_of_warp(amax);
    if (threadIdx.x % 32 == 0) of_warps[turn % 2][threadIdx.x / 32] = amax;
    __syncthreads();
    amax = 0.f;
#pragma unroll
    for (u32 warp = 0; warp < WARPS; ++warp) amax = larger(amax, of_warps[turn % 2][warp]);
    return amax;
}
#endif

// `line`: words from the scales of a block of columns to those of the next.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
all_reduce_norm(const __grid_constant__ Watch watch, const Slots slots, u32* launches, const void* x, void* residual, const void* gamma,
                u8* y, float* scales, const float* multiplier, u32* amax, u32 most_ctas, u32 rows, u32 columns, u32 line) {
    const u32 eights = columns / 8;
    const u32 launch = launches_before(launches);
    jitter();
#if WORLD > 1
    for (u32 row = blockIdx.x; row < rows; row += gridDim.x)
#pragma unroll
        for (u32 i = 0; i < HELD; ++i) {
            const u32 eight = i * THREADS + threadIdx.x;
            if (eight >= eights) break;
            const u64 at = u64(row) * eights + eight;
            Eight own;
            own.load(x, at * 8);
            for (u32 next = 1; next < WORLD; ++next) {
                const u32 peer = (watch.rank + next) % WORLD;
                send(rows_from(slots, peer, watch.rank, launch) + at * 16, own);
            }
        }
    bool gone = false;
#endif
    // What does not depend on peers is under way while rows are awaited.
#if HELD <= 2
    Eight gammas[HELD];
#pragma unroll
    for (u32 i = 0; i < HELD; ++i)
        if (i * THREADS + threadIdx.x < eights) gammas[i].load(gamma, u64(i * THREADS + threadIdx.x) * 8);
#endif
#if OUT == GIVEN
    const float given = *multiplier;
#endif
    for (u32 row = blockIdx.x, turn = 0; row < rows; row += gridDim.x, ++turn) {
        Eight held[HELD];
        float squares = 0.f;
#pragma unroll
        for (u32 first = 0; first < HELD; first += BATCH) {
            Place place[BATCH];
            Eight own[BATCH], before[BATCH];
#pragma unroll
            for (u32 b = 0; b < BATCH; ++b) {
                const u32 eight = (first + b) * THREADS + threadIdx.x;
                place[b] = {first + b < HELD && eight < eights, u64(row) * eights + eight};
                own[b].clear(), before[b].clear();
                if (!place[b].there) continue;
                own[b].load(x, place[b].at * 8);
                // It is written below, so this is no load by which the compiler may take it for constant.
                const uint4 four = static_cast<const uint4*>(residual)[place[b].at];
                before[b].words[0] = four.x, before[b].words[1] = four.y, before[b].words[2] = four.z, before[b].words[3] = four.w;
            }
#if WORLD > 1
            Eight of[BATCH * WORLD];
            receive(
                of,
                [&](u32 i) {
                    const u32 b = i / WORLD, rank = i % WORLD;
                    return Awaited{rank != watch.rank && place[b].there,
                                   rows_from(slots, watch.rank, rank, launch) + place[b].at * 16};
                },
                [](u32 i) { return i % WORLD; }, [=](u32) { return row; }, watch, gone);
#pragma unroll
            for (u32 i = 0; i < BATCH * WORLD; ++i)
#pragma unroll
                for (u32 word = 0; word < 4; ++word)
                    of[i].words[word] = i % WORLD == watch.rank ? own[i / WORLD].words[word] : of[i].words[word];
#endif
#pragma unroll
            for (u32 b = 0; b < BATCH; ++b) {
                if (first + b >= HELD) break;
                Eight& sum = held[first + b];
#pragma unroll
                for (u32 j = 0; j < 8; j += 2) {
                    float sums[2];
#pragma unroll
                    for (u32 k = 0; k < 2; ++k) {
#if WORLD > 1
                        sums[k] = of[b * WORLD][j + k];
#pragma unroll
                        for (u32 rank = 1; rank < WORLD; ++rank) sums[k] = __fadd_rn(sums[k], of[b * WORLD + rank][j + k]);
#else
                        sums[k] = own[b][j + k];
#endif
                        sums[k] = __fadd_rn(sums[k], before[b][j + k]);
                    }
                    sum.words[j / 2] = pair_of(sums[0], sums[1]);
                }
                if (place[b].there)
                    static_cast<uint4*>(residual)[place[b].at] = make_uint4(sum.words[0], sum.words[1], sum.words[2], sum.words[3]);
#pragma unroll
                for (u32 j = 0; j < 8; ++j) squares = __fadd_rn(squares, __fmul_rn(sum[j], sum[j]));
            }
        }
        const float mean = __fdiv_rn(sum_of_cta(squares, turn), static_cast<float>(columns));
        const float factor = __frcp_rn(__fsqrt_rn(__fadd_rn(mean, NORM_EPS)));
#if OUT == GIVEN || OUT == EACH_ROW
        float most = 0.f;
#endif
#pragma unroll
        for (u32 i = 0; i < HELD; ++i) {
            const u32 eight = i * THREADS + threadIdx.x;
            if (eight < eights) {
#if HELD <= 2
                const Eight& gamma8 = gammas[i];
#else
                Eight gamma8;
                gamma8.load(gamma, u64(eight) * 8);
#endif
#pragma unroll
                for (u32 j = 0; j < 8; j += 2)
                    held[i].words[j / 2] = pair_of(__fmul_rn(__fmul_rn(held[i][j], factor), gamma8[j]),
                                                   __fmul_rn(__fmul_rn(held[i][j + 1], factor), gamma8[j + 1]));
            }
            const u64 first = u64(row) * columns + u64(eight) * 8;
#if OUT == BFLOAT
            if (eight < eights)
                *reinterpret_cast<uint4*>(y + 2 * first) = make_uint4(held[i].words[0], held[i].words[1], held[i].words[2], held[i].words[3]);
#else
            float own = 0.f;
#pragma unroll
            for (u32 j = 0; j < 8; ++j) own = larger(own, fabsf(held[i][j]));
#if OUT == GIVEN || OUT == EACH_ROW
            most = larger(most, own);
#endif
#if OUT == GIVEN
            if (eight < eights) store(y + first, held[i], given);
#elif OUT == EACH_BLOCK
            // A block of 128 columns is that of 16 threads next to each other.
#pragma unroll
            for (u32 apart = 8; apart > 0; apart /= 2) own = larger(own, __shfl_xor_sync(0xffffffffu, own, apart));
            const Scale scale = scale_of(own, MOST);
            if (eight < eights) {
                store(y + first, held[i], scale.multiplier);
                if (eight % 16 == 0) scales[u64(eight / 16) * line + row] = scale.stored;
            }
#endif
#endif
        }
#if OUT == GIVEN
        if (amax != nullptr) {
            most = largest_of_warp(most);
            if (threadIdx.x % 32 == 0) atomicMax(amax, __float_as_uint(most));
        }
#elif OUT == EACH_ROW
        const Scale scale = scale_of(largest_of_row(most, turn), LARGEST_F32);
        if (threadIdx.x == 0) scales[row] = scale.stored;
#pragma unroll
        for (u32 i = 0; i < HELD; ++i) {
            const u32 eight = i * THREADS + threadIdx.x;
            if (eight < eights) store(y + u64(row) * columns + u64(eight) * 8, held[i], scale.multiplier);
        }
#elif OUT == EACH_BLOCK
        if (row == rows - 1)
            for (u32 block = threadIdx.x; block < (eights + 15) / 16; block += THREADS)
                for (u32 none = rows; none < line; ++none) scales[u64(block) * line + none] = 0.f;
#endif
    }
    // Every thread has read the CTA's word: it was in a sum since.
    launched(launches, launch, most_ctas);
}
