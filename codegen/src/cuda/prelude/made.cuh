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

// Rounds a subtile's width of a warp's 16 rows into it, each row multiplied by its own number.
template <typename T, u32 columns>
__device__ __forceinline__ void subtile_store_scaled(const float* d, const float* multipliers, u32 subtile, u32 row,
                                                     u32 lane) {
    float scaled[columns / 2];
#pragma unroll
    for (u32 i = 0; i < columns / 2; ++i) scaled[i] = __fmul_rn(d[i], multipliers[i / 2 % 2]);
    subtile_store<T, columns>(scaled, subtile, row, lane);
}
