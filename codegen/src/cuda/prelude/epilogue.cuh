// Between accumulators and swizzled panels. A panel is what one TMA box reads or writes: rows of 64 columns of 16-bit
// elements (128-byte swizzle), or of 32 or 16 (64, 32) where the tile's width is no multiple of 64, or of 32 of f32. The swizzle
// permutes a row's 16-byte chunks by row number, which also keeps the matrix instructions below free of bank conflicts.

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

// Address of a row's 16-byte chunk in a panel `columns` wide.
template <u32 columns>
__device__ __forceinline__ u32 panel_address(u32 panel, u32 row, u32 chunk) {
    if constexpr (columns == 64) return panel + row * 128 + ((chunk ^ row % 8) << 4);
    else if constexpr (columns == 32) return panel + row * 64 + ((chunk ^ row / 2 % 4) << 4);
    else return panel + row * 32 + ((chunk ^ row / 4 % 2) << 4);
}

// A warp's 16x16 block, one row address a lane: lane % 16 is the row, lane / 16 the half of the columns. The register
// order is the accumulators': (rows 0-7, columns 0-7), (rows 8-15, columns 0-7), (rows 0-7, columns 8-15), (8-15, 8-15).
__device__ __forceinline__ void stmatrix(u32 address, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ uint4 ldmatrix(u32 address) {
    uint4 block;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(block.x), "=r"(block.y), "=r"(block.z), "=r"(block.w)
                 : "r"(address)
                 : "memory");
    return block;
}

// The address of a lane's pair of f32 in a block of 8 columns. Rows of f32 are swizzled as twice as many 16-bit elements.
template <u32 columns>
__device__ __forceinline__ u32 panel_address_f32(u32 panel, u32 row, u32 block, u32 lane) {
    return panel_address<2 * columns>(panel, row, 2 * block + lane % 4 / 2) + lane % 2 * 8;
}

// Round a panel's width of a warp's 16 rows into it. `d` is the first of their accumulators, `row` the warp's first.
template <typename T, u32 columns>
__device__ __forceinline__ void panel_store(const float* d, u32 panel, u32 row, u32 lane) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (u32 pair = 0; pair < columns / 4; ++pair) {
            const u32 address = panel_address_f32<columns>(panel, row + pair % 2 * 8 + lane / 4, pair / 2, lane);
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(d[2 * pair]), "f"(d[2 * pair + 1]) : "memory");
        }
    } else {
#pragma unroll
        for (u32 block = 0; block < columns / 16; ++block) {
            const float* v = d + 8 * block;
            stmatrix(panel_address<columns>(panel, row + lane % 16, 2 * block + lane / 16), pack(v[0], v[1], T()),
                     pack(v[2], v[3], T()), pack(v[4], v[5], T()), pack(v[6], v[7], T()));
        }
    }
}

// Add a panel to a warp's accumulators, in f32. The inverse walk of panel_store.
template <typename T, u32 columns>
__device__ __forceinline__ void panel_add(float* d, u32 panel, u32 row, u32 lane) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (u32 pair = 0; pair < columns / 4; ++pair) {
            const u32 address = panel_address_f32<columns>(panel, row + pair % 2 * 8 + lane / 4, pair / 2, lane);
            float a, b;
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(a), "=f"(b) : "r"(address) : "memory");
            d[2 * pair] += a, d[2 * pair + 1] += b;
        }
    } else {
#pragma unroll
        for (u32 block = 0; block < columns / 16; ++block) {
            float* v = d + 8 * block;
            const uint4 p = ldmatrix(panel_address<columns>(panel, row + lane % 16, 2 * block + lane / 16));
            const float2 a = unpack(p.x, T()), b = unpack(p.y, T()), c = unpack(p.z, T()), e = unpack(p.w, T());
            v[0] += a.x, v[1] += a.y, v[2] += b.x, v[3] += b.y;
            v[4] += c.x, v[5] += c.y, v[6] += e.x, v[7] += e.y;
        }
    }
}

// A panel's width of a warp's 16 rows of a stored panel, in the order of its accumulators.
template <typename T, u32 columns>
__device__ __forceinline__ void panel_read(float* d, u32 panel, u32 row, u32 lane) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (u32 pair = 0; pair < columns / 4; ++pair) {
            const u32 address = panel_address_f32<columns>(panel, row + pair % 2 * 8 + lane / 4, pair / 2, lane);
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(d[2 * pair]), "=f"(d[2 * pair + 1]) : "r"(address) : "memory");
        }
    } else {
#pragma unroll
        for (u32 block = 0; block < columns / 16; ++block) {
            float* v = d + 8 * block;
            const uint4 p = ldmatrix(panel_address<columns>(panel, row + lane % 16, 2 * block + lane / 16));
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

// A lane's part of a panel's width: of accumulator i of the panel, the column's element is d[vector_index(i)].
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
