// Rows that ranks gather or add up, for few rows: a launch on every rank, in one shot or in two. slots.cuh says how words come. The text before
// says WORLD, THREADS, BATCH (pieces of 16 bytes that a thread awaits of each rank at once), COLLECTIVE and ELEMENTS.
#define ALL_GATHER 0
#define REDUCE_SCATTER 1
#define ALL_REDUCE 2
#define TWO_SHOT_ALL_REDUCE 3
// Each rank adds up the rows that it owns.
#define BY_OWNER (COLLECTIVE == REDUCE_SCATTER || COLLECTIVE == TWO_SHOT_ALL_REDUCE)
#define BF16 0
#define F16 1

#include "watch.cuh"
#include "slots.cuh"

// 8 elements of a row, as memory holds them.
struct Eight {
    u32 words[4];
};

// Ordinary loads: of a gather, this launch writes other rows of the same tensor.
__device__ __forceinline__ void load(Eight& x, const u8* at) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.words[0]), "=r"(x.words[1]), "=r"(x.words[2]), "=r"(x.words[3])
                 : "l"(at)
                 : "memory");
}
__device__ __forceinline__ void store(u8* at, const Eight& x) {
    *reinterpret_cast<uint4*>(at) = make_uint4(x.words[0], x.words[1], x.words[2], x.words[3]);
}

#if ELEMENTS == BF16
__device__ __forceinline__ float element(const Eight& x, u32 i) {
    return __uint_as_float(i % 2 ? x.words[i / 2] & 0xffff0000u : x.words[i / 2] << 16);
}
__device__ __forceinline__ u32 pair_of(float first, float second) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}
#else
__device__ __forceinline__ float element(const Eight& x, u32 i) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<unsigned short>(x.words[i / 2] >> (i % 2 * 16))));
    return value;
}
__device__ __forceinline__ u32 pair_of(float first, float second) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}
#endif

// The ranks' terms in the order of ranks, added to zero in f32 and rounded once.
__device__ __forceinline__ Eight sum_of(const Eight* terms) {
    Eight sum;
#pragma unroll
    for (u32 j = 0; j < 8; j += 2) {
        float sums[2] = {0.f, 0.f};
#pragma unroll
        for (u32 rank = 0; rank < WORLD; ++rank)
#pragma unroll
            for (u32 k = 0; k < 2; ++k) sums[k] = __fadd_rn(sums[k], element(terms[rank], j + k));
        sum.words[j / 2] = pair_of(sums[0], sums[1]);
    }
    return sum;
}

// Pieces that a thread loads before it sends them.
#define LOADED 4

// `x` is what this rank sends and `y` what it receives, of `rows` rows of `eights` times 16 bytes over all ranks. Each rank owns `shard`
// of them, the last ones fewer or none. Of a gather both are the same memory.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
low_latency(const __grid_constant__ Watch watch, const Slots slots, u32* launches, const u8* x, u8* y, u32 most_ctas, u32 rows,
            u32 shard, u32 eights) {
    // It may have begun before the end of the launch before it.
    asm volatile("griddepcontrol.wait;" ::: "memory");
    const u32 me = watch.rank, launch = launches_before(launches);
    const u32 first = blockIdx.x * THREADS + threadIdx.x, step = gridDim.x * THREADS;
    // The first row that a rank owns, and how many pieces of 16 bytes all of its rows have.
    [[maybe_unused]] const auto row_of = [=](u32 rank) { return min(rank * shard, rows); };
    [[maybe_unused]] const auto owned = [=](u32 rank) { return (row_of(rank + 1) - row_of(rank)) * eights; };
    // The first row that this rank sends to one, how many pieces it sends, and how many one sends to it, from which row on.
#if COLLECTIVE == ALL_REDUCE
    [[maybe_unused]] const auto first_to = [=](u32) { return 0u; };
    [[maybe_unused]] const auto count_to = [=](u32) { return rows * eights; };
    [[maybe_unused]] const auto count_from = count_to;
    [[maybe_unused]] const auto first_from = first_to;
#elif BY_OWNER
    [[maybe_unused]] const auto first_to = row_of;
    [[maybe_unused]] const auto count_to = owned;
    [[maybe_unused]] const auto count_from = [=](u32) { return owned(me); };
    [[maybe_unused]] const auto first_from = [=](u32) { return row_of(me); };
#else
    [[maybe_unused]] const auto first_to = [=](u32) { return row_of(me); };
    [[maybe_unused]] const auto count_to = [=](u32) { return owned(me); };
    [[maybe_unused]] const auto count_from = owned;
    [[maybe_unused]] const auto first_from = row_of;
#endif
    // Where there is nothing to send, one piece comes all the same.
    const auto at_least_one = [](u32 count) { return count == 0 ? 1 : count; };
    jitter();
#if WORLD > 1
    // To one peer after another if each gets other rows, else each piece to all.
#if BY_OWNER
    for (u32 next = 1; next < WORLD; ++next) {
        const u32 to = (me + next) % WORLD;
#else
    {
        const u32 to = me;
#endif
        const u32 count = count_to(to);
        const u8* const from = x + u64(first_to(to)) * eights * 16;
        for (u32 start = first; start < at_least_one(count); start += LOADED * step) {
            Eight own[LOADED];
#pragma unroll
            for (u32 b = 0; b < LOADED; ++b) {
                const u32 i = start + b * step;
                own[b] = {};
                if (i < count) load(own[b], from + u64(i) * 16);
            }
#pragma unroll
            for (u32 b = 0; b < LOADED; ++b) {
                const u32 i = start + b * step;
                if (i >= at_least_one(count)) break;
#if BY_OWNER
                send(rows_from(slots, to, me, launch) + u64(i) * 16, own[b]);
#else
                for (u32 next = 1; next < WORLD; ++next)
                    send(rows_from(slots, (me + next) % WORLD, me, launch) + u64(i) * 16, own[b]);
#endif
            }
        }
    }
    bool gone = false;
#endif
    // No rank sends more than the first one.
    for (u32 start = first; start < at_least_one(count_from(0)); start += BATCH * step) {
        [[maybe_unused]] const auto index = [=](u32 i) { return start + i / WORLD * step; };
        Eight of[BATCH * WORLD] = {};
#if COLLECTIVE != ALL_GATHER
        // Before the others are awaited, which does not wait for it.
        Eight own[BATCH];
#pragma unroll
        for (u32 b = 0; b < BATCH; ++b) {
            own[b] = {};
            const u32 i = start + b * step;
            if (i < count_from(0)) load(own[b], x + (u64(first_to(me)) * eights + i) * 16);
        }
#endif
#if WORLD > 1
        receive(
            of,
            [&](u32 i) {
                const u32 rank = i % WORLD;
                const bool there = rank != me && index(i) < at_least_one(count_from(rank));
                return Awaited{there, rows_from(slots, me, rank, launch) + u64(index(i)) * 16};
            },
            [](u32 i) { return i % WORLD; }, [=](u32 i) { return first_from(i % WORLD) + index(i) / eights; }, watch, gone);
#endif
#pragma unroll
        for (u32 b = 0; b < BATCH; ++b) {
            const u32 i = start + b * step;
#if COLLECTIVE == ALL_GATHER
#pragma unroll
            for (u32 rank = 0; rank < WORLD; ++rank)
                if (rank != me && i < owned(rank)) store(y + (u64(row_of(rank)) * eights + i) * 16, of[b * WORLD + rank]);
#else
            if (i >= count_from(0)) break;
#pragma unroll
            for (u32 rank = 0; rank < WORLD; ++rank)
#pragma unroll
                for (u32 word = 0; word < 4; ++word) {
                    u32& x = of[b * WORLD + rank].words[word];
                    // Not by a branch, as in `look_if`.
                    asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; selp.b32 %0, %1, %0, p; }"
                        : "+r"(x)
                        : "r"(own[b].words[word]), "r"(static_cast<u32>(rank == me)));
                }
            const Eight sum = sum_of(of + b * WORLD);
#if COLLECTIVE == TWO_SHOT_ALL_REDUCE
            store(y + (u64(row_of(me)) * eights + i) * 16, sum);
            for (u32 next = 1; next < WORLD; ++next)
                send(rows_from(slots, (me + next) % WORLD, me, launch) + slots.each / 2 + u64(i) * 16, sum);
#else
            store(y + u64(i) * 16, sum);
#endif
#endif
        }
    }
#if COLLECTIVE == TWO_SHOT_ALL_REDUCE && WORLD > 1
    // The other owners' sums, which come to the second half. Who owns nothing sends none.
    for (u32 start = first; start < owned(0); start += BATCH * step) {
        const auto index = [=](u32 i) { return start + i / WORLD * step; };
        Eight of[BATCH * WORLD] = {};
        receive(
            of,
            [&](u32 i) {
                const u32 rank = i % WORLD;
                const bool there = rank != me && index(i) < owned(rank);
                return Awaited{there, rows_from(slots, me, rank, launch) + slots.each / 2 + u64(index(i)) * 16};
            },
            [](u32 i) { return i % WORLD; }, [=](u32 i) { return row_of(i % WORLD) + index(i) / eights; }, watch, gone);
#pragma unroll
        for (u32 i = 0; i < BATCH * WORLD; ++i)
            if (i % WORLD != me && index(i) < owned(i % WORLD))
                store(y + (u64(row_of(i % WORLD)) * eights + index(i)) * 16, of[i]);
    }
#endif
    __syncthreads();
    launched(launches, launch, most_ctas);
}
