// Activations and their gradients as FP8 codes by one scale that is known, with the transposed copy: codes of a quantiser of what the
// kernels of elements.cuh give, which is rounded to bf16 first. A CTA has a tile of 128×128 results, a thread 8 rows of 8. The text before
// says what rule.cuh reads.

#include "numbers.cuh"
#include "activations.cuh"
#include "rule.cuh"

#define SIDE 128u

// What is written, and by which scale. `amax` becomes the largest of what it was and of the results; rows of the transposed copy have
// `pitch` codes: zeros behind those that there are.
struct Coded {
    const float* multiplier;
    const float* stored;
    u8* codes;
    u8* turned;
    float* scale;
    float* amax;
    u32 rows, columns, pitch;
};

// Where a tile is, in one of `halves` matrices side by side of `columns` each. Tiles of the same place in both come next to each other:
// they read the same.
struct Tile {
    u32 row, column, half;
    u32 band, group; // this thread's 8 rows and 8 columns

    __device__ __forceinline__ Tile(u32 columns, u32 halves) {
        const u32 across = (columns + SIDE - 1) / SIDE, at = blockIdx.x / halves;
        half = blockIdx.x % halves;
        row = at / across * SIDE, column = at % across * SIDE;
        band = threadIdx.x / 16, group = threadIdx.x % 16;
    }
};

// make(row, eight of the row, its results) for the 8 rows of this thread, then codes of all. `to.columns` are those of a half.
template <class F>
__device__ __forceinline__ void cast_tile(const Coded to, u32 halves, F make) {
    // 16 chunks of 8 codes for each column. Chunks change places by the column's group, so that threads of a warp meet in no bank.
    __shared__ __align__(16) uint2 on_side[SIDE * 16];
    const Tile tile(to.columns, halves);
    const u32 row = tile.row + tile.band * 8, column = tile.column + tile.group * 8;
    const u32 width = to.columns * halves, first = tile.half * to.columns;
    const float by = *to.multiplier;
    Eight y8[8];
    float own = 0.f;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
#pragma unroll
        for (u32 word = 0; word < 4; ++word) y8[i].words[word] = 0;
        if (row + i < to.rows && column < to.columns) make(tile.half, row + i, column / 8, y8[i]);
#pragma unroll
        for (u32 j = 0; j < 8; ++j) own = larger(own, fabsf(y8[i][j].v));
    }
    const auto pair = [&](Num low, Num high) { return codes_of(__fmul_rn(low.v, by), __fmul_rn(high.v, by)); };
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        if (row + i >= to.rows || column >= to.columns) continue;
        u32 pairs[4];
#pragma unroll
        for (u32 j = 0; j < 4; ++j) pairs[j] = pair(y8[i][2 * j], y8[i][2 * j + 1]);
        const u64 at = u64(row + i) * width + first + column;
        reinterpret_cast<uint2*>(to.codes)[at / 8] = make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
    }
    // Zero times NaN or infinity is no zero: what is behind the rows has no code of a scale.
    const u32 left = row < to.rows ? min(to.rows - row, 8u) : 0;
    const u64 mask = left == 8 ? ~0ull : (1ull << 8 * left) - 1;
#pragma unroll
    for (u32 j = 0; j < 8; ++j) {
        u32 pairs[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) pairs[i] = pair(y8[2 * i][j], y8[2 * i + 1][j]);
        on_side[(tile.group * 8 + j) * 16 + (tile.band ^ tile.group)] =
            make_uint2((pairs[0] | pairs[1] << 16) & u32(mask), (pairs[2] | pairs[3] << 16) & u32(mask >> 32));
    }
    // All threads have stored their chunks behind this.
    __syncthreads();
    own = largest_of_cta(Num(own)).v;
#pragma unroll
    for (u32 step = 0; step < 4; ++step) {
        const u32 at = step * THREADS + threadIdx.x, line = at / 8, part = at % 8, group = line / 8;
        uint4 sixteen = reinterpret_cast<const uint4*>(on_side)[line * 8 + (part ^ group / 2)];
        if (group % 2) sixteen = make_uint4(sixteen.z, sixteen.w, sixteen.x, sixteen.y);
        const u32 of_column = tile.column + line, of_row = tile.row + part * 16;
        if (of_column < to.columns && of_row < to.pitch)
            reinterpret_cast<uint4*>(to.turned)[(u64(first + of_column) * to.pitch + of_row) / 16] = sixteen;
    }
    if (threadIdx.x != 0) return;
    // Numbers that are not negative are in the order of their bits.
    atomicMax(reinterpret_cast<u32*>(to.amax), __float_as_uint(own));
    if (blockIdx.x == 0) *to.scale = *to.stored;
}

#define TO                                                                                                                              \
    const float *multiplier, const float *stored, u8 *codes, u8 *turned, float *scale, float *amax, u32 rows, u32 columns, u32 pitch
#define THERE {multiplier, stored, codes, turned, scale, amax, rows, columns, pitch}

extern "C" __global__ void __launch_bounds__(THREADS, 2) gelu_delayed(const void* x, TO) {
    cast_tile(THERE, 1, [&](u32, u32 row, u32 eight, Eight& y8) {
        Eight x8;
        x8.load(x, u64(row) * (columns / 8) + eight);
        y8.fill([&](u32 j) { return gelu(x8[j]); });
    });
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) gelu_backward_delayed(const void* x, const void* dy, TO) {
    cast_tile(THERE, 1, [&](u32, u32 row, u32 eight, Eight& dx8) {
        Eight x8, dy8;
        const u64 at = u64(row) * (columns / 8) + eight;
        x8.load(x, at), dy8.load(dy, at);
        dx8.fill([&](u32 j) { return dy8[j] * gelu_slope(x8[j]); });
    });
}

// A row of `x` is that of the gate, then that of what it gates.
extern "C" __global__ void __launch_bounds__(THREADS, 2) swiglu_delayed(const void* x, TO) {
    cast_tile(THERE, 1, [&](u32, u32 row, u32 eight, Eight& y8) {
        Eight gate, up;
        const u64 across = columns / 8, at = u64(row) * 2 * across + eight;
        gate.load(x, at), up.load(x, at + across);
        y8.fill([&](u32 j) { return swiglu(gate[j], up[j]); });
    });
}

// The gradient has the two halves that `x` has, of `columns` each.
extern "C" __global__ void __launch_bounds__(THREADS, 2) swiglu_backward_delayed(const void* x, const void* dy, TO) {
    cast_tile(THERE, 2, [&](u32 half, u32 row, u32 eight, Eight& dx8) {
        Eight gate, up, dy8;
        const u64 across = columns / 8, at = u64(row) * 2 * across + eight;
        gate.load(x, at), dy8.load(dy, u64(row) * across + eight);
        if (half == 0) {
            up.load(x, at + across);
            dx8.fill([&](u32 j) { return of_swiglu_gate(gate[j], up[j], dy8[j]); });
        } else {
            dx8.fill([&](u32 j) { return of_swiglu_up(gate[j], dy8[j]); });
        }
    });
}
