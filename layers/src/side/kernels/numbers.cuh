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
__device__ __forceinline__ Num operator-(Num a) { return __uint_as_float(__float_as_uint(a.v) ^ 0x80000000u); }
__device__ __forceinline__ Num root(Num a) { return __fsqrt_rn(a.v); }
// The larger one; NaN if either is.
__device__ __forceinline__ Num larger(Num a, Num b) { return a.v > b.v || a.v != a.v ? a : b; }

// ln 2 as a number of 15 bits, whose products with exponents are exact, and the rest.
#define LN_2_HIGH 0.69314575f
#define LN_2_LOW 1.4286068e-6f

// e to the power of x, within two units of the last place. Below e^-87: 0; above e^88: infinity.
__device__ __forceinline__ Num exp_of(Num x) {
    if (x.v < -87.f) return 0.f;
    if (x.v > 88.f) return __uint_as_float(0x7f800000u);
    const float n = floorf((x * Num(1.44269504f) + Num(0.5f)).v);
    const Num r = x - Num(n) * Num(LN_2_HIGH) - Num(n) * Num(LN_2_LOW);
    Num q = 0.0013814316f;
    q = q * r + Num(0.008368851f);
    q = q * r + Num(0.0416684f);
    q = q * r + Num(0.1666652f);
    q = q * r + Num(0.49999993f);
    const Num y = r * r * q + r + Num(1.f);
    // NaN makes any power: the product is NaN.
    return y * Num(__uint_as_float(static_cast<u32>(static_cast<int>(n) + 127) << 23));
}

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

// 1 / (1 + e^-x).
__device__ __forceinline__ Num logistic(Num x) { return Num(1.f) / (Num(1.f) + exp_of(-x)); }

__device__ __forceinline__ Num from_bf16(u32 bits) { return __uint_as_float(bits << 16); }

// Rounded to nearest, ties to even; NaN stays NaN.
__device__ __forceinline__ u32 to_bf16(Num x) {
    const u32 bits = __float_as_uint(x.v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40u;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

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
    __device__ __forceinline__ Num operator[](u32 i) const { return from_bf16(words[i / 2] >> (i % 2 * 16) & 0xffffu); }
    __device__ __forceinline__ void set(u32 i, Num x) {
        const u32 shift = i % 2 * 16;
        words[i / 2] = (words[i / 2] & ~(0xffffu << shift)) | to_bf16(x) << shift;
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
