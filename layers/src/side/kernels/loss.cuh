// Cross-entropy of rows of logits, one CTA for each, with its gradient.

#include "numbers.cuh"

// What makes a row's gradient: e^(x - most) · by · scale of each column, but `own` of the target.
struct Slope {
    Num most, scaled, own;
    // x: the target's logit.
    __device__ __forceinline__ Slope(Num most, Num by, Num scale, Num x)
        : most(most), scaled(by * scale), own((exp_below(x - most) * by - Num(1.f)) * scale) {}
    // Of eight columns, where e(j) is e^(x - most) of column j.
    template <class E>
    __device__ __forceinline__ Eight of(E e, u32 target) const {
        Eight dx8;
        dx8.fill([&](u32 j) { return e(j) * scaled; });
        if (target < 8) dx8.fill([&](u32 j) { return j == target ? own : dx8[j]; });
        return dx8;
    }
};

// Zeros or NaN of a row that counts nothing, or whose target is no class.
__device__ __forceinline__ void no_gradient(void* dx, u64 first, u32 eights, bool counts) {
    Eight dx8;
    dx8.fill([&](u32) { return counts ? Num(__uint_as_float(0x7fc00000u)) : Num(0.f); });
    for (u32 at = threadIdx.x; at < eights; at += THREADS) dx8.store(dx, first + at);
}

// Eights that a thread keeps of a row: 32,768 columns. What is behind them is read again.
constexpr u32 KEPT = 16;
// Those of them whose exponentials are kept, in twice the registers: the gradient computes each of the others again. More than 12 would
// spill.
constexpr u32 RAISED = 10;

// A row of logits.
struct Row {
    Eight held[KEPT];
    Num raised[RAISED][8];
    const void* x;
    u64 first;
    u32 eights;

    // f(which of this thread's, which of the row's) for the eights from FROM to TO that there are.
    template <u32 FROM, u32 TO, class F>
    __device__ __forceinline__ void some(F f) const {
#pragma unroll
        for (u32 i = FROM; i < TO; ++i)
            if (i * THREADS + threadIdx.x < eights) f(i, i * THREADS + threadIdx.x);
    }

    // f(which of the row's, its elements) for each eight of this thread from the one of that number on.
    template <u32 FROM, class F>
    __device__ __forceinline__ void each(F f) const {
        some<FROM, KEPT>([&](u32 i, u32 at) { f(at, held[i]); });
        for (u32 at = KEPT * THREADS + threadIdx.x; at < eights; at += THREADS) {
            Eight x8;
            x8.load(x, first + at);
            f(at, x8);
        }
    }

    // Reads it. Gives the largest logit; never -0.
    __device__ __forceinline__ Num load(const void* from, u32 columns) {
        x = from, eights = columns / 8, first = u64(blockIdx.x) * eights;
        some<0, KEPT>([&](u32 i, u32 at) { held[i].load(x, first + at); });
        u32 pair = 0xff80ff80u;
        each<0>([&](u32, const Eight& x8) {
#pragma unroll
            for (u32 word = 0; word < 4; ++word) asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(pair), "r"(x8.words[word]));
        });
        return largest_of_cta(larger(from_bf16(pair & 0xffffu), from_bf16(pair >> 16))) + Num(0.f);
    }

    // The sum of e^(x - less). Keeps the first ones.
    __device__ __forceinline__ Num sum(Num less) {
        Num sum = 0.f;
        some<0, RAISED>([&](u32 i, u32) {
#pragma unroll
            for (u32 j = 0; j < 8; ++j) {
                raised[i][j] = exp_below(held[i][j] - less);
                sum = sum + raised[i][j];
            }
        });
        each<RAISED>([&](u32, const Eight& x8) {
#pragma unroll
            for (u32 j = 0; j < 8; ++j) sum = sum + exp_below(x8[j] - less);
        });
        return sum_of_cta(sum);
    }

    // The logit of a column that there is.
    __device__ __forceinline__ Num of(u32 column) const { return from_bf16(static_cast<const u16*>(x)[8 * first + column]); }

    // dx = softmax · scale, but for the target (a column, or none that there is). After `sum(most)`.
    __device__ __forceinline__ void gradient(void* dx, const Slope& slope, u32 target) const {
        some<0, RAISED>([&](u32 i, u32 at) { slope.of([&](u32 j) { return raised[i][j]; }, target - 8 * at).store(dx, first + at); });
        each<RAISED>([&](u32 at, const Eight& x8) {
            slope.of([&](u32 j) { return exp_below(x8[j] - slope.most); }, target - 8 * at).store(dx, first + at);
        });
    }
};

// losses = -ln(softmax(x)[target]), dx = (softmax(x) - [target]) · scale. A target of all ones: the row counts nothing.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    cross_entropy(const void* x, const u32* targets, float* losses, void* dx, u32 columns, float scale) {
    const u32 target = targets[blockIdx.x];
    const bool counts = target != 0xffffffffu, is_class = counts && target < columns;
    if (!is_class) {
        no_gradient(dx, u64(blockIdx.x) * (columns / 8), columns / 8, counts);
        if (threadIdx.x == 0) losses[blockIdx.x] = counts ? __uint_as_float(0x7fc00000u) : 0.f;
        return;
    }
    Row row;
    const Num most = row.load(x, columns);
    // Read before the threads meet the last time: dx may be x.
    const Num own = row.of(target), sum = row.sum(most);
    row.gradient(dx, Slope(most, inverse(sum), scale, own), target);
    // The difference first: `most + ln(sum)` would round away the loss of a row that is sure of its target.
    if (threadIdx.x == 0) losses[blockIdx.x] = (ln_of(sum) - (own - most)).v;
}

// What a rank with the classes from `first` on has of a row: its largest logit; the sum of e^(x - that); the target's logit, if it is
// among them.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    cross_entropy_part(const void* x, const u32* targets, float4* parts, u32 columns, u32 first) {
    const u32 target = targets[blockIdx.x] - first;
    Row row;
    const Num most = row.load(x, columns);
    // Classes that are all masked count nothing, and minus infinity less itself would be NaN.
    const Num sum = row.sum(most.v == __uint_as_float(0xff800000u) ? Num(0.f) : most);
    if (threadIdx.x != 0) return;
    const Num own = target < columns ? row.of(target) : Num(0.f);
    parts[blockIdx.x] = make_float4(most.v, sum.v, own.v, 0.f);
}

// The loss of a row of all ranks' classes, and the gradient of this rank's logits, of what every rank has of the row.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    cross_entropy_of_parts(const void* x, const u32* targets, const float4* parts, float* losses, void* dx, u32 columns, u32 first,
                           u32 ranks, u32 classes, float scale) {
    const u32 target = targets[blockIdx.x], eights = columns / 8;
    const u64 row = u64(blockIdx.x) * eights;
    const bool counts = target != 0xffffffffu, is_class = counts && target < classes;
    if (!is_class) {
        no_gradient(dx, row, eights, counts);
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
    const Num x_own = target - first < columns ? from_bf16(static_cast<const u16*>(x)[8 * row + target - first]) : Num(0.f);
    const Slope slope(most, inverse(sum), scale, x_own);
    // dx may be x.
    __syncthreads();
    for (u32 at = threadIdx.x; at < eights; at += THREADS) {
        Eight x8;
        x8.load(x, row + at);
        slope.of([&](u32 j) { return exp_below(x8[j] - most); }, target - first - 8 * at).store(dx, row + at);
    }
    if (threadIdx.x == 0) losses[blockIdx.x] = (ln_of(sum) - (own - most)).v;
}
