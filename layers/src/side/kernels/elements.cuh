// What is computed element by element: activations and their gradients, sums, dropout. 8 elements for each thread.

#include "philox.cuh"

// x · σ(2u), u = √(2/π) · (x + 0.044715 · x³): GELU with a tanh, which is 2σ(2u) - 1.
__device__ __forceinline__ Num twice_u(Num x) { return Num(1.59576912f) * x + Num(0.0713548163f) * x * x * x; }

__device__ __forceinline__ Num gelu(Num x) { return x * logistic(twice_u(x)); }

__device__ __forceinline__ Num gelu_slope(Num x) {
    const Num s = logistic(twice_u(x));
    return s + x * s * (Num(1.f) - s) * (Num(1.59576912f) + Num(0.214064449f) * x * x);
}

__device__ __forceinline__ Num silu_slope(Num x, Num s) { return s + x * s * (Num(1.f) - s); }

#define EACH(eights)                                               \
    const u64 at = u64(blockIdx.x) * THREADS + threadIdx.x;        \
    if (at >= (eights)) return

extern "C" __global__ void __launch_bounds__(THREADS) gelu_forward(const void* x, void* y, u64 eights) {
    EACH(eights);
    Eight x8, y8;
    x8.load(x, at);
#pragma unroll
    for (u32 j = 0; j < 8; ++j) y8.set(j, gelu(x8[j]));
    y8.store(y, at);
}

extern "C" __global__ void __launch_bounds__(THREADS) gelu_backward(const void* x, const void* dy, void* dx, u64 eights) {
    EACH(eights);
    Eight x8, dy8, dx8;
    x8.load(x, at), dy8.load(dy, at);
#pragma unroll
    for (u32 j = 0; j < 8; ++j) dx8.set(j, dy8[j] * gelu_slope(x8[j]));
    dx8.store(dx, at);
}

// A row of `x` is that of the gate, `across` eights, then that of what it gates.
extern "C" __global__ void __launch_bounds__(THREADS) swiglu_forward(const void* x, void* y, u64 eights, u32 across) {
    EACH(eights);
    const u64 gate_at = at / across * 2 * across + at % across;
    Eight gate, up, y8;
    gate.load(x, gate_at), up.load(x, gate_at + across);
#pragma unroll
    for (u32 j = 0; j < 8; ++j) y8.set(j, gate[j] * logistic(gate[j]) * up[j]);
    y8.store(y, at);
}

extern "C" __global__ void __launch_bounds__(THREADS) swiglu_backward(const void* x, const void* dy, void* dx, u64 eights, u32 across) {
    EACH(eights);
    const u64 gate_at = at / across * 2 * across + at % across;
    Eight gate, up, dy8, of_gate, of_up;
    gate.load(x, gate_at), up.load(x, gate_at + across), dy8.load(dy, at);
#pragma unroll
    for (u32 j = 0; j < 8; ++j) {
        const Num s = logistic(gate[j]);
        of_gate.set(j, dy8[j] * up[j] * silu_slope(gate[j], s));
        of_up.set(j, dy8[j] * (gate[j] * s));
    }
    of_gate.store(dx, gate_at);
    of_up.store(dx, gate_at + across);
}

// Where elements of a tensor over all ranks are kept: those whose number is below `below`. `first`: the first eight of this rank's.
struct Mask {
    u64 seed, offset, first;
    u32 below;
    float scale;
};

// Of 8 elements, those that are kept, scaled; zeros of the others.
__device__ __forceinline__ void dropped(const Mask& mask, u64 at, const Eight& x8, Num out[8]) {
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const u64 group = 2 * (mask.first + at) + half;
        const uint4 counter = make_uint4(u32(mask.offset), u32(mask.offset >> 32), u32(group), u32(group >> 32));
        const uint4 drawn = philox(counter, make_uint2(u32(mask.seed), u32(mask.seed >> 32)));
        const u32 numbers[4] = {drawn.x, drawn.y, drawn.z, drawn.w};
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            const u32 i = 4 * half + j;
            out[i] = numbers[j] < mask.below ? x8[i] * Num(mask.scale) : Num(0.f);
        }
    }
}

// y = residual + x.
extern "C" __global__ void __launch_bounds__(THREADS) add(const void* x, const void* residual, void* y, u64 eights) {
    EACH(eights);
    Eight x8, more, y8;
    x8.load(x, at), more.load(residual, at);
#pragma unroll
    for (u32 j = 0; j < 8; ++j) y8.set(j, more[j] + x8[j]);
    y8.store(y, at);
}

// y = residual + dropout(x).
extern "C" __global__ void __launch_bounds__(THREADS) dropout_add(const void* x, const void* residual, void* y, u64 eights, Mask mask) {
    EACH(eights);
    Eight x8, more, y8;
    Num kept[8];
    x8.load(x, at), more.load(residual, at);
    dropped(mask, at, x8, kept);
#pragma unroll
    for (u32 j = 0; j < 8; ++j) y8.set(j, more[j] + kept[j]);
    y8.store(y, at);
}

// dx = the gradient of dropout(x), with the mask drawn again.
extern "C" __global__ void __launch_bounds__(THREADS) dropout(const void* dy, void* dx, u64 eights, Mask mask) {
    EACH(eights);
    Eight dy8, dx8;
    Num kept[8];
    dy8.load(dy, at);
    dropped(mask, at, dy8, kept);
#pragma unroll
    for (u32 j = 0; j < 8; ++j) dx8.set(j, kept[j]);
    dx8.store(dx, at);
}
