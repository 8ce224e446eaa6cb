// Rows of ranks added up, a residual added to them, normalised, and quantised if asked: a launch on every rank, in one shot. A CTA
// writes its rows to every peer, then does each of them once the peers' have come. The text before says WORLD, THREADS, HELD (how
// many times a thread has 8 elements of a row), BATCH (how many of them it waits for at once), OUT and NORM_EPS.
//
// Data is its own signal. A word in memory that a peer writes is zero until it has come, since words travel inverted and none that
// does is zero. The reader makes it zero again. So no fence and no flag stands between the ranks, and words may come in any order.
//
// Launches write two buffers by turns. A rank ends launch n + 1 only with rows of every peer that the peer's launch n + 1 wrote, and
// that comes after the peer's launch n, which had read its buffer and made it zero. So when launch n + 2 writes the buffer of
// launch n to a peer, the peer is done with it. The ends of kernels between are the fences.
// So a launch must never begin before the one before it in the stream has ended: no programmatic dependent launch.
#include "watch.cuh"
#include "elements.cuh"

#define BFLOAT 0
#define GIVEN 1
#define EACH_ROW 2
#define EACH_BLOCK 3

constexpr u32 WARPS = THREADS / 32;

// Memory that peers write, on every rank.
struct Slots {
    u8* first;   // rank 0's
    u64 stride;  // to the next rank's
    u64 each;    // bytes of a sender's rows
};

// Rows of one sender in a rank's buffer.
__device__ __forceinline__ u8* rows_from(const Slots& slots, u32 home, u32 sender, u32 launch) {
    const u32 at = launch % 2 * (WORLD - 1) + sender - (sender > home ? 1 : 0);
    return slots.first + home * slots.stride + at * slots.each;
}

// Two elements as they travel: another NaN for the one pair that would be zero.
__device__ __forceinline__ u32 inverted(u32 word) {
    return ~(word == 0xffffffffu ? 0x7fff7fffu : word);
}

// Relaxed: nothing but the words themselves is ordered.
__device__ __forceinline__ void send(u8* at, const Eight& x) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(inverted(x.words[0])),
                 "r"(inverted(x.words[1])), "r"(inverted(x.words[2])), "r"(inverted(x.words[3]))
                 : "memory");
}
// Without a branch, which would let the compiler keep ranks' elements in memory to choose among them.
__device__ __forceinline__ void look_if(bool peer, Eight& x, const u8* at) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(x.words[0]), "+r"(x.words[1]), "+r"(x.words[2]), "+r"(x.words[3])
                 : "l"(at), "r"(static_cast<u32>(peer))
                 : "memory");
}
__device__ __forceinline__ u32 come(const Eight& x) {
    return (x.words[0] != 0) + (x.words[1] != 0) + (x.words[2] != 0) + (x.words[3] != 0);
}

// A call, which costs its caller no copy of this text.
__device__ __noinline__ bool gave_up(const Watch& watch, u32 peer, u32 row, u32 seen, u64 start, u32 looks) {
    return gives_up(watch, 0, peer, row, seen, 4, start, looks);
}

// 8 elements of a row: whether this thread has them, and where they are, counted in 16 bytes from the first row.
struct Place {
    bool there;
    u64 at;
};

// The same elements of every rank, of which this rank's are `own`: the first look does not wait for them. After the time limit, or
// when it is told to, it takes what there is.
__device__ __forceinline__ void receive(Eight (&of)[BATCH][WORLD], const Eight (&own)[BATCH], const Place (&place)[BATCH],
                                        const Slots& slots, u32 launch, u32 row, const Watch& watch, bool& gone) {
    u64 start = 0;
#pragma unroll
    for (u32 b = 0; b < BATCH; ++b)
#pragma unroll
        for (u32 rank = 0; rank < WORLD; ++rank)
#pragma unroll
            for (u32 i = 0; i < 4; ++i) of[b][rank].words[i] = ~0u;
    for (u32 looks = 0;; ++looks) {
        u32 absent = WORLD, seen = 4;
#pragma unroll
        for (u32 b = 0; b < BATCH; ++b)
#pragma unroll
            for (u32 rank = 0; rank < WORLD; ++rank)
                look_if(rank != watch.rank && place[b].there, of[b][rank],
                        rows_from(slots, watch.rank, rank, launch) + place[b].at * 16);
#pragma unroll
        for (u32 b = 0; b < BATCH; ++b)
#pragma unroll
            for (u32 rank = 0; rank < WORLD; ++rank)
                if (come(of[b][rank]) != 4) absent = rank, seen = come(of[b][rank]);
        if (absent == WORLD || gone) break;
        if (looks == 0) start = global_nanoseconds();
        if (looks % 64 == 63) gone = gave_up(watch, absent, row, seen, start, looks + 1);
    }
    jitter();
#pragma unroll
    for (u32 b = 0; b < BATCH; ++b)
#pragma unroll
        for (u32 rank = 0; rank < WORLD; ++rank) {
            if (rank != watch.rank && place[b].there)
                *reinterpret_cast<uint4*>(rows_from(slots, watch.rank, rank, launch) + place[b].at * 16) = make_uint4(0, 0, 0, 0);
#pragma unroll
            for (u32 i = 0; i < 4; ++i) of[b][rank].words[i] = rank == watch.rank ? own[b].words[i] : ~of[b][rank].words[i];
        }
}

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

// `launches`: a word for each CTA that a launch may have, all of them how many launches there were. A CTA reads its own, and the
// CTAs of a launch move on all of them. `line`: words from the scales of a block of columns to those of the next.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
all_reduce_norm(const __grid_constant__ Watch watch, const Slots slots, u32* launches, const void* x, void* residual, const void* gamma,
                u8* y, float* scales, const float* multiplier, u32* amax, u32 most_ctas, u32 rows, u32 columns, u32 line) {
    const u32 eights = columns / 8;
    const u32 launch = *reinterpret_cast<const volatile u32*>(launches + blockIdx.x);
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
            Eight of[BATCH][WORLD];
            receive(of, own, place, slots, launch, row, watch, gone);
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
                        sums[k] = of[b][0][j + k];
#pragma unroll
                        for (u32 rank = 1; rank < WORLD; ++rank) sums[k] = __fadd_rn(sums[k], of[b][rank][j + k]);
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
    for (u32 cta = blockIdx.x + threadIdx.x * gridDim.x; cta < most_ctas; cta += THREADS * gridDim.x) launches[cta] = launch + 1;
}
