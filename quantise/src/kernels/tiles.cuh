// Kernels whose CTAs have a tile of 128×128 elements each: 256 threads with 8 rows of 8 elements. The text before says
// PIECES, TURNED, whether there is a transposed copy, and EACH_ROW, whether the one scale of a whole tensor is in each
// row.

#include "elements.cuh"

#define WHOLE 0
#define DELAYED 1
#define ROWS 2
#define ONE_BY_128 3
#define SQUARE 4

// Words from one scale to the next along rows and along K, and how many there are with padding. Lines along rows may have
// any padding: that of a shard which has more rows than the matrix.
struct Plane {
    u32 rows, blocks, padded_rows, padded_blocks;
};

// Where a CTA's tile is, and which part of it a thread has.
struct Tile {
    u32 row, column;  // its first ones
    u32 down, across; // its number
    u32 band, group;  // of 8 rows, of 8 columns: this thread's

    __device__ __forceinline__ Tile(u32 columns) {
        const u32 tiles = max((columns + 127) / 128, 1u);
        down = blockIdx.x / tiles, across = blockIdx.x % tiles;
        row = down * 128, column = across * 128;
        band = threadIdx.x / 16, group = threadIdx.x % 16;
    }
};

// This thread's elements. Those beyond the matrix are zero.
__device__ __forceinline__ void load(Eight (&x8)[8], const void* x, const Tile& tile, u32 rows, u32 columns) {
    const u32 row = tile.row + tile.band * 8, column = tile.column + tile.group * 8;
    u64 first = u64(row) * columns + column;
#pragma unroll
    for (u32 i = 0; i < 8; ++i, first += columns) {
        x8[i].clear();
        if (row + i < rows && column < columns) x8[i].load(x, first);
    }
}

__device__ __forceinline__ void forget(Eight (&x8)[8]) {
#pragma unroll
    for (u32 i = 0; i < 8; ++i) x8[i].forget();
}

// The amax of one row of the tile. Of 16 threads that have the same 8 rows, two have each: the first exchange halves
// how many rows a thread sees, and so on.
__device__ __forceinline__ float amax_of_row(const Eight (&x8)[8], u32& row) {
    float amax[8];
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        amax[i] = fabsf(x8[i][0]);
#pragma unroll
        for (u32 j = 1; j < 8; ++j) amax[i] = larger(amax[i], fabsf(x8[i][j]));
    }
    row = 0;
#pragma unroll
    for (u32 half = 4; half > 0; half /= 2) {
        const bool upper = threadIdx.x & (2 * half);
#pragma unroll
        for (u32 i = 0; i < half; ++i) {
            const float given = upper ? amax[i] : amax[i + half];
            const float kept = upper ? amax[i + half] : amax[i];
            amax[i] = larger(kept, __shfl_xor_sync(0xffffffffu, given, 2 * half));
        }
        row += upper ? half : 0;
    }
    // The zero is what is left of a row that has NaN alone, where NaN is not seen.
    return larger(0.f, larger(amax[0], __shfl_xor_sync(0xffffffffu, amax[0], 1)));
}

// The amaxes of the tile's columns that each warp sees.
__device__ __forceinline__ void amaxes_of_columns(const Eight (&x8)[8], float (*of_warps)[128]) {
    float amax[8];
#pragma unroll
    for (u32 j = 0; j < 8; ++j) {
        amax[j] = fabsf(x8[0][j]);
#pragma unroll
        for (u32 i = 1; i < 8; ++i) amax[j] = larger(amax[j], fabsf(x8[i][j]));
    }
    const bool upper = threadIdx.x & 16;
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
        const float given = upper ? amax[j] : amax[j + 4];
        const float kept = upper ? amax[j + 4] : amax[j];
        amax[j] = larger(kept, __shfl_xor_sync(0xffffffffu, given, 16));
    }
    float* to = &of_warps[threadIdx.x / 32][threadIdx.x % 16 * 8 + (upper ? 4 : 0)];
    *reinterpret_cast<float4*>(to) = make_float4(amax[0], amax[1], amax[2], amax[3]);
}

__device__ __forceinline__ float amax_of_column(const float (*of_warps)[128], u32 column) {
    float amax = 0.f;
#pragma unroll
    for (u32 warp = 0; warp < 8; ++warp) amax = larger(amax, of_warps[warp][column]);
    return amax;
}

#if PIECES == ROWS
// The amaxes of all rows, then of all columns. They are cleared before.
extern "C" __global__ void __launch_bounds__(256) amaxes_of_lines(const void* x, float* amaxes, const u32* skip, u32 rows, u32 columns) {
    __shared__ __align__(16) float of_warps[8][128];
    if (is_skipped(skip)) return;
    const Tile tile(columns);
    Eight x8[8];
    load(x8, x, tile, rows, columns);
    u32* bits = reinterpret_cast<u32*>(amaxes);
    u32 own;
    const float amax = amax_of_row(x8, own);
    const u32 row = tile.row + tile.band * 8 + own;
    if (row < rows && threadIdx.x % 2 == 0) atomicMax(bits + row, __float_as_uint(amax));
    forget(x8);
    amaxes_of_columns(x8, of_warps);
    __syncthreads();
    const u32 column = tile.column + threadIdx.x;
    if (threadIdx.x < 128 && column < columns)
        atomicMax(bits + rows + column, __float_as_uint(amax_of_column(of_warps, threadIdx.x)));
}
#endif

// `state`: of a whole tensor its amax, multiplier and, with EACH_ROW, stored scale; of delayed scaling the multiplier and the
// stored scale; of rows the amaxes of rows and columns. `of_step`: of delayed scaling the amax of this step.
extern "C" __global__ void __launch_bounds__(256, 2)
cast_tiles(const void* x, u8* codes, u8* turned, float* scales, float* turned_scales, float* state, float* of_step,
           const u32* skip, u32 rows, u32 columns, u32 pitch, const Plane plane, const Plane turned_plane) {
    if (is_skipped(skip)) return;
    const Tile tile(columns);
    Eight x8[8];
    load(x8, x, tile, rows, columns);

#if PIECES == ONE_BY_128 || PIECES == ROWS
    __shared__ __align__(16) float of_rows[128];
#if TURNED
    __shared__ __align__(16) float of_columns[128];
#endif
#endif
#if PIECES == ONE_BY_128
    {
        u32 own;
        const float amax = amax_of_row(x8, own);
        own += tile.band * 8;
        const Scale scale = scale_of(amax, MOST);
        const u32 row = tile.row + own;
        if (threadIdx.x % 2 == 0) {
            of_rows[own] = scale.multiplier;
            if (row < plane.padded_rows && tile.across < plane.padded_blocks)
                scales[u64(row) * plane.rows + u64(tile.across) * plane.blocks] = row < rows ? scale.stored : 0.f;
        }
        if (tile.row + 128 >= rows && tile.across < plane.padded_blocks)
            for (u32 row = tile.row + 128 + threadIdx.x; row < plane.padded_rows; row += 256)
                scales[u64(row) * plane.rows + u64(tile.across) * plane.blocks] = 0.f;
    }
#if TURNED
    __shared__ __align__(16) float of_warps[8][128];
    forget(x8);
    amaxes_of_columns(x8, of_warps);
    __syncthreads();
    if (threadIdx.x < 128) {
        const Scale scale = scale_of(amax_of_column(of_warps, threadIdx.x), MOST);
        of_columns[threadIdx.x] = scale.multiplier;
        const u32 column = tile.column + threadIdx.x;
        if (column < turned_plane.padded_rows && tile.down < turned_plane.padded_blocks)
            turned_scales[u64(column) * turned_plane.rows + u64(tile.down) * turned_plane.blocks] = column < columns ? scale.stored : 0.f;
    }
    if (tile.column + 128 >= columns && tile.down < turned_plane.padded_blocks)
        for (u32 column = tile.column + 128 + threadIdx.x; column < turned_plane.padded_rows; column += 256)
            turned_scales[u64(column) * turned_plane.rows + u64(tile.down) * turned_plane.blocks] = 0.f;
#endif
    __syncthreads();
#elif PIECES == ROWS
    if (threadIdx.x < 128) {
        const u32 row = tile.row + threadIdx.x;
        const Scale scale = scale_of(row < rows ? state[row] : 0.f, LARGEST_F32);
        of_rows[threadIdx.x] = scale.multiplier;
        if (tile.across == 0 && row < rows) scales[row] = scale.stored;
    }
#if TURNED
    else {
        const u32 own = threadIdx.x - 128, column = tile.column + own;
        const Scale scale = scale_of(column < columns ? state[rows + column] : 0.f, LARGEST_F32);
        of_columns[own] = scale.multiplier;
        if (tile.down == 0 && column < columns) turned_scales[column] = scale.stored;
    }
#endif
    __syncthreads();
#else
#if PIECES == WHOLE
    const float multiplier = state[1];
#else
    float amax = 0.f;
#pragma unroll
    for (u32 i = 0; i < 8; ++i)
#pragma unroll
        for (u32 j = 0; j < 8; ++j) amax = larger(amax, fabsf(x8[i][j]));
    forget(x8);
    amax = largest_of_cta(amax);
#endif
#if PIECES == DELAYED
    const float multiplier = state[0];
    if (threadIdx.x == 0) {
        atomicMax(reinterpret_cast<u32*>(of_step), __float_as_uint(amax));
        if (blockIdx.x == 0 && !EACH_ROW) *scales = state[1];
    }
#elif PIECES == SQUARE
    const Scale scale = scale_of(amax, MOST);
    const float multiplier = scale.multiplier;
    if (threadIdx.x == 0) {
        float* own = scales + u64(tile.down) * plane.rows;
        own[u64(tile.across) * plane.blocks] = scale.stored;
        if (tile.column + 128 >= columns)
            for (u32 block = tile.across + 1; block < plane.padded_blocks; ++block) own[u64(block) * plane.blocks] = 0.f;
#if TURNED
        own = turned_scales + u64(tile.across) * turned_plane.rows;
        own[u64(tile.down) * turned_plane.blocks] = scale.stored;
        if (tile.row + 128 >= rows)
            for (u32 block = tile.down + 1; block < turned_plane.padded_blocks; ++block) own[u64(block) * turned_plane.blocks] = 0.f;
#endif
    }
#endif
#endif
#if EACH_ROW
    if (tile.across == 0 && threadIdx.x < 128 && tile.row + threadIdx.x < rows)
        scales[tile.row + threadIdx.x] = state[PIECES == WHOLE ? 2 : 1];
#endif

    forget(x8);
    const u32 row = tile.row + tile.band * 8, column = tile.column + tile.group * 8;
    u8* to = codes + (u64(row) * columns + column);
#pragma unroll
    for (u32 i = 0; i < 8; ++i, to += columns) {
#if PIECES == ONE_BY_128 || PIECES == ROWS
        const float multiplier = of_rows[tile.band * 8 + i];
#endif
        if (row + i < rows && column < columns) store(to, x8[i], multiplier);
    }

#if TURNED
    // Through shared memory, so that 8 threads store 128 bytes of a transposed row. A column has 16 chunks of 8 rows each;
    // they are exchanged by the column's group, so that threads of a warp meet in no bank.
    __shared__ __align__(16) uint2 tile_of_codes[128 * 16];
    forget(x8);
    // Codes beyond the rows are zero whatever the scale: zero times NaN or infinity is not.
    const u32 left = row < rows ? min(rows - row, 8u) : 0;
    const u64 kept = left == 8 ? ~0ull : (1ull << 8 * left) - 1;
#pragma unroll
    for (u32 j = 0; j < 8; ++j) {
#if PIECES == ONE_BY_128 || PIECES == ROWS
        const float multiplier = of_columns[tile.group * 8 + j];
#endif
        u32 pairs[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i)
            pairs[i] = codes_of(__fmul_rn(x8[2 * i][j], multiplier), __fmul_rn(x8[2 * i + 1][j], multiplier));
        tile_of_codes[(tile.group * 8 + j) * 16 + (tile.band ^ tile.group)] =
            make_uint2((pairs[0] | pairs[1] << 16) & u32(kept), (pairs[2] | pairs[3] << 16) & u32(kept >> 32));
    }
    __syncthreads();
    // Pieces of `pitch` rows, which are whole tiles, lie one behind the other.
    const u32 piece = tile.row - tile.row % max(pitch, 1u);
    u8* copy = turned + u64(piece) * columns;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        const u32 at = i * 256 + threadIdx.x, own = at / 8, part = at % 8, group = own / 8;
        uint4 sixteen = reinterpret_cast<const uint4*>(tile_of_codes)[own * 8 + (part ^ (group / 2))];
        if (group % 2) sixteen = make_uint4(sixteen.z, sixteen.w, sixteen.x, sixteen.y);
        const u32 column = tile.column + own, row = tile.row - piece + part * 16;
        if (column < columns && row < pitch) *reinterpret_cast<uint4*>(copy + u64(column) * pitch + row) = sixteen;
    }
#endif
}
