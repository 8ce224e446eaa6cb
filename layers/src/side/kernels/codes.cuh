// FP8 codes on their side, and the largest amax of ranks.

#include "numbers.cuh"

// Codes of a CTA: rows and columns.
#define SIDE 128u

// Word `word` of 32 in row `row` of a tile: neighbours in a row, in a column, and 16 rows apart are in different banks.
__device__ __forceinline__ u32 place(u32 row, u32 word) { return row * (SIDE / 4) + (word ^ ((row >> 4 ^ row) & 7u)); }

// `to` has a row of `pitch` codes for each column of `from`; codes behind the rows of `from` are 0. `columns` and `pitch` are
// multiples of 16.
extern "C" __global__ void __launch_bounds__(THREADS)
    transpose_codes(const uint4* from, uint4* to, u32 rows, u32 columns, u32 pitch, u32 across) {
    __shared__ u32 tile[SIDE * SIDE / 4];
    const u32 row_0 = blockIdx.x / across * SIDE, column_0 = blockIdx.x % across * SIDE;
#pragma unroll
    for (u32 step = 0; step < SIDE * SIDE / 16 / THREADS; ++step) {
        const u32 item = step * THREADS + threadIdx.x, row = item / 8, vector = item % 8;
        const u32 column = column_0 + vector * 16;
        uint4 codes = make_uint4(0, 0, 0, 0);
        if (row_0 + row < rows && column < columns) codes = from[(u64(row_0 + row) * columns + column) / 16];
        tile[place(row, vector * 4 + 0)] = codes.x;
        tile[place(row, vector * 4 + 1)] = codes.y;
        tile[place(row, vector * 4 + 2)] = codes.z;
        tile[place(row, vector * 4 + 3)] = codes.w;
    }
    __syncthreads();
#pragma unroll
    for (u32 step = 0; step < SIDE * SIDE / 16 / THREADS; ++step) {
        const u32 item = step * THREADS + threadIdx.x, column = item / 8, row = item % 8 * 16;
        if (column_0 + column >= columns || row_0 + row >= pitch) continue;
        u32 words[4];
#pragma unroll
        for (u32 word = 0; word < 4; ++word) {
            words[word] = 0;
#pragma unroll
            for (u32 byte = 0; byte < 4; ++byte) {
                const u32 held = tile[place(row + word * 4 + byte, column / 4)];
                words[word] |= (held >> (column % 4 * 8) & 0xffu) << (byte * 8);
            }
        }
        to[(u64(column_0 + column) * pitch + row_0 + row) / 16] = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// The largest of the ranks' amaxes, each rank's `pitch` numbers behind the last one's. NaN is not seen.
extern "C" __global__ void __launch_bounds__(THREADS)
    largest_of_ranks(const float* of_ranks, float* largest, u32 amaxes, u32 ranks, u32 pitch) {
    const u32 at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= amaxes) return;
    float found = 0.f;
    for (u32 rank = 0; rank < ranks; ++rank) {
        const float amax = of_ranks[u64(rank) * pitch + at];
        found = amax > found ? amax : found;
    }
    largest[at] = found;
}
