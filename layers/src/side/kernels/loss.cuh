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
        loss = most + ln_of(sum) - x8[target % 8];
    }
    losses[blockIdx.x] = loss.v;
}
