// Promoted sums: what tensor cores sum of a step is added in f32, times the scales of its blocks if there are some.
// Scales come with the step's operands, in its stage, without a swizzle.

// Bytes from a number to the next, and from a line of four numbers along K to that of the next block of rows.
constexpr u32 SCALE_STRIDE = 4, SCALE_LINE_STRIDE = 4 * SCALE_STRIDE;

// One number of a stage.
__device__ __forceinline__ float scale_of_block(u32 at) {
    float scale;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(scale) : "r"(at) : "memory");
    return scale;
}

// Scales that run along the instruction's M side: a lane's two of its warp's 16, from `first` on. That of accumulator i
// is d[vector_index_transposed(i)].
__device__ __forceinline__ void scales_on_m(float (&d)[2], u32 scales, u32 first, u32 lane) {
    const u32 at = scales + first * 4 + lane / 4 * 4;
    d[0] = scale_of_block(at);
    d[1] = scale_of_block(at + 8 * 4);
}

// Scales that run along its N side: a lane's two of every eight. Of accumulator i, it is d[vector_index(i)]. All reads
// have their address in one register, beside constants: the compiler would make one for each.
template <u32 n, u32 first = 0>
__device__ __forceinline__ void scales_on_n_from(float (&d)[n / 4], u32 at) {
    if constexpr (first < n / 8) {
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2 + %3];"
                     : "=f"(d[2 * first]), "=f"(d[2 * first + 1]) : "r"(at), "n"(first * 32) : "memory");
        scales_on_n_from<n, first + 1>(d, at);
    }
}

template <u32 n>
__device__ __forceinline__ void scales_on_n(float (&d)[n / 4], u32 scales, u32 lane) {
    scales_on_n_from<n>(d, scales + lane % 4 * 8);
}

// Scales of blocks of its N side that cross the tile's edges: every `each` columns have one of two numbers, the second
// one from where the first one's block ends.
template <u32 each, u32 block, u32 count>
__device__ __forceinline__ void scales_across(float (&d)[count], u32 scales, u32 begin) {
    const float first = scale_of_block(scales), second = scale_of_block(scales + SCALE_LINE_STRIDE);
#pragma unroll
    for (u32 i = 0; i < count; ++i) d[i] = begin + i * each < block ? first : second;
}

// The product of the scales is rounded, and then the sum once: in this order, whatever the compiler contracts.
__device__ __forceinline__ void add_scaled(float& sum, float value, float a, float b) {
    sum = __fmaf_rn(value, __fmul_rn(a, b), sum);
}
