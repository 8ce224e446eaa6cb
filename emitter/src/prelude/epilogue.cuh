// Between accumulators and swizzled subtiles. A subtile is what one TMA box reads or writes: rows of 64 columns of
// 16-bit elements (128-byte swizzle), or of 32 or 16 (64, 32) where the tile's width is no multiple of 64, or of 32 of
// f32; of 64 or 32 bytes of FP8 (64, 32).
// The swizzle permutes a row's 16-byte chunks by row number, which also keeps the matrix instructions below free of
// bank conflicts.

// Two f32 to two 16-bit floats, round to nearest even; `low` is the element at the lower address.
__device__ __forceinline__ u32 pack(float low, float high, bf16) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
__device__ __forceinline__ u32 pack(float low, float high, f16) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// The same of FP8: two bytes. What is too large becomes the largest number, also an infinity.
__device__ __forceinline__ u32 pack(float low, float high, e4m3) {
    u16 pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}
__device__ __forceinline__ u32 pack(float low, float high, e5m2) {
    u16 pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

// The exact inverse.
__device__ __forceinline__ float2 unpack(u32 pair, bf16) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
__device__ __forceinline__ float2 unpack(u32 pair, f16) {
    float2 value;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(value.x), "=f"(value.y)
        : "r"(pair));
    return value;
}

__device__ __forceinline__ float2 unpack(u32 pair, e4m3) {
    u32 wide;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(wide) : "h"(static_cast<u16>(pair)));
    return unpack(wide, f16());
}
__device__ __forceinline__ float2 unpack(u32 pair, e5m2) {
    u32 wide;
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(wide) : "h"(static_cast<u16>(pair)));
    return unpack(wide, f16());
}

// Address of a row's 16-byte chunk in a subtile `columns` wide.
template <u32 columns>
__device__ __forceinline__ u32 subtile_address(u32 subtile, u32 row, u32 chunk) {
    if constexpr (columns == 64) return subtile + row * 128 + ((chunk ^ row % 8) << 4);
    else if constexpr (columns == 32) return subtile + row * 64 + ((chunk ^ row / 2 % 4) << 4);
    else return subtile + row * 32 + ((chunk ^ row / 4 % 2) << 4);
}

// A warp's 16x16 block, one row address a lane: lane % 16 is the row, lane / 16 the half of the columns. The register
// order is the accumulators': (rows 0-7, columns 0-7), (rows 8-15, columns 0-7), (rows 0-7, columns 8-15), (8-15,
// 8-15).
__device__ __forceinline__ void stmatrix(u32 address, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ uint4 ldmatrix(u32 address) {
    uint4 block;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(block.x), "=r"(block.y), "=r"(block.z), "=r"(block.w)
                 : "r"(address)
                 : "memory");
    return block;
}

// The address of a lane's pair of f32 in a block of 8 columns. Rows of f32 are swizzled as twice as many 16-bit
// elements.
template <u32 columns>
__device__ __forceinline__ u32 subtile_address_f32(u32 subtile, u32 row, u32 block, u32 lane) {
    return subtile_address<2 * columns>(subtile, row, 2 * block + lane % 4 / 2) + lane % 2 * 8;
}

// Round a subtile's width of a warp's 16 rows into it. `d` is the first of their accumulators, `row` the warp's first.
template <typename T, u32 columns>
__device__ __forceinline__ void subtile_store(const float* d, u32 subtile, u32 row, u32 lane) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (u32 pair = 0; pair < columns / 4; ++pair) {
            const u32 address = subtile_address_f32<columns>(subtile, row + pair % 2 * 8 + lane / 4, pair / 2, lane);
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};"
                         ::"r"(address), "f"(d[2 * pair]), "f"(d[2 * pair + 1]) : "memory");
        }
    } else if constexpr (sizeof(T) == 1) {
        // A lane has two columns of every 8. Four lanes exchange them, so that each stores four of every 16.
        const u32 from = lane / 4 * 4 + lane % 2 * 2, halves = lane % 4 < 2 ? 0x5410 : 0x7632;
#pragma unroll
        for (u32 block = 0; block < columns / 8; ++block) {
            const float* v = d + block / 2 * 8 + block % 2 * 2;
            const u32 own = pack(v[0], v[1], T()) | pack(v[4], v[5], T()) << 16;
            const u32 left = __shfl_sync(~0u, own, from), right = __shfl_sync(~0u, own, from + 1);
            const u32 at = row + block % 2 * 8 + lane / 4;
            asm volatile("st.shared.u32 [%0], %1;"
                         ::"r"(subtile_address<columns / 2>(subtile, at, block / 2) + lane % 4 * 4),
                           "r"(__byte_perm(left, right, halves)) : "memory");
        }
    } else {
#pragma unroll
        for (u32 block = 0; block < columns / 16; ++block) {
            const float* v = d + 8 * block;
            stmatrix(subtile_address<columns>(subtile, row + lane % 16, 2 * block + lane / 16), pack(v[0], v[1], T()),
                     pack(v[2], v[3], T()), pack(v[4], v[5], T()), pack(v[6], v[7], T()));
        }
    }
}

// An addition that stays before the waits behind it. The compiler moves a plain one past them, and keeps what is added
// in registers of its own until then: 64 of a subtile.
__device__ __forceinline__ void accumulate(float& sum, float term) {
    asm volatile("add.f32 %0, %0, %1;" : "+f"(sum) : "f"(term));
}

// Add a subtile to a warp's accumulators, in f32. The inverse walk of subtile_store.
template <typename T, u32 columns>
__device__ __forceinline__ void subtile_add(float* d, u32 subtile, u32 row, u32 lane) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (u32 pair = 0; pair < columns / 4; ++pair) {
            const u32 address = subtile_address_f32<columns>(subtile, row + pair % 2 * 8 + lane / 4, pair / 2, lane);
            float a, b;
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(a), "=f"(b) : "r"(address) : "memory");
            accumulate(d[2 * pair], a), accumulate(d[2 * pair + 1], b);
        }
    } else {
#pragma unroll
        for (u32 block = 0; block < columns / 16; ++block) {
            float* v = d + 8 * block;
            const uint4 p = ldmatrix(subtile_address<columns>(subtile, row + lane % 16, 2 * block + lane / 16));
            const float2 a = unpack(p.x, T()), b = unpack(p.y, T()), c = unpack(p.z, T()), e = unpack(p.w, T());
            accumulate(v[0], a.x), accumulate(v[1], a.y), accumulate(v[2], b.x), accumulate(v[3], b.y);
            accumulate(v[4], c.x), accumulate(v[5], c.y), accumulate(v[6], e.x), accumulate(v[7], e.y);
        }
    }
}

// Add this rank's own term to a sum over ranks, rounded as the others' terms were before they were sent: then the sum
// has the same bits on whichever rank it is made.
template <typename T, u32 columns>
__device__ __forceinline__ void add_own(float* sum, const float* term) {
#pragma unroll
    for (u32 i = 0; i < columns / 2; i += 2) {
        if constexpr (sizeof(T) == 4) {
            accumulate(sum[i], term[i]), accumulate(sum[i + 1], term[i + 1]);
        } else {
            const float2 rounded = unpack(pack(term[i], term[i + 1], T()), T());
            accumulate(sum[i], rounded.x), accumulate(sum[i + 1], rounded.y);
        }
    }
}

// A subtile's width of a warp's 16 rows of a stored subtile, in the order of its accumulators.
template <typename T, u32 columns>
__device__ __forceinline__ void subtile_read(float* d, u32 subtile, u32 row, u32 lane) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (u32 pair = 0; pair < columns / 4; ++pair) {
            const u32 address = subtile_address_f32<columns>(subtile, row + pair % 2 * 8 + lane / 4, pair / 2, lane);
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                         : "=f"(d[2 * pair]), "=f"(d[2 * pair + 1]) : "r"(address) : "memory");
        }
    } else {
#pragma unroll
        for (u32 block = 0; block < columns / 16; ++block) {
            float* v = d + 8 * block;
            const uint4 p = ldmatrix(subtile_address<columns>(subtile, row + lane % 16, 2 * block + lane / 16));
            const float2 a = unpack(p.x, T()), b = unpack(p.y, T()), c = unpack(p.z, T()), e = unpack(p.w, T());
            v[0] = a.x, v[1] = a.y, v[2] = b.x, v[3] = b.y;
            v[4] = c.x, v[5] = c.y, v[6] = e.x, v[7] = e.y;
        }
    }
}

// Vectors along the columns. Two neighbours at an even place; what is not there is zero. Ordinary loads: the launch
// before may write the vector while this one is resident already (wait_prerequisites).
template <typename V>
__device__ __forceinline__ float2 vector_pair(const V* vector, u32 column, u32 columns) {
    const u16* at = reinterpret_cast<const u16*>(vector) + column;
    u32 pair = 0;
    if (column + 1 < columns) pair = *reinterpret_cast<const u32*>(at);
    else if (column < columns) pair = *at;
    return unpack(pair, V());
}
__device__ __forceinline__ float2 vector_pair(const float* vector, u32 column, u32 columns) {
    if (column + 1 < columns) return *reinterpret_cast<const float2*>(vector + column);
    return make_float2(column < columns ? vector[column] : 0.0f, 0.0f);
}

// A number of which the compiler knows nothing: what is computed from it is computed here, and not kept from a place
// before.
__device__ __forceinline__ u32 again(u32 number) {
    asm volatile("" : "+r"(number));
    return number;
}

// Brings a tile's part of a vector into this SM's cache, a line of 128 bytes a lane. Lanes beyond it ask for its last
// element.
template <u32 width, typename V>
__device__ __forceinline__ void vector_read_ahead(const V* vector, u32 first, u32 columns, u32 lane) {
    const u32 line = 128 / sizeof(V), last = min(first + width, columns) - 1;
    asm volatile("prefetch.global.L1 [%0];" ::"l"(vector + min(first + lane * line, last)));
}

// A lane's part of a subtile's width: of accumulator i of the subtile, the column's element is d[vector_index(i)].
template <u32 width, typename V>
__device__ __forceinline__ void vector_read(float* d, const V* vector, u32 first, u32 columns, u32 lane) {
#pragma unroll
    for (u32 block = 0; block < width / 8; ++block) {
        const float2 pair = vector_pair(vector, first + 8 * block + 2 * (lane % 4), columns);
        d[2 * block] = pair.x, d[2 * block + 1] = pair.y;
    }
}
__device__ __forceinline__ constexpr u32 vector_index(u32 i) {
    return i / 4 * 2 + i % 2;
}

// The same where a tile is swapped: its columns are on the instruction's M side, so accumulators hold it transposed.
// Warp v of a warpgroup has columns 16v..16v+15 of a block of 64: d[4j], d[4j+1] are column lane/4, rows 8j + 2(lane%4)
// and the next; d[4j+2], d[4j+3] are the same rows eight columns on. A subtile has all of the tile's columns, 128 bytes
// of each row (a slice) after another: `rows` lines of 128 bytes, swizzled like subtiles 64 columns wide. The matrix
// instructions transpose a block of 8x8 on its way.
template <u32 size, u32 rows>
__device__ __forceinline__ u32 slice_address(u32 subtile, u32 column) {
    return subtile + column / (128 / size) * (rows * 128);
}

// A warp's 16 columns and 8 or 16 rows: the matrices are (columns 0-7, rows 0-7), (8-15, 0-7), (0-7, 8-15), (8-15,
// 8-15).
__device__ __forceinline__ void stmatrix_transposed(u32 address, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ void stmatrix_transposed(u32 address, u32 a, u32 b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
                 ::"r"(address), "r"(a), "r"(b) : "memory");
}
__device__ __forceinline__ uint4 ldmatrix_transposed(u32 address) {
    uint4 block;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(block.x), "=r"(block.y), "=r"(block.z), "=r"(block.w)
                 : "r"(address)
                 : "memory");
    return block;
}
__device__ __forceinline__ uint2 ldmatrix_transposed_half(u32 address) {
    uint2 block;
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(block.x), "=r"(block.y) : "r"(address) : "memory");
    return block;
}

// Where a lane points the matrix instructions at: lane % 8 is the row of 8, lane / 8 % 2 the half of the columns, lane
// / 16 the next 8 rows.
template <u32 rows>
__device__ __forceinline__ u32 transposed_address(u32 subtile, u32 column, u32 row, u32 lane) {
    const u32 slice = slice_address<2, rows>(subtile, column);
    return subtile_address<64>(slice, row + lane / 16 * 8 + lane % 8, column % 64 / 8 + lane / 8 % 2);
}

// The address of a lane's f32 of accumulator i of a subtile.
template <u32 rows>
__device__ __forceinline__ u32 transposed_address_f32(u32 subtile, u32 column, u32 i, u32 lane) {
    const u32 at = column + i / 2 % 2 * 8 + lane / 4, row = i / 4 * 8 + lane % 4 * 2 + i % 2;
    return subtile_address<64>(slice_address<4, rows>(subtile, at), row, at % 32 / 4) + at % 4 * 4;
}

// The same of a byte.
template <u32 rows>
__device__ __forceinline__ u32 transposed_address_byte(u32 subtile, u32 column, u32 i, u32 lane) {
    const u32 at = column + i / 2 % 2 * 8 + lane / 4, row = i / 4 * 8 + lane % 4 * 2 + i % 2;
    return subtile_address<64>(slice_address<1, rows>(subtile, at), row, at % 128 / 16) + at % 16;
}

// Round a warp's 16 columns of a subtile into it. `d` is the first of their accumulators, `column` the warp's first.
template <typename T, u32 rows>
__device__ __forceinline__ void subtile_store_transposed(const float* d, u32 subtile, u32 column, u32 lane) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (u32 i = 0; i < rows / 2; ++i)
            asm volatile("st.shared.f32 [%0], %1;"
                         ::"r"(transposed_address_f32<rows>(subtile, column, i, lane)), "f"(d[i]) : "memory");
    } else if constexpr (sizeof(T) == 1) {
#pragma unroll
        for (u32 i = 0; i < rows / 2; i += 2) {
            const u32 pair = pack(d[i], d[i + 1], T());
            asm volatile("st.shared.u8 [%0], %1;"
                         ::"r"(transposed_address_byte<rows>(subtile, column, i, lane)), "r"(pair) : "memory");
            asm volatile("st.shared.u8 [%0], %1;"
                         ::"r"(transposed_address_byte<rows>(subtile, column, i + 1, lane)), "r"(pair >> 8) : "memory");
        }
    } else {
#pragma unroll
        for (u32 row = 0; row < rows; row += 16) {
            const float* v = d + row / 2;
            const u32 address = transposed_address<rows>(subtile, column, row, row + 8 < rows ? lane : lane % 16);
            const u32 a = pack(v[0], v[1], T()), b = pack(v[2], v[3], T());
            if (row + 8 < rows) stmatrix_transposed(address, a, b, pack(v[4], v[5], T()), pack(v[6], v[7], T()));
            else stmatrix_transposed(address, a, b);
        }
    }
}

// A warp's 16 columns of a stored subtile, in the order of its accumulators.
template <typename T, u32 rows>
__device__ __forceinline__ void subtile_read_transposed(float* d, u32 subtile, u32 column, u32 lane) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (u32 i = 0; i < rows / 2; ++i)
            asm volatile("ld.shared.f32 %0, [%1];"
                         : "=f"(d[i]) : "r"(transposed_address_f32<rows>(subtile, column, i, lane)) : "memory");
    } else {
#pragma unroll
        for (u32 row = 0; row < rows; row += 16) {
            float* v = d + row / 2;
            uint4 p = {};
            if (row + 8 < rows) {
                p = ldmatrix_transposed(transposed_address<rows>(subtile, column, row, lane));
            } else {
                const uint2 half = ldmatrix_transposed_half(transposed_address<rows>(subtile, column, row, lane % 16));
                p.x = half.x, p.y = half.y;
            }
            const float2 a = unpack(p.x, T()), b = unpack(p.y, T());
            v[0] = a.x, v[1] = a.y, v[2] = b.x, v[3] = b.y;
            if (row + 8 < rows) {
                const float2 c = unpack(p.z, T()), e = unpack(p.w, T());
                v[4] = c.x, v[5] = c.y, v[6] = e.x, v[7] = e.y;
            }
        }
    }
}

// Add a subtile to a warp's accumulators, in f32.
template <typename T, u32 rows>
__device__ __forceinline__ void subtile_add_transposed(float* d, u32 subtile, u32 column, u32 lane) {
    float added[rows / 2];
    subtile_read_transposed<T, rows>(added, subtile, column, lane);
#pragma unroll
    for (u32 i = 0; i < rows / 2; ++i) accumulate(d[i], added[i]);
}

// A lane's two columns of a vector, from its warp's first on: of accumulator i, the column's element is
// d[vector_index_transposed(i)]. What is not there is zero.
template <typename V>
__device__ __forceinline__ float vector_element(const V* vector, u32 column, u32 columns) {
    const u32 element = column < columns ? reinterpret_cast<const u16*>(vector)[column] : 0;
    return unpack(element, V()).x;
}
__device__ __forceinline__ float vector_element(const float* vector, u32 column, u32 columns) {
    return column < columns ? vector[column] : 0.0f;
}
template <typename V>
__device__ __forceinline__ void vector_read_transposed(float* d, const V* vector, u32 first, u32 columns, u32 lane) {
    d[0] = vector_element(vector, first + lane / 4, columns);
    d[1] = vector_element(vector, first + 8 + lane / 4, columns);
}
__device__ __forceinline__ constexpr u32 vector_index_transposed(u32 i) {
    return i / 2 % 2;
}

// The larger of a number that is not negative and an absolute value. NaN is larger than any number. In one asm: where
// the compiler sees bits of an accumulator, it keeps a copy of it through the multiplies, and waits for each.
__device__ __forceinline__ float larger_magnitude(float largest, float value) {
    float larger;
    asm("{ .reg .f32 magnitude; abs.f32 magnitude, %2; max.NaN.f32 %0, %1, magnitude; }"
        : "=f"(larger)
        : "f"(largest), "f"(value));
    return larger;
}

// The largest absolute value of a lane's accumulators of a subtile, of those before the ends: `m` is the warp's first
// on the instruction's M side, `n` the subtile's first on its N side.
template <u32 width>
__device__ __forceinline__ float subtile_amax(float largest, const float* d, u32 m, u32 m_end, u32 n, u32 n_end,
                                              u32 lane) {
    const int on_m = static_cast<int>(m_end - m - lane / 4), on_n = static_cast<int>(n_end - n - lane % 4 * 2);
#pragma unroll
    for (int i = 0; i < static_cast<int>(width / 2); ++i) {
        const float larger = larger_magnitude(largest, d[i]);
        const bool exists = i / 2 % 2 * 8 < on_m && i / 4 * 8 + i % 2 < on_n;
        largest = exists ? larger : largest;
    }
    return largest;
}

// Make an amax as large as the largest of all lanes. Bits of numbers that are not negative are ordered as they are, and
// those of NaN come last. As signed integers, what an amax held with its sign bit set, -0.0 too, is below them all.
// Nobody reads it before the launch has ended.
__device__ __forceinline__ void amax_take(float* amax, float largest, u32 lane) {
    const int bits = __reduce_max_sync(~0u, __float_as_int(largest));
    if (lane == 0) asm volatile("red.relaxed.gpu.global.max.s32 [%0], %1;" ::"l"(amax), "r"(bits) : "memory");
}
