// Cross-entropy of rows of logits, with its gradient. A CTA of WIDE threads has every row that is gridDim.x behind its last one.

#include "ahead.cuh"

// Eights that a thread has of those whose exponentials stay in registers: 32,768 columns. Eights of a stage: 57,344 columns.
constexpr u32 KEPT = 8, STAGE = 7168;
static_assert(SHARED == 2 * STAGE * sizeof(uint4) && STAGE > KEPT * WIDE, "what a launch gives is two stages");

// What a row has where it has no column: nothing is smaller, and e to its power is 0.
constexpr u32 NOTHING = 0xff80ff80u;

// The larger ones of two pairs.
__device__ __forceinline__ void enlarge(u32& pair, u32 other) { asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(pair), "r"(other)); }
__device__ __forceinline__ void enlarge(u32& pair, const Eight& x8) {
#pragma unroll
    for (u32 word = 0; word < 4; ++word) enlarge(pair, x8.words[word]);
}

// What makes a row's gradient: e^(x - most) · by · scale of each column, but `own` of the target.
struct Slope {
    Num scaled, own;
    // x: the target's logit.
    __device__ __forceinline__ Slope(Num most, Num by, Num scale, Num x)
        : scaled(by * scale), own((times_normal(raised(x - most), by) - Num(1.f)) * scale) {}
    // Of eight columns, where e(j) is the exponential of column j.
    template <class E>
    __device__ __forceinline__ Eight of(E e) const {
        Eight dx8;
        dx8.fill([&](u32 j) { return times_normal(e(j), scaled); });
        return dx8;
    }
    // Behind what the same thread, one of so many, has stored of the row: the target's, if it is one of this thread's.
    __device__ __forceinline__ void store(void* dx, u64 first, u32 columns, u32 target, u32 threads) const {
        if (target < columns && target / 8 % threads == threadIdx.x) static_cast<u16*>(dx)[8 * first + target] = static_cast<u16>(to_bf16(own));
    }
};

// Zeros or NaN of a row that counts nothing, or whose target is no class.
__device__ __forceinline__ void no_gradient(void* dx, u64 first, u32 eights, u32 threads, bool counts) {
    Eight dx8;
    dx8.fill([&](u32) { return counts ? Num(__uint_as_float(0x7fc00000u)) : Num(0.f); });
    for (u32 at = threadIdx.x; at < eights; at += threads) dx8.store(dx, first + at);
}

__device__ __forceinline__ Num logit(const void* x, u64 first, u32 column) {
    return from_bf16(static_cast<const u16*>(x)[8 * first + column]);
}

// A row, whose first eights are in a stage: `here` of them, and behind these what no column is.
struct Row {
    const uint4* stage;
    const void* x;
    u64 first;
    u32 here, eights;

    // f(which of this thread's, which of the row's, its elements) for those that are kept, also where the row has none any more.
    template <class F>
    __device__ __forceinline__ void kept(F f) const {
#pragma unroll
        for (u32 i = 0; i < KEPT; ++i)
            if (i * WIDE < eights) {
                Eight x8;
                x8.load(stage, i * WIDE + threadIdx.x);
                f(i, i * WIDE + threadIdx.x, x8);
            }
    }
    // f(which of the row's, its elements) for those of this thread behind them.
    template <class F>
    __device__ __forceinline__ void others(F f) const {
        for (u32 at = KEPT * WIDE + threadIdx.x; at < eights; at += WIDE) {
            Eight x8;
            if (at < here) x8.load(stage, at);
            else x8.load(x, first + at);
            f(at, x8);
        }
    }
    // A column that there is.
    __device__ __forceinline__ Num logit(u32 column) const {
        return from_bf16(column < 8 * here ? reinterpret_cast<const u16*>(stage)[column] : static_cast<const u16*>(x)[8 * first + column]);
    }
    // This thread's largest logits.
    __device__ __forceinline__ u32 largest() const {
        u32 pair = NOTHING;
        kept([&](u32, u32, const Eight& x8) { enlarge(pair, x8); });
        others([&](u32, const Eight& x8) { enlarge(pair, x8); });
        return pair;
    }
};

// work(row, the column of its target or none that there is, its largest logit, the sum of e^(x - that), the target's logit, give(dx, slope):
// stores the gradient) for each row of this CTA. FOR_PARTS: classes that are all masked count nothing.
//
// Threads meet once for each row: for its sum, and for the largest logit of the next one, which has come to the other stage.
template <bool FOR_PARTS, class W>
__device__ __forceinline__ void rows_of(const void* x, u32 rows, u32 columns, W work) {
    extern __shared__ __align__(128) uint4 stages[];
    __shared__ __align__(8) u64 barriers[2];
    // Of each stage's row: threads that still read those of a row are one row behind at most.
    __shared__ float sums[2][WIDE_WARPS];
    __shared__ u32 pairs[2][WIDE_WARPS];
    const u32 eights = columns / 8, here = min(eights, STAGE);
    for (u32 at = here + threadIdx.x; at < KEPT * WIDE; at += WIDE)
        stages[at] = stages[STAGE + at] = make_uint4(NOTHING, NOTHING, NOTHING, NOTHING);
    Stages ahead;
    ahead.begin(barriers, 2);
    const auto of = [&](u32 row, u32 stage) { return Row{stages + stage * STAGE, x, u64(row) * eights, here, eights}; };
    const auto ask = [&](u32 row, u32 stage) {
        if (threadIdx.x != 0 || row >= rows) return;
        ahead.expect(stage, here);
        ahead.copy(stage, stages + stage * STAGE, x, u64(row) * eights, here);
    };
    ask(blockIdx.x, 0);
    u32 stage = 0, coming = work.target_of(blockIdx.x);
    ahead.wait(0, 0);
    ask(blockIdx.x + gridDim.x, 1);
    u32 pair = of(blockIdx.x, 0).largest();
    Num sum = 0.f;
    // Sums that threads have become those of all, and so do their largest logits.
    const auto meet = [&](u32 stage) {
#pragma unroll
        for (u32 apart = 16; apart > 0; apart /= 2) {
            sum = sum + Num(__shfl_xor_sync(0xffffffffu, sum.v, apart));
            enlarge(pair, __shfl_xor_sync(0xffffffffu, pair, apart));
        }
        if (threadIdx.x % 32 == 0) sums[stage][threadIdx.x / 32] = sum.v, pairs[stage][threadIdx.x / 32] = pair;
        has_read();
        __syncthreads();
        Num all[WIDE_WARPS];
#pragma unroll
        for (u32 warp = 0; warp < WIDE_WARPS; ++warp) {
            all[warp] = sums[stage][warp];
            enlarge(pair, pairs[stage][warp]);
        }
        fold<WIDE_WARPS>(all);
        sum = all[0];
    };
    meet(1);
    for (u32 row = blockIdx.x, turn = 0; row < rows; row += gridDim.x) {
        const u32 target = coming, next = row + gridDim.x;
        if (next < rows) coming = work.target_of(next);
        // Never -0.
        const Num most = larger(from_bf16(pair & 0xffffu), from_bf16(pair >> 16)) + Num(0.f);
        const Num less = FOR_PARTS && most.v == __uint_as_float(0xff800000u) ? Num(0.f) : most;
        const Row its = of(row, stage);
        Num e[KEPT][8];
        sum = 0.f;
        its.kept([&](u32 i, u32, const Eight& x8) {
#pragma unroll
            for (u32 j = 0; j < 8; ++j) {
                e[i][j] = raised(x8[j] - less);
                sum = add_normal(sum, e[i][j]);
            }
        });
        its.others([&](u32, const Eight& x8) {
#pragma unroll
            for (u32 j = 0; j < 8; ++j) sum = add_normal(sum, raised(x8[j] - less));
        });
        const Num own = target < columns ? its.logit(target) : Num(0.f);
        pair = NOTHING;
        if (next < rows) {
            ahead.wait(stage ^ 1, turn ^ stage);
            pair = of(next, stage ^ 1).largest();
        }
        meet(stage);
        // No one needs the row any more, but for what registers do not have.
        const bool is_free = eights <= KEPT * WIDE;
        if (is_free) ask(next + gridDim.x, stage);
        // A row with NaN or infinity has no sum.
        work(row, target, most, sum + (less - less), own, [&](void* dx, const Slope& slope) {
#pragma unroll
            for (u32 i = 0; i < KEPT; ++i)
                if (const u32 at = i * WIDE + threadIdx.x; at < eights) slope.of([&](u32 j) { return e[i][j]; }).store(dx, its.first + at);
            its.others([&](u32 at, const Eight& x8) { slope.of([&](u32 j) { return raised(x8[j] - less); }).store(dx, its.first + at); });
            slope.store(dx, its.first, columns, target, WIDE);
        });
        if (!is_free) {
            has_read();
            __syncthreads();
            ask(next + gridDim.x, stage);
        }
        turn ^= stage, stage ^= 1;
    }
}

// A row's loss and its gradient.
struct Whole {
    const u32* targets;
    float* losses;
    void* dx;
    u32 columns;
    float scale;
    __device__ __forceinline__ u32 target_of(u32 row) const { return targets[row]; }
    template <class G>
    __device__ __forceinline__ void operator()(u32 row, u32 target, Num most, Num sum, Num own, G give) const {
        const bool counts = target != 0xffffffffu;
        if (target >= columns) {
            no_gradient(dx, u64(row) * (columns / 8), columns / 8, WIDE, counts);
            if (threadIdx.x == 0) losses[row] = counts ? __uint_as_float(0x7fc00000u) : 0.f;
            return;
        }
        give(dx, Slope(most, inverse(sum), scale, own));
        // The difference first: `most + ln(sum)` would round away the loss of a row that is sure of its target.
        if (threadIdx.x == 0) losses[row] = (ln_of(sum) - (own - most)).v;
    }
};

// What a rank with the classes from `first` on has of a row.
struct Part {
    const u32* targets;
    float4* parts;
    u32 first;
    __device__ __forceinline__ u32 target_of(u32 row) const { return targets[row] - first; }
    template <class G>
    __device__ __forceinline__ void operator()(u32 row, u32, Num most, Num sum, Num own, G) const {
        if (threadIdx.x == 0) parts[row] = make_float4(most.v, sum.v, own.v, 0.f);
    }
};

// losses = -ln(softmax(x)[target]), dx = (softmax(x) - [target]) · scale. A target of all ones: the row counts nothing.
extern "C" __global__ void __launch_bounds__(WIDE, 1)
    cross_entropy(const void* x, const u32* targets, float* losses, void* dx, u32 rows, u32 columns, float scale) {
    rows_of<false>(x, rows, columns, Whole{targets, losses, dx, columns, scale});
}

// Of each row its largest logit; the sum of e^(x - that); the target's logit, if it is among this rank's.
extern "C" __global__ void __launch_bounds__(WIDE, 1)
    cross_entropy_part(const void* x, const u32* targets, float4* parts, u32 rows, u32 columns, u32 first) {
    rows_of<true>(x, rows, columns, Part{targets, parts, first});
}

// The loss of a row of all ranks' classes, and the gradient of this rank's logits, of what every rank has of the row. A CTA for each row.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    cross_entropy_of_parts(const void* x, const u32* targets, const float4* parts, float* losses, void* dx, u32 columns, u32 first,
                           u32 ranks, u32 classes, float scale) {
    const u32 target = targets[blockIdx.x], eights = columns / 8;
    const u64 row = u64(blockIdx.x) * eights;
    const bool counts = target != 0xffffffffu, is_class = counts && target < classes;
    if (!is_class) {
        no_gradient(dx, row, eights, THREADS, counts);
        if (threadIdx.x == 0) losses[blockIdx.x] = counts ? __uint_as_float(0x7fc00000u) : 0.f;
        return;
    }
    Num most = __uint_as_float(0xff800000u);
    for (u32 rank = 0; rank < ranks; ++rank) most = larger(most, Num(parts[u64(rank) * gridDim.x + blockIdx.x].x));
    Num sum = 0.f, own = 0.f;
    for (u32 rank = 0; rank < ranks; ++rank) {
        const float4 part = parts[u64(rank) * gridDim.x + blockIdx.x];
        sum = sum + Num(part.y) * exp_of(Num(part.x) - most);
        own = own + Num(part.z);
    }
    // Columns before the first one have numbers beyond the last.
    const Num x_own = target - first < columns ? logit(x, row, target - first) : Num(0.f);
    const Slope slope(most, inverse(sum), scale, x_own);
#pragma unroll 4
    for (u32 at = threadIdx.x; at < eights; at += THREADS) {
        Eight x8;
        x8.load(x, row + at);
        slope.of([&](u32 j) { return raised(x8[j] - most); }).store(dx, row + at);
    }
    slope.store(dx, row, columns, target - first, THREADS);
    if (threadIdx.x == 0) losses[blockIdx.x] = (ln_of(sum) - (own - most)).v;
}
