// What is computed element by element: activations and their gradients, sums, dropout. 8 elements for each thread.

#include "philox.cuh"
#include "activations.cuh"

#define EACH(eights)                                   \
    const u32 at = blockIdx.x * THREADS + threadIdx.x; \
    if (at >= (eights)) return

extern "C" __global__ void __launch_bounds__(THREADS) gelu_forward(const void* x, void* y, u32 eights) {
    EACH(eights);
    Eight x8, y8;
    x8.load(x, at);
    y8.fill([&](u32 j) { return gelu(x8[j]); });
    y8.store(y, at);
}

extern "C" __global__ void __launch_bounds__(THREADS) gelu_backward(const void* x, const void* dy, void* dx, u32 eights) {
    EACH(eights);
    Eight x8, dy8, dx8;
    x8.load(x, at), dy8.load(dy, at);
    dx8.fill([&](u32 j) { return dy8[j] * gelu_slope(x8[j]); });
    dx8.store(dx, at);
}

// A row of `x` is that of the gate, `across` eights, then that of what it gates.
extern "C" __global__ void __launch_bounds__(THREADS) swiglu_forward(const void* x, void* y, u32 eights, u32 across) {
    EACH(eights);
    const u64 gate_at = u64(at) + u64(at / across) * across;
    Eight gate, up, y8;
    gate.load(x, gate_at), up.load(x, gate_at + across);
    y8.fill([&](u32 j) { return swiglu(gate[j], up[j]); });
    y8.store(y, at);
}

extern "C" __global__ void __launch_bounds__(THREADS) swiglu_backward(const void* x, const void* dy, void* dx, u32 eights, u32 across) {
    EACH(eights);
    const u64 gate_at = u64(at) + u64(at / across) * across;
    Eight gate, up, dy8, of_gate, of_up;
    gate.load(x, gate_at), up.load(x, gate_at + across), dy8.load(dy, at);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        Num of_gates[2], of_ups[2];
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 j = 2 * i + half;
            const Num x = at_least(gate[j], -OF_SILU), s = silu_share(x), by = x * s;
            of_gates[half] = dy8[j] * up[j] * silu_slope(by, s);
            of_ups[half] = dy8[j] * by;
        }
        of_gate.words[i] = to_bf16s(of_gates[0], of_gates[1]);
        of_up.words[i] = to_bf16s(of_ups[0], of_ups[1]);
    }
    of_gate.store(dx, gate_at);
    of_up.store(dx, gate_at + across);
}

// Where elements of a tensor over all ranks are kept: those whose number is below `below`. `first`: the first eight of this rank's.
struct Mask {
    u64 offset, first;
    u32 below;
    float scale;
    u32 keys[PHILOX_KEYS];
};

// Of 8 elements, those that are kept, scaled; zeros of the others.
__device__ __forceinline__ void dropped(const Mask& mask, u64 at, const Eight& x8, Num out[8]) {
    // Even, so that both halves have the same upper word.
    const u64 group = 2 * (mask.first + at);
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const uint4 counter = make_uint4(u32(mask.offset), u32(mask.offset >> 32), u32(group) + half, u32(group >> 32));
        const uint4 drawn = philox(counter, mask.keys);
        const u32 numbers[4] = {drawn.x, drawn.y, drawn.z, drawn.w};
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            const u32 i = 4 * half + j;
            const Num scaled = x8[i] * Num(mask.scale);
            // Chosen, and not computed or not: a compiler that decides loads the scale anew for each.
            asm("{\n\t.reg .pred p;\n\tsetp.lt.u32 p, %1, %2;\n\tselp.f32 %0, %3, 0f00000000, p;\n\t}"
                : "=f"(out[i].v)
                : "r"(numbers[j]), "r"(mask.below), "f"(scaled.v));
        }
    }
}

// y = residual + x.
extern "C" __global__ void __launch_bounds__(THREADS) add(const void* x, const void* residual, void* y, u32 eights) {
    EACH(eights);
    Eight x8, more, y8;
    x8.load(x, at), more.load(residual, at);
    y8.fill([&](u32 j) { return more[j] + x8[j]; });
    y8.store(y, at);
}

// y = residual + dropout(x).
extern "C" __global__ void __launch_bounds__(THREADS) dropout_add(const void* x, const void* residual, void* y, u32 eights, Mask mask) {
    EACH(eights);
    Eight x8, more, y8;
    Num kept[8];
    x8.load(x, at), more.load(residual, at);
    dropped(mask, at, x8, kept);
    y8.fill([&](u32 j) { return more[j] + kept[j]; });
    y8.store(y, at);
}

// dx = the gradient of dropout(x), with the mask drawn again.
extern "C" __global__ void __launch_bounds__(THREADS) dropout(const void* dy, void* dx, u32 eights, Mask mask) {
    EACH(eights);
    Eight dy8, dx8;
    Num kept[8];
    dy8.load(dy, at);
    dropped(mask, at, dy8, kept);
    dx8.fill([&](u32 j) { return kept[j]; });
    dx8.store(dx, at);
}
