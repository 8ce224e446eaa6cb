// Cross-entropy of rows of logits, one CTA for each, with its gradient.

#include "numbers.cuh"

// losses = -ln(softmax(x)[target]), dx = (softmax(x) - [target]) · scale. A target of all ones: the row counts nothing.
extern "C" __global__ void __launch_bounds__(THREADS)
    cross_entropy(const void* x, const u32* targets, float* losses, void* dx, u32 columns, float scale) {
    const u32 eights = columns / 8, target = targets[blockIdx.x];
    const u64 first = u64(blockIdx.x) * eights;
    const bool counts = target != 0xffffffffu;
    Num most = __uint_as_float(0xff800000u);
    for (u32 at = threadIdx.x; at < eights; at += THREADS) {
        Eight x8;
        x8.load(x, first + at);
#pragma unroll
        for (u32 j = 0; j < 8; ++j) most = larger(most, x8[j]);
    }
    most = largest_of_cta(most);
    Num sum = 0.f;
    for (u32 at = threadIdx.x; at < eights; at += THREADS) {
        Eight x8;
        x8.load(x, first + at);
#pragma unroll
        for (u32 j = 0; j < 8; ++j) sum = sum + exp_of(x8[j] - most);
    }
    sum = sum_of_cta(sum);
    const Num nan = __uint_as_float(0x7fc00000u);
    for (u32 at = threadIdx.x; at < eights; at += THREADS) {
        Eight x8, dx8;
        x8.load(x, first + at);
#pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            const Num part = exp_of(x8[j] - most) / sum;
            const Num off = 8 * at + j == target ? part - Num(1.f) : part;
            dx8.set(j, !counts ? Num(0.f) : target < columns ? off * Num(scale) : nan);
        }
        dx8.store(dx, first + at);
    }
    if (threadIdx.x != 0) return;
    // A class that there is not has no loss that means anything.
    Num loss = counts ? nan : Num(0.f);
    if (target < columns) {
        Eight x8;
        x8.load(x, first + target / 8);
        // The difference first: `most + ln(sum)` would round away the loss of a row that is sure of its target.
        loss = ln_of(sum) - (x8[target % 8] - most);
    }
    losses[blockIdx.x] = loss.v;
}

// What a rank with the classes from `first` on has of a row: its largest logit; the sum of e^(x - that); the target's logit, if it is
// among them.
extern "C" __global__ void __launch_bounds__(THREADS)
    cross_entropy_part(const void* x, const u32* targets, float4* parts, u32 columns, u32 first) {
    const u32 eights = columns / 8, target = targets[blockIdx.x] - first;
    const u64 row = u64(blockIdx.x) * eights;
    const Num nothing = __uint_as_float(0xff800000u);
    Num most = nothing;
    for (u32 at = threadIdx.x; at < eights; at += THREADS) {
        Eight x8;
        x8.load(x, row + at);
#pragma unroll
        for (u32 j = 0; j < 8; ++j) most = larger(most, x8[j]);
    }
    most = largest_of_cta(most);
    // Classes that are all masked count nothing, and minus infinity less itself would be NaN.
    const Num less = most.v == nothing.v ? Num(0.f) : most;
    Num sum = 0.f;
    for (u32 at = threadIdx.x; at < eights; at += THREADS) {
        Eight x8;
        x8.load(x, row + at);
#pragma unroll
        for (u32 j = 0; j < 8; ++j) sum = sum + exp_of(x8[j] - less);
    }
    sum = sum_of_cta(sum);
    if (threadIdx.x != 0) return;
    Num own = 0.f;
    if (target < columns) {
        Eight x8;
        x8.load(x, row + target / 8);
        own = x8[target % 8];
    }
    parts[blockIdx.x] = make_float4(most.v, sum.v, own.v, 0.f);
}

// The loss of a row of all ranks' classes, and the gradient of this rank's logits, of what every rank has of the row.
extern "C" __global__ void __launch_bounds__(THREADS)
    cross_entropy_of_parts(const void* x, const u32* targets, const float4* parts, float* losses, void* dx, u32 columns, u32 first,
                           u32 ranks, u32 classes, float scale) {
    const u32 eights = columns / 8, target = targets[blockIdx.x];
    const u64 row = u64(blockIdx.x) * eights;
    const bool counts = target != 0xffffffffu;
    Num most = __uint_as_float(0xff800000u);
    for (u32 rank = 0; rank < ranks; ++rank) most = larger(most, Num(parts[u64(rank) * gridDim.x + blockIdx.x].x));
    Num sum = 0.f, own = 0.f;
    for (u32 rank = 0; rank < ranks; ++rank) {
        const float4 part = parts[u64(rank) * gridDim.x + blockIdx.x];
        sum = sum + Num(part.y) * exp_of(Num(part.x) - most);
        own = own + Num(part.z);
    }
    const Num nan = __uint_as_float(0x7fc00000u);
    for (u32 at = threadIdx.x; at < eights; at += THREADS) {
        Eight x8, dx8;
        x8.load(x, row + at);
#pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            const Num part = exp_of(x8[j] - most) / sum;
            const Num off = first + 8 * at + j == target ? part - Num(1.f) : part;
            dx8.set(j, !counts ? Num(0.f) : target < classes ? off * Num(scale) : nan);
        }
        dx8.store(dx, row + at);
    }
    if (threadIdx.x != 0) return;
    const Num loss = !counts ? Num(0.f) : target < classes ? ln_of(sum) - (own - most) : nan;
    losses[blockIdx.x] = loss.v;
}
