// Rotary positions, in place: of each head's numbers i and i + half, the pair is turned by an angle of its row's position.

#include "numbers.cuh"

struct Angles {
    float4 low, high;
    __device__ __forceinline__ void load(const float* table, u64 eight) {
        low = reinterpret_cast<const float4*>(table)[2 * eight], high = reinterpret_cast<const float4*>(table)[2 * eight + 1];
    }
    __device__ __forceinline__ Num operator[](u32 j) const {
        const float all[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        return all[j];
    }
};

// `heads` heads of 2 · `half` eights stand at the start of each row, which has `pitch` eights. Rows are positions by batch. `back`: the
// other way around, for gradients. A thread has 8 pairs.
extern "C" __global__ void __launch_bounds__(THREADS) rope(void* x, const float* cosines, const float* sines, u32 items, u32 heads, u32 half,
                                                           u32 pitch, u32 batch, u32 back) {
    const u32 at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= items) return;
    const u32 all = at / half, eight = at - all * half, row = all / heads, head = all - row * heads;
    const u64 place = u64(row) * pitch + u64(head) * 2 * half + eight;
    Eight low, high, to_low, to_high;
    low.load(x, place), high.load(x, place + half);
    Angles cosine, sine;
    const u64 angles = u64(row / batch) * half + eight;
    cosine.load(cosines, angles), sine.load(sines, angles);
    const auto s = [&](u32 j) { return back ? -sine[j] : sine[j]; };
    to_low.fill([&](u32 j) { return low[j] * cosine[j] - high[j] * s(j); });
    to_high.fill([&](u32 j) { return high[j] * cosine[j] + low[j] * s(j); });
    to_low.store(x, place);
    to_high.store(x, place + half);
}
