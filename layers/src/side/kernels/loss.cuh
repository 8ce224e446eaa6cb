// Cross-entropy of rows of logits, with its gradient. The text before says SHARED: bytes of shared memory that a launch gives.

#include "numbers.cuh"
#include "ahead.cuh"

// e to the power of a logit less the largest one.
__device__ __forceinline__ Num raised(Num x, Num most) { return raised(x - most); }

// A row with NaN or infinity has no sum.
__device__ __forceinline__ Num none_of(Num most) { return most - most; }

// Eights that a thread keeps of a row: 32,768 columns. What is behind them is read again.
constexpr u32 KEPT = 16;
// Those of them whose exponentials stay in registers; those of the others stay in shared memory.
constexpr u32 RAISED = 10;
static_assert(SHARED == (KEPT + 2 * (KEPT - RAISED)) * THREADS * sizeof(uint4), "a row, and what registers have no place for");

// What a row has where it has no column: nothing is smaller, and e to its power is 0.
#define NOTHING 0xff80ff80u

// f(which of this thread's, which of the row's) for the kept eights from FROM to TO of a row of `eights`, also where one thread has some
// and another none.
template <u32 FROM, u32 TO, class F>
__device__ __forceinline__ void kept(u32 eights, F f) {
#pragma unroll
    for (u32 i = FROM; i < TO; ++i)
        if (i * THREADS < eights) f(i, i * THREADS + threadIdx.x);
}

// f(which of the row's) for those behind.
template <class F>
__device__ __forceinline__ void behind(u32 eights, F f) {
    for (u32 at = KEPT * THREADS + threadIdx.x; at < eights; at += THREADS) f(at);
}

__device__ __forceinline__ Eight eight_of(const uint4* own, u32 i) {
    Eight x8;
    x8.load(own, i * THREADS);
    return x8;
}

// The larger ones of two pairs.
__device__ __forceinline__ void enlarge(u32& pair, const Eight& x8) {
#pragma unroll
    for (u32 word = 0; word < 4; ++word) asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(pair), "r"(x8.words[word]));
}

// The largest logit of a row, of each thread's pair; never -0.
__device__ __forceinline__ Num largest(u32 pair) {
    return largest_of_cta(larger(from_bf16(pair & 0xffffu), from_bf16(pair >> 16))) + Num(0.f);
}

// What makes a row's gradient: e^(x - most) · scaled of each column, but `own` of the target.
struct Slope {
    Num scaled, own;
    // x: the target's logit.
    __device__ __forceinline__ Slope(Num most, Num by, Num scale, Num x)
        : scaled(by * scale), own((add_normal(raised(x, most), 0.f) * by - Num(1.f)) * scale) {}
    // Of eight columns, where e(j) is the exponential of column j.
    template <class E>
    __device__ __forceinline__ Eight of(E e) const {
        return eight([&](u32 j) { return times_normal(e(j), scaled); });
    }
    // Behind what the same thread has stored of the row: the target's, if it is one of this thread's.
    __device__ __forceinline__ void store(void* dx, u64 first, u32 eights, u32 target) const {
        if (target / 8 < eights && target / 8 % THREADS == threadIdx.x)
            static_cast<u16*>(dx)[8 * first + target] = static_cast<u16>(to_bf16(own));
    }
};

// Zeros or NaN of a row that counts nothing, or whose target is no class.
__device__ __forceinline__ void no_gradient(void* dx, u64 first, u32 eights, bool counts) {
    Eight dx8;
    dx8.fill([&](u32) { return counts ? Num(__uint_as_float(0x7fc00000u)) : Num(0.f); });
    for (u32 at = threadIdx.x; at < eights; at += THREADS) dx8.store(dx, first + at);
}

__device__ __forceinline__ Num logit(const void* x, u64 first, u32 column) {
    return from_bf16(static_cast<const u16*>(x)[8 * first + column]);
}

// losses = -ln(softmax(x)[target]), dx = (softmax(x) - [target]) · scale. A target of all ones: the row counts nothing. A CTA has every
// row that is gridDim.x behind its last one, and copies the next one while it works on one.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    cross_entropy(const void* x, const u32* targets, float* losses, void* dx, u32 rows, u32 columns, float scale) {
    extern __shared__ uint4 ahead[];
    __shared__ __align__(8) u64 barrier;
    // What a thread has of a row, and the exponentials of it that only it reads.
    const uint4* const own_ahead = ahead + threadIdx.x;
    float4* const own_raised = reinterpret_cast<float4*>(ahead + KEPT * THREADS) + threadIdx.x;
    const u32 eights = columns / 8, here = min(eights, KEPT * THREADS);
    const auto is_class = [&](u32 target) { return target != 0xffffffffu && target < columns; };
    const auto own_of = [&](u32 row, u32 target) { return is_class(target) ? logit(x, u64(row) * eights, target) : Num(0.f); };
    const Copied copied(&barrier);
    u32 next = targets[blockIdx.x];
    Num next_own = own_of(blockIdx.x, next);
    for (u32 at = here + threadIdx.x; at < KEPT * THREADS; at += THREADS) ahead[at] = make_uint4(NOTHING, NOTHING, NOTHING, NOTHING);
    copied.begin();
    if (threadIdx.x == 0) copied.copy(ahead, static_cast<const uint4*>(x) + u64(blockIdx.x) * eights, here);
    for (u32 row = blockIdx.x, turn = 0; row < rows; row += gridDim.x, turn ^= 1) {
        const u64 first = u64(row) * eights;
        const u32 target = next, after = row + gridDim.x;
        const Num own = next_own;
        if (after < rows) next = targets[after];
        u32 pair = NOTHING;
        copied.wait(turn);
        kept<0, KEPT>(eights, [&](u32 i, u32) { enlarge(pair, eight_of(own_ahead, i)); });
        behind(eights, [&](u32 at) {
            Eight x8;
            x8.load(x, first + at);
            enlarge(pair, x8);
        });
        // A target's logit is read before the threads meet: dx may be x.
        const Num most = largest(pair);
        if (after < rows) next_own = own_of(after, next);
        Num sum = 0.f;
        Num e[RAISED][8];
        const auto raise = [&](const Eight& x8, Num e[8]) {
#pragma unroll
            for (u32 j = 0; j < 8; ++j) {
                e[j] = raised(x8[j], most);
                sum = add_normal(sum, e[j]);
            }
        };
        kept<0, RAISED>(eights, [&](u32 i, u32) { raise(eight_of(own_ahead, i), e[i]); });
        kept<RAISED, KEPT>(eights, [&](u32 i, u32) {
            Num e[8];
            raise(eight_of(own_ahead, i), e);
            own_raised[(i - RAISED) * 2 * THREADS] = make_float4(e[0].v, e[1].v, e[2].v, e[3].v);
            own_raised[((i - RAISED) * 2 + 1) * THREADS] = make_float4(e[4].v, e[5].v, e[6].v, e[7].v);
        });
        behind(eights, [&](u32 at) {
            Eight x8;
            Num e[8];
            x8.load(x, first + at);
            raise(x8, e);
        });
        // The threads meet there: the row's place is free.
        sum = sum_of_cta<0>(sum) + none_of(most);
        if (threadIdx.x == 0 && after < rows) copied.copy(ahead, static_cast<const uint4*>(x) + u64(after) * eights, here);
        if (!is_class(target)) {
            const bool counts = target != 0xffffffffu;
            no_gradient(dx, first, eights, counts);
            if (threadIdx.x == 0) losses[row] = counts ? __uint_as_float(0x7fc00000u) : 0.f;
            continue;
        }
        const Slope slope(most, inverse(sum), scale, own);
        kept<0, RAISED>(eights, [&](u32 i, u32 at) {
            if (at < eights) slope.of([&](u32 j) { return e[i][j]; }).store(dx, first + at);
        });
        kept<RAISED, KEPT>(eights, [&](u32 i, u32 at) {
            const float4 low = own_raised[(i - RAISED) * 2 * THREADS], high = own_raised[((i - RAISED) * 2 + 1) * THREADS];
            const float e[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            if (at < eights) slope.of([&](u32 j) { return Num(e[j]); }).store(dx, first + at);
        });
        behind(eights, [&](u32 at) {
            Eight x8;
            x8.load(x, first + at);
            slope.of([&](u32 j) { return raised(x8[j], most); }).store(dx, first + at);
        });
        slope.store(dx, first, eights, target);
        // The difference first: `most + ln(sum)` would round away the loss of a row that is sure of its target.
        if (threadIdx.x == 0) losses[row] = (ln_of(sum) - (own - most)).v;
    }
}

// What a rank with the classes from `first` on has of a row: its largest logit; the sum of e^(x - that); the target's logit, if it is
// among them. A CTA for each row.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    cross_entropy_part(const void* x, const u32* targets, float4* parts, u32 columns, u32 first) {
    const u32 target = targets[blockIdx.x] - first, eights = columns / 8;
    const u64 row = u64(blockIdx.x) * eights;
    Eight held[KEPT];
    u32 pair = NOTHING;
    kept<0, KEPT>(eights, [&](u32 i, u32 at) {
        held[i].fill_words(NOTHING);
        if (at < eights) held[i].load(x, row + at);
    });
    kept<0, KEPT>(eights, [&](u32 i, u32) { enlarge(pair, held[i]); });
    behind(eights, [&](u32 at) {
        Eight x8;
        x8.load(x, row + at);
        enlarge(pair, x8);
    });
    const Num most = largest(pair);
    // Classes that are all masked count nothing, and minus infinity less itself would be NaN.
    const Num less = most.v == __uint_as_float(0xff800000u) ? Num(0.f) : most;
    Num sum = 0.f;
    const auto add = [&](const Eight& x8) {
#pragma unroll
        for (u32 j = 0; j < 8; ++j) sum = add_normal(sum, raised(x8[j], less));
    };
    kept<0, KEPT>(eights, [&](u32 i, u32) { add(held[i]); });
    behind(eights, [&](u32 at) {
        Eight x8;
        x8.load(x, row + at);
        add(x8);
    });
    sum = sum_of_cta<0>(sum) + none_of(less);
    if (threadIdx.x != 0) return;
    const Num own = target < columns ? logit(x, row, target) : Num(0.f);
    parts[blockIdx.x] = make_float4(most.v, sum.v, own.v, 0.f);
}

// The loss of a row of all ranks' classes, and the gradient of this rank's logits, of what every rank has of the row. A CTA for each row.
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
    const Num x_own = target - first < columns ? logit(x, row, target - first) : Num(0.f);
    const Slope slope(most, inverse(sum), scale, x_own);
    // dx may be x.
    __syncthreads();
#pragma unroll 4
    for (u32 at = threadIdx.x; at < eights; at += THREADS) {
        Eight x8;
        x8.load(x, row + at);
        slope.of([&](u32 j) { return raised(x8[j], most); }).store(dx, row + at);
    }
    slope.store(dx, row, eights, target - first);
    if (threadIdx.x == 0) losses[blockIdx.x] = (ln_of(sum) - (own - most)).v;
}
