// Rows of an embedding of which a rank has some, and the gradient of those.

#include "numbers.cuh"

// A row for each id: that of the weights, zeros where another rank has it, and NaN where nobody has.
extern "C" __global__ void __launch_bounds__(THREADS) embedding(const u32* ids, const void* weights, void* y, u32 eights, u32 across,
                                                                u32 first, u32 own, u32 vocabulary) {
    const u32 at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= eights) return;
    const u32 line = at / across, id = ids[line], row = id - first;
    Eight y8;
    if (row < own) {
        y8.load(weights, u64(row) * across + (at - line * across));
    } else {
        const Num nothing = id < vocabulary ? Num(0.f) : Num(__uint_as_float(0x7fc00000u));
        y8.fill([&](u32) { return nothing; });
    }
    y8.store(y, at);
}

// Adds the rows of dy with one id, in their order, to that id's row of the gradient. A CTA for each id that the rank has.
extern "C" __global__ void __launch_bounds__(THREADS)
    embedding_backward(const u32* ids, const void* dy, float* gradient, u32 rows, u32 across, u32 first) {
    __shared__ u32 some[THREADS];
    const u32 own = first + blockIdx.x;
    float4* sums = reinterpret_cast<float4*>(gradient) + u64(blockIdx.x) * 2 * across;
    for (u32 base = 0; base < rows; base += THREADS) {
        const u32 count = rows - base < THREADS ? rows - base : THREADS;
        const bool is_row = threadIdx.x < count;
        const u32 id = is_row ? ids[base + threadIdx.x] : 0;
        some[threadIdx.x] = id;
        if (!__syncthreads_or(is_row && id == own)) continue;
        for (u32 row = 0; row < count; ++row) {
            if (some[row] != own) continue;
            for (u32 at = threadIdx.x; at < across; at += THREADS) {
                Eight dy8;
                dy8.load(dy, u64(base + row) * across + at);
                float4 low = sums[2 * at], high = sums[2 * at + 1];
                low.x = (Num(low.x) + dy8[0]).v, low.y = (Num(low.y) + dy8[1]).v;
                low.z = (Num(low.z) + dy8[2]).v, low.w = (Num(low.w) + dy8[3]).v;
                high.x = (Num(high.x) + dy8[4]).v, high.y = (Num(high.y) + dy8[5]).v;
                high.z = (Num(high.z) + dy8[6]).v, high.w = (Num(high.w) + dy8[7]).v;
                sums[2 * at] = low, sums[2 * at + 1] = high;
            }
        }
        __syncthreads();
    }
}
