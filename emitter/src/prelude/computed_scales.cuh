// Scales of 1x128 that a tile makes of its own results, a subtile of 128 columns at a time. The four lanes of a quad
// have a row of it: of accumulator i, row lane/4 of a warp's 16, or the one eight below if i / 2 is odd.

// The larger of an amax and an absolute value; NaN stays, or is not seen. In one asm, as larger_magnitude.
template <bool keeps_nan>
__device__ __forceinline__ float larger_amax(float amax, float value) {
    if constexpr (keeps_nan) return larger_magnitude(amax, value);
    float larger;
    asm("{ .reg .f32 magnitude; abs.f32 magnitude, %2; max.f32 %0, %1, magnitude; }"
        : "=f"(larger)
        : "f"(amax), "f"(value));
    return larger;
}

// What a lane's two rows are multiplied by, and what stands in the plane for them. `d` is the first of their
// accumulators, `column` the subtile's first: what is beyond the end does not count.
template <u32 width, Convention convention, bool power_of_two>
__device__ __forceinline__ void scales_make(float* multipliers, float* stored, const float* d, u32 column, u32 end,
                                            const RuleNumbers& rule, u32 lane) {
    constexpr bool keeps_nan = convention != TRANSFORMER_ENGINE;
    const int left = static_cast<int>(end - column - lane % 4 * 2);
    float amaxes[2] = {};
#pragma unroll
    for (int i = 0; i < static_cast<int>(width / 2); ++i) {
        const float larger = larger_amax<keeps_nan>(amaxes[i / 2 % 2], d[i]);
        amaxes[i / 2 % 2] = i / 4 * 8 + i % 2 < left ? larger : amaxes[i / 2 % 2];
    }
#pragma unroll
    for (u32 row = 0; row < 2; ++row) {
        float amax = amaxes[row];
#pragma unroll
        for (u32 lanes = 1; lanes < 4; lanes *= 2)
            amax = larger_amax<keeps_nan>(amax, __shfl_xor_sync(~0u, amax, lanes));
        const Scale scale = scale_of<convention, power_of_two>(amax, rule);
        multipliers[row] = scale.multiplier, stored[row] = scale.stored;
    }
}

// Writes those of a warp's rows that exist to the line of their block. The last of all rows has the line's padding,
// too.
__device__ __forceinline__ void scales_write(float* line, const float* stored, u32 row, u32 end, u32 rows, u32 padded,
                                             u32 lane) {
    if (lane % 4 != 0) return;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const u32 at = row + lane / 4 + half * 8;
        if (at >= end) continue;
        line[at] = stored[half];
        if (at + 1 < rows) continue;
        for (u32 behind = rows; behind < padded; ++behind) line[behind] = 0.f;
    }
}

// Rounds a subtile's width of a warp's 16 rows into it, each row multiplied by its own number. No address is kept for
// the next subtile: beside 128 accumulators and the values of another 64 there is no register for it.
template <typename T, u32 columns>
__device__ __forceinline__ void subtile_store_scaled(const float* d, const float* multipliers, u32 subtile, u32 row,
                                                     u32 lane) {
    float scaled[columns / 2];
#pragma unroll
    for (u32 i = 0; i < columns / 2; ++i) scaled[i] = __fmul_rn(d[i], multipliers[i / 2 % 2]);
    subtile_store<T, columns>(scaled, subtile, row, again(lane));
}

// Of partial sums with scales: those of a lane's two rows for each 128 columns of a tile, whose first line is given.
// Loads that the first cache never holds: another GPU wrote them during this launch. What is not there is zero.
template <u32 blocks>
__device__ __forceinline__ void scales_read(float (*scales)[2], const float* line, u32 step, u32 column, u32 columns,
                                            u32 row, u32 end, u32 lane) {
#pragma unroll
    for (u32 block = 0; block < blocks; ++block) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 at = row + lane / 4 + half * 8;
            scales[block][half] = 0.f;
            if (at >= end || column + block * 128 >= columns) continue;
            asm volatile("ld.relaxed.sys.global.f32 %0, [%1];"
                         : "=f"(scales[block][half])
                         : "l"(line + static_cast<u64>(block) * step + at)
                         : "memory");
        }
    }
}

// Add a subtile of codes to a warp's accumulators, in f32, each times the scale of its row. The inverse walk of
// subtile_store.
template <typename T, u32 columns>
__device__ __forceinline__ void subtile_add_scaled(float* d, const float* scales, u32 subtile, u32 row, u32 lane) {
    // A lane reads four columns of every 16, and has two of every 8.
    const u32 low = lane / 4 * 4 + lane % 4 / 2, odd = lane % 2 * 16;
#pragma unroll
    for (u32 block = 0; block < columns / 8; ++block) {
        float* v = d + block / 2 * 8 + block % 2 * 2;
        const u32 at = row + block % 2 * 8 + lane / 4;
        u32 codes;
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(codes)
                     : "r"(subtile_address<columns / 2>(subtile, at, block / 2) + lane % 4 * 4)
                     : "memory");
        const u32 left = __shfl_sync(~0u, codes, low), right = __shfl_sync(~0u, codes, low + 2);
        const float2 a = unpack(left >> odd, T()), b = unpack(right >> odd, T());
        const float scale = scales[block % 2];
        accumulate(v[0], __fmul_rn(a.x, scale)), accumulate(v[1], __fmul_rn(a.y, scale));
        accumulate(v[4], __fmul_rn(b.x, scale)), accumulate(v[5], __fmul_rn(b.y, scale));
    }
}
