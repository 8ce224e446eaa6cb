// The math after the dot, element by element, in f32. Relative to the result, each function is within 2e-6 of what its
// word means in a schedule where x is at most 6, and within 2e-5 in the far tails; a schedule's own exp, ln, tanh, erf,
// quotients and roots are CUDA's, within 3e-7. What is stored is rounded once, to 16 bits by up to 5e-4.

// 2^x. e^x is 2^(x * LOG2_E).
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
constexpr float LOG2_E = 1.4426950f;

// 1 / x for x of at least one.
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// By a power of e that is at most one: nothing overflows, and what is small stays exact.
__device__ __forceinline__ float sigmoid(float x) {
    const float e = exp2_approx(-LOG2_E * fabsf(x));
    return (x < 0.0f ? e : 1.0f) * reciprocal(1.0f + e);
}
__device__ __forceinline__ float silu(float x) {
    return x * sigmoid(x);
}
__device__ __forceinline__ float relu(float x) {
    return fmaxf(x, 0.0f);
}
// x * Phi(x). The tail Phi(-a) is exp(-a*a/2) * t * q: q is a polynomial in t = 1 / (1 + 0.3 a), fitted to Mills' ratio
// within 1.7e-7 for every a whose tail f32 holds. Not by 1 + erf, which keeps no digits of a small tail.
__device__ __forceinline__ float gelu(float x) {
    const float a = fabsf(x);
    const float t = reciprocal(1.0f + 0.3f * a);
    float q = 0.03542386f;
    q = q * t - 0.15615894f;
    q = q * t + 0.20455757f;
    q = q * t - 0.052034684f;
    q = q * t + 0.12769209f;
    q = q * t + 0.10017586f;
    q = q * t + 0.12071215f;
    q = q * t + 0.11963201f;
    return fmaxf(x, 0.0f) - a * (exp2_approx(-0.5f * LOG2_E * a * a) * t * q);
}
// By tanh: 0.5 * (1 + tanh(u)) is sigmoid(2u).
__device__ __forceinline__ float gelu_tanh(float x) {
    return x * sigmoid(1.5957691f * (x + 0.044715f * x * x * x));
}

// Rounded to a type and back.
__device__ __forceinline__ float rounded(float x, bf16) {
    return unpack(pack(x, 0.0f, bf16()), bf16()).x;
}
__device__ __forceinline__ float rounded(float x, f16) {
    return unpack(pack(x, 0.0f, f16()), f16()).x;
}
__device__ __forceinline__ float rounded(float x, e4m3) {
    return unpack(pack(x, 0.0f, e4m3()), e4m3()).x;
}
__device__ __forceinline__ float rounded(float x, e5m2) {
    return unpack(pack(x, 0.0f, e5m2()), e5m2()).x;
}
__device__ __forceinline__ float rounded(float x, float) {
    return x;
}
