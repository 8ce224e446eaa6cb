// Cross-entropy of rows of logits, one CTA for each, with its gradient.

#include "numbers.cuh"

// e^(x - most) · by · scale of eight columns, and (e^(x - most) · by - 1) · scale of the one that is the target.
__device__ __forceinline__ Eight gradient_of(const Eight& x8, Num most, Num by, u32 target, float scale) {
    Eight dx8;
    const Num scaled = by * Num(scale);
    dx8.fill([&](u32 j) { return exp_below(x8[j] - most) * scaled; });
    if (target < 8)
        dx8.fill([&](u32 j) { return j == target ? (exp_below(x8[j] - most) * by - Num(1.f)) * Num(scale) : dx8[j]; });
    return dx8;
}

// Zeros or NaN of a row that counts nothing, or whose target is no class.
__device__ __forceinline__ void no_gradient(void* dx, u64 first, u32 eights, bool counts) {
    Eight dx8;
    dx8.fill([&](u32) { return counts ? Num(__uint_as_float(0x7fc00000u)) : Num(0.f); });
    for (u32 at = threadIdx.x; at < eights; at += THREADS) dx8.store(dx, first + at);
}

// Eights that a thread keeps of a row: 32,768 columns. What is behind them is read again.
constexpr u32 KEPT = 16;

// A row of logits.
struct Row {
    Eight held[KEPT];
    const void* x;
    u64 first;
    u32 eights;

    // f(eight of the row, its elements) for each eight of this thread.
    template <class F>
    __device__ __forceinline__ void each(F f) const {
#pragma unroll
        for (u32 i = 0; i < KEPT; ++i)
            if (i * THREADS + threadIdx.x < eights) f(i * THREADS + threadIdx.x, held[i]);
        for (u32 at = KEPT * THREADS + threadIdx.x; at < eights; at += THREADS) {
            Eight x8;
            x8.load(x, first + at);
            f(at, x8);
        }
    }

    // Reads it. Gives the largest logit; never -0.
    __device__ __forceinline__ Num load(const void* from, u32 columns) {
        x = from, eights = columns / 8, first = u64(blockIdx.x) * eights;
#pragma unroll
        for (u32 i = 0; i < KEPT; ++i)
            if (i * THREADS + threadIdx.x < eights) held[i].load(x, first + i * THREADS + threadIdx.x);
        u32 pair = 0xff80ff80u;
        each([&](u32, const Eight& x8) {
#pragma unroll
            for (u32 word = 0; word < 4; ++word) asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(pair), "r"(x8.words[word]));
        });
        return largest_of_cta(larger(from_bf16(pair & 0xffffu), from_bf16(pair >> 16))) + Num(0.f);
    }

    // The sum of e^(x - less).
    __device__ __forceinline__ Num sum(Num less) const {
        Num sum = 0.f;
        each([&](u32, const Eight& x8) {
#pragma unroll
            for (u32 j = 0; j < 8; ++j) sum = sum + exp_below(x8[j] - less);
        });
        return sum_of_cta(sum);
    }

    // The logit of a column that there is.
    __device__ __forceinline__ Num of(u32 column) const { return from_bf16(static_cast<const u16*>(x)[8 * first + column]); }

    // dx = softmax · scale, but for the target (a column, or none that there is).
    __device__ __forceinline__ void gradient(void* dx, Num most, Num by, u32 target, float scale) const {
        each([&](u32 at, const Eight& x8) { gradient_of(x8, most, by, target - 8 * at, scale).store(dx, first + at); });
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
    row.gradient(dx, most, inverse(sum), target, scale);
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
    const Num by = inverse(sum);
    for (u32 at = threadIdx.x; at < eights; at += THREADS) {
        Eight x8;
        x8.load(x, row + at);
        gradient_of(x8, most, by, target - first - 8 * at, scale).store(dx, row + at);
    }
    if (threadIdx.x == 0) losses[blockIdx.x] = (ln_of(sum) - (own - most)).v;
}
