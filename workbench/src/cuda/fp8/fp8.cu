
// Exact products of FP8 operands with their scales, and how ranks share these. This follows `numbers.cu` in one text.

// What has a scale of its own: nothing, the whole matrix, a row, 128 columns of a row, 128 rows of 128 columns.
enum Pieces : u32 { NOTHING, WHOLE, ROWS, ONE_BY_128, SQUARE };

// A matrix whose rows are contiguous. Its type as the host numbers it: 3 e4m3, 4 e5m2.
struct Matrix {
    u32 rows, columns, pieces, type;
};

// Where the scale of an element is in the plane: as cuBLASLt wants it.
__device__ u64 place(Matrix of, u32 row, u32 column) {
    if (of.pieces == ROWS) return row;
    if (of.pieces == ONE_BY_128) return (u64)(column / 128) * ((of.rows + 3) / 4 * 4) + row;
    if (of.pieces == SQUARE) return (u64)(row / 128) * (((of.columns + 127) / 128 + 3) / 4 * 4) + column / 128;
    return 0;
}
__device__ float decode(u8 code, u32 type) {
    u32 pair;
    if (type == 3) {
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((u16)code));
    } else {
        asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(pair) : "h"((u16)code));
    }
    return widen((u16)pair, 1);
}

// x · wᵀ in f64, 64 × 64 elements a CTA, and how far tensor cores may be off.
//
// 32 of K at a time they align the products and the sum to the largest exponent and keep 13 bits: `unit` is that bit of
// twice the largest sum so far (a kernel may begin with any step), or of the largest product. The sum loses up to one and a
// half of it, always: that is added up. Of each product as much is lost, in either direction: what 32 of them lose has a
// variance of 32 / 3 units squared, and six times its root is allowed. Where a scale ends, the sum is multiplied, added in
// f32, and begins anew.
extern "C" __global__ void __launch_bounds__(256)
exact(const u8* x, const float* of_x, Matrix left, const u8* w, const float* of_w, Matrix right, double* value, float* allowed) {
    __shared__ double a[32][65], b[32][65];
    __shared__ u32 most_a[64], most_b[64];
    const u32 depth = left.columns, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const u32 across = (right.rows + 63) / 64, row = blockIdx.x / across * 64, column = blockIdx.x % across * 64;
    const bool blocks = left.pieces >= ONE_BY_128 || right.pieces >= ONE_BY_128;
    double sum[4][4] = {}, total[4][4] = {};
    float most[4][4] = {}, lost[4][4] = {}, square[4][4] = {};
    float off[4][4] = {}, variance[4][4] = {};
    for (u32 k = 0; k < depth; k += 32) {
        for (u32 i = threadIdx.x; i < 2048; i += 256) {
            u32 at = i % 32, side = i / 32;
            bool in = k + at < depth;
            float l = in && row + side < left.rows ? decode(x[(u64)(row + side) * depth + k + at], left.type) : 0;
            float r = in && column + side < right.rows ? decode(w[(u64)(column + side) * depth + k + at], right.type) : 0;
            a[at][side] = l, b[at][side] = r;
            u32 of_l = __reduce_max_sync(~0u, __float_as_uint(fabsf(l))), of_r = __reduce_max_sync(~0u, __float_as_uint(fabsf(r)));
            if (at == 0) most_a[side] = of_l, most_b[side] = of_r;
        }
        __syncthreads();
#pragma unroll 8
        for (u32 at = 0; at < 32; ++at) {
            double l[4], r[4];
#pragma unroll
            for (u32 i = 0; i < 4; ++i) l[i] = a[at][ty + 16 * i], r[i] = b[at][tx + 16 * i];
#pragma unroll
            for (u32 i = 0; i < 4; ++i)
#pragma unroll
                for (u32 j = 0; j < 4; ++j) sum[i][j] = fma(l[i], r[j], sum[i][j]);
        }
        const bool ends = k + 32 >= depth || blocks && k % 128 == 96;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                most[i][j] = fmaxf(most[i][j], fabsf((float)sum[i][j]));
                float product = __uint_as_float(most_a[ty + 16 * i]) * __uint_as_float(most_b[tx + 16 * j]);
                float unit = fmaxf(2 * most[i][j], product) * (1.0f / 8192);
                lost[i][j] += 1.5f * unit, square[i][j] += unit * unit;
                const u32 m = row + ty + 16 * i, n = column + tx + 16 * j;
                if (!ends || m >= left.rows || n >= right.rows) continue;
                const double scale_of_x = left.pieces == NOTHING ? 1 : of_x[place(left, m, k)];
                const double scale_of_w = right.pieces == NOTHING ? 1 : of_w[place(right, n, k)];
                const float scale = (float)(scale_of_x * scale_of_w);
                double more = sum[i][j] * scale_of_x * scale_of_w;
                total[i][j] += more;
                // Each scale and each sum in f32 is rounded.
                off[i][j] += scale * lost[i][j] + 1.3e-7f * fabsf((float)more) + 6e-8f * fabsf((float)total[i][j]);
                variance[i][j] += scale * scale * square[i][j];
                sum[i][j] = 0, most[i][j] = lost[i][j] = square[i][j] = 0;
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            const u32 m = row + ty + 16 * i, n = column + tx + 16 * j;
            if (m >= left.rows || n >= right.rows) continue;
            value[(u64)m * right.rows + n] = total[i][j];
            allowed[(u64)m * right.rows + n] = off[i][j] + 6 * sqrtf(variance[i][j] * (32.0f / 3));
        }
    }
}

// Where a rank has rows of its own, and its peers the others: the codes of its shard of `of`, and NaN elsewhere.
extern "C" __global__ void share_codes(u8* to, const u8* codes, Matrix of, u32 shard, u32 rank) {
    u64 count = (u64)of.rows * of.columns, step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        to[i] = (u32)(i / of.columns) / shard == rank ? codes[i] : 0xff;
    }
}
// Where the scale of a row's 128 columns is, if each shard of rows has a plane of its own.
__device__ u64 place_in_shard(Matrix of, u32 shard, u32 row, u32 line) {
    return ((u64)(row / shard) * ((of.columns + 127) / 128) + line) * shard + row % shard;
}
// The same of a plane, `count` numbers. Those of 1×128 lie shard by shard, the others as in a plane of all rows.
extern "C" __global__ void share_scales(float* to, const float* plane, Matrix of, u32 shard, u32 rank, u64 count) {
    const u32 lines = (of.columns + 127) / 128;
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        u32 row = (u32)i;
        u64 from = i;
        if (of.pieces == ONE_BY_128) {
            row = (u32)(i / ((u64)lines * shard)) * shard + (u32)(i % shard);
            from = place(of, row, (u32)(i / shard % lines) * 128);
        } else if (of.pieces == SQUARE) {
            row = (u32)(i / ((lines + 3) / 4 * 4)) * 128;
        }
        float value = row < of.rows ? plane[from] : 0;
        to[i] = row / shard == rank ? value : __uint_as_float(~0u);
    }
}
// Scales of 1×128 that lie shard by shard, as a plane of all rows has them.
extern "C" __global__ void join_shards(float* plane, const float* shards, Matrix of, u32 shard) {
    u64 count = (u64)of.rows * ((of.columns + 127) / 128), step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        u32 row = (u32)(i % of.rows), line = (u32)(i / of.rows);
        plane[place(of, row, line * 128)] = shards[place_in_shard(of, shard, row, line)];
    }
}

// f32 products of other operands as exact ones, each off by as much at most.
extern "C" __global__ void widened(double* value, float* allowed, const float* product, u64 count, float off) {
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) value[i] = product[i], allowed[i] = off;
}

// The larger one, or the NaN.
__device__ double larger(double a, double b) {
    return b > a || b != b ? b : a;
}
// Of each 128 columns of a row: the largest size, and what it is at least and at most where sums are off. NaN stays. A
// warp each; lines are as many as a row has blocks.
struct Magnitude {
    double value, least, most;
};
extern "C" __global__ void magnitudes(Magnitude* found, const double* value, const float* allowed, u32 rows, u32 columns) {
    const u32 lines = (columns + 127) / 128, lane = threadIdx.x % 32;
    const u64 count = (u64)rows * lines, step = (u64)gridDim.x * blockDim.x / 32;
    for (u64 block = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; block < count; block += step) {
        const u64 row = block / lines;
        const u32 first = (u32)(block % lines) * 128;
        Magnitude most = {};
        for (u32 column = first + lane; column < first + 128 && column < columns; column += 32) {
            const double size = fabs(value[row * columns + column]), off = allowed[row * columns + column];
            most.value = larger(most.value, size), most.least = larger(most.least, size - off);
            most.most = larger(most.most, size + off);
        }
        for (u32 away = 16; away; away /= 2) {
            most.value = larger(most.value, __shfl_xor_sync(~0u, most.value, away));
            most.least = larger(most.least, __shfl_xor_sync(~0u, most.least, away));
            most.most = larger(most.most, __shfl_xor_sync(~0u, most.most, away));
        }
        if (lane == 0) found[block] = most;
    }
}

// An element of any type.
__device__ double number(const void* from, u64 i, u32 type) {
    return type >= 3 ? decode(((const u8*)from)[i], type) : get(from, i, type);
}
// `got` beside the sum of exact products, `parts` that lie `stride` bytes apart, on top of `before`, if there is one.
// Sums of them were rounded besides, by `between` of their size at most. NaN is wrong, of a product, too.
//
// Where `got` is codes, a plane has their scales, or they were multiplied by `given` and are no larger than `limit`.
// Where there is `least`, products were codes before they were added, which lose `loses` of them and what it says of
// each row and 128 columns; but for those that the rank adds whose rows they are, `shard` of them. The host has the
// same in `Bounds`.
extern "C" __global__ void differ_exact(const void* got, u32 type, const float* plane, u32 pitch, float given, const char* value,
                                        const char* allowed, const char* least, u64 stride, u32 parts, u32 shard, const void* before,
                                        u32 row, u32 columns, u64 count, double loses, double floor, double limit, float relative,
                                        float between, Found* found) {
    const u32 lines = (columns + 127) / 128;
    u64 step = (u64)gridDim.x * blockDim.x;
    u32 wrong = 0;
    float worst = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const u32 down = (u32)(i / columns), line = (u32)(i % columns) / 128;
        const u32 own = shard ? (row + down) / shard : ~0u;
        double want = before ? number(before, i, type) : 0, size = 0, most = 0;
        for (u32 part = 0; part < parts; ++part) {
            double term = ((const double*)(value + part * stride))[i], off = ((const float*)(allowed + part * stride))[i];
            if (least && part != own) {
                off += loses * (fabs(term) + off) + ((const float*)(least + part * stride))[(u64)down * lines + line];
            }
            want += term, most += off, size += fabs(term) + off;
        }
        most += between * size;
        want = want > limit ? limit : want < -limit ? -limit : want;
        most += relative * (fabs(want) + most) + floor;
        const double scale = plane ? (double)plane[(u64)line * pitch + down] : 1.0 / given;
        float off = (float)(fabs(number(got, i, type) * scale - want) / most);
        wrong += !(off <= 1.0f);
        worst = fmaxf(worst, off);
    }
    tell(found, wrong, worst);
}
