// Rotary positions, in place: of each head's numbers i and i + half, the pair is turned by an angle of its row's position.

#include "numbers.cuh"

// `heads` heads of 2 · `half` eights stand at the start of each row, which has `pitch` eights. Rows are positions by batch. `back`: the
// other way around, for gradients. A thread has 8 pairs.
extern "C" __global__ void __launch_bounds__(THREADS) rope(void* x, const float* cosines, const float* sines, u64 items, u32 heads, u32 half,
                                                           u32 pitch, u32 batch, u32 back) {
    const u64 at = u64(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= items) return;
    const u32 eight = at % half, head = at / half % heads;
    const u64 row = at / half / heads, position = row / batch;
    const u64 place = row * pitch + u64(head) * 2 * half + eight;
    Eight low, high, to_low, to_high;
    low.load(x, place), high.load(x, place + half);
#pragma unroll
    for (u32 j = 0; j < 8; ++j) {
        const u64 angle = position * half * 8 + eight * 8 + j;
        const Num c = cosines[angle], s = back ? -Num(sines[angle]) : Num(sines[angle]);
        to_low.set(j, low[j] * c - high[j] * s);
        to_high.set(j, high[j] * c + low[j] * s);
    }
    to_low.store(x, place);
    to_high.store(x, place + half);
}
