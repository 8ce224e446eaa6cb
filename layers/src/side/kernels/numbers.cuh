#pragma once
// Arithmetic that the twin on the host repeats bit for bit: every operation rounds once, to nearest. Nothing is contracted, and no
// function of a library is used: exp and ln are written out, with the steps of ../twin/numbers.rs.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define THREADS 256

// An f32 whose operators round as IEEE says, whatever the compiler's options.
struct Num {
    float v;
    __device__ __forceinline__ Num() {}
    __device__ __forceinline__ Num(float v) : v(v) {}
};
__device__ __forceinline__ Num operator+(Num a, Num b) { return __fadd_rn(a.v, b.v); }
__device__ __forceinline__ Num operator-(Num a, Num b) { return __fsub_rn(a.v, b.v); }
__device__ __forceinline__ Num operator*(Num a, Num b) { return __fmul_rn(a.v, b.v); }
__device__ __forceinline__ Num operator/(Num a, Num b) { return __fdiv_rn(a.v, b.v); }
__device__ __forceinline__ Num operator-(Num a) { return -a.v; }
__device__ __forceinline__ Num root(Num a) { return __fsqrt_rn(a.v); }
// a · b + c, rounded once.
__device__ __forceinline__ Num fma_of(Num a, Num b, Num c) { return __fmaf_rn(a.v, b.v, c.v); }
// 1 / a: the same bits as the division, in fewer steps.
__device__ __forceinline__ Num inverse(Num a) { return __frcp_rn(a.v); }
// A sum and a product that take numbers too small to be normal as 0, and give 0 for them.
__device__ __forceinline__ Num add_normal(Num a, Num b) {
    float sum;
    asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(sum) : "f"(a.v), "f"(b.v));
    return sum;
}
__device__ __forceinline__ Num times_normal(Num a, Num b) {
    float product;
    asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(product) : "f"(a.v), "f"(b.v));
    return product;
}
// The larger one; NaN if either is.
__device__ __forceinline__ Num larger(Num a, Num b) { return a.v > b.v || a.v != a.v ? a : b; }

// ln 2 as a number of 15 bits, whose products with exponents are exact, and the rest.
#define LN_2_HIGH 0.69314575f
#define LN_2_LOW 1.4286068e-6f

// Added to a number, it leaves the nearest integer in the lowest bits.
#define ROUNDS 12582912.f

// e to the power of x, which is not above 88, within two units of the last place. Below e^-87: 0.
__device__ __forceinline__ Num exp_below(Num x) {
    const Num rounded = fma_of(x, 1.44269504f, ROUNDS), n = rounded - Num(ROUNDS);
    const Num r = fma_of(-n, LN_2_LOW, fma_of(-n, LN_2_HIGH, x));
    Num q = 0.0013814316f;
    q = fma_of(q, r, 0.008368851f);
    q = fma_of(q, r, 0.0416684f);
    q = fma_of(q, r, 0.1666652f);
    q = fma_of(q, r, 0.49999993f);
    q = fma_of(fma_of(q, r, 1.f), r, 1.f);
    // NaN makes any power: the product is NaN.
    const Num y = q * Num(__uint_as_float((__float_as_uint(rounded.v) << 23) + 0x3f800000u));
    return x.v < -87.f ? Num(0.f) : y;
}

// The same of any number. Above e^88: infinity.
__device__ __forceinline__ Num exp_of(Num x) { return x.v > 88.f ? Num(__uint_as_float(0x7f800000u)) : exp_below(x); }

// The natural logarithm of a normal number above 0.
__device__ __forceinline__ Num ln_of(Num x) {
    const u32 bits = __float_as_uint(x.v);
    if (!(x.v > 0.f) || x.v > 3.40282347e38f) return x.v > 0.f ? x : Num(__uint_as_float(0x7fc00000u));
    // x = 2^e (1 + m), where 1 + m is between the roots of 1/2 and 2.
    const int e = (static_cast<int>(bits) - 0x3f3504f3) >> 23;
    const Num m = Num(__uint_as_float(bits - (static_cast<u32>(e) << 23))) - Num(1.f);
    Num p = -0.07859842f;
    p = p * m + Num(0.12881726f);
    p = p * m + Num(-0.1312871f);
    p = p * m + Num(0.1418118f);
    p = p * m + Num(-0.16624557f);
    p = p * m + Num(0.20002287f);
    p = p * m + Num(-0.2500081f);
    p = p * m + Num(0.33333317f);
    const Num y = m * m * (m * p - Num(0.5f)), n = static_cast<float>(e);
    return n * Num(LN_2_LOW) + y + m + n * Num(LN_2_HIGH);
}

// 2 to the power of n + f, where `rounded` is n + ROUNDS: |f| is not above 1/2, and n from -127 to 126. Within two units of the last
// place, but below 2^-126 any number that is smaller. Of -127 exactly it is 0: f is 0, the polynomial 1, and no bit is left.
__device__ __forceinline__ Num power_of_two(Num rounded, Num f) {
    Num q = 0.00132693886f;
    q = fma_of(q, f, 0.00967129506f);
    q = fma_of(q, f, 0.0555071123f);
    q = fma_of(q, f, 0.240222469f);
    q = fma_of(q, f, 0.693147004f);
    q = fma_of(q, f, 1.f);
    return __uint_as_float(__float_as_uint(q.v) + (__float_as_uint(rounded.v) << 23));
}

// e to the power of d, which is not above 0: at -87.4 and below it is too small to be normal, and who reads it takes 0. Off by 1.4e-8 · d of
// it at most, beside what power_of_two is. NaN counts as the least one.
__device__ __forceinline__ Num raised(Num d) {
    const Num x = fmaxf(d.v, -87.4f), rounded = fma_of(x, 1.44269504f, ROUNDS);
    return power_of_two(rounded, fma_of(x, 1.44269504f, Num(ROUNDS) - rounded));
}

// 1 / (1 + 2^(x · w)), whose power is from -125 to 125. NaN makes any number.
__device__ __forceinline__ Num logistic(Num x, Num w) {
    const Num rounded = fma_of(x, w, ROUNDS), y = power_of_two(rounded, fma_of(x, w, Num(ROUNDS) - rounded)) + Num(1.f);
    // The steps of `inverse` for a normal number whose inverse is normal: the same bits, without its test for others.
    float near;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(y.v));
    return fma_of(near, fma_of(-y, near, 1.f), near);
}

// A number, or a limit beyond which it is; NaN stays.
__device__ __forceinline__ Num at_least(Num x, float limit) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x.v), "f"(limit));
    return y;
}
__device__ __forceinline__ Num at_most(Num x, float limit) {
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x.v), "f"(limit));
    return y;
}

__device__ __forceinline__ Num from_bf16(u32 bits) { return __uint_as_float(bits << 16); }

// Two numbers, each rounded to nearest, ties to even; every NaN becomes 0x7fff.
__device__ __forceinline__ u32 to_bf16s(Num low, Num high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high.v), "f"(low.v));
    return both;
}
__device__ __forceinline__ u32 to_bf16(Num x) { return to_bf16s(x, 0.f) & 0xffffu; }

// 8 elements of bf16, which are 16 bytes of a row.
struct Eight {
    u32 words[4];
    __device__ __forceinline__ void load(const void* of, u64 eight) {
        const uint4 four = static_cast<const uint4*>(of)[eight];
        words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
    }
    __device__ __forceinline__ void store(void* to, u64 eight) const {
        static_cast<uint4*>(to)[eight] = make_uint4(words[0], words[1], words[2], words[3]);
    }
    __device__ __forceinline__ Num operator[](u32 i) const {
        return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
    }
    // Element i becomes f(i).
    template <class F>
    __device__ __forceinline__ void fill(F f) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) words[i] = to_bf16s(f(2 * i), f(2 * i + 1));
    }
};

// The sum over the CTA's threads in all of them: lanes of a warp in pairs 16, 8, 4, 2 and 1 apart, then the warps in the same way.
__device__ __forceinline__ Num sum_of_cta(Num x) {
    __shared__ float of_warps[THREADS / 32];
#pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2) x = x + Num(__shfl_xor_sync(0xffffffffu, x.v, apart));
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x.v;
    __syncthreads();
    Num sums[THREADS / 32];
#pragma unroll
    for (u32 warp = 0; warp < THREADS / 32; ++warp) sums[warp] = of_warps[warp];
#pragma unroll
    for (u32 apart = THREADS / 64; apart > 0; apart /= 2)
#pragma unroll
        for (u32 warp = 0; warp < apart; ++warp) sums[warp] = sums[warp] + sums[warp + apart];
    return sums[0];
}

// The largest of the CTA's threads, in all of them.
__device__ __forceinline__ Num largest_of_cta(Num x) {
    __shared__ float of_warps[THREADS / 32];
#pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2) x = larger(x, Num(__shfl_xor_sync(0xffffffffu, x.v, apart)));
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x.v;
    __syncthreads();
    Num most = of_warps[0];
#pragma unroll
    for (u32 warp = 1; warp < THREADS / 32; ++warp) most = larger(most, Num(of_warps[warp]));
    return most;
}
