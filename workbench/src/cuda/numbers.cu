// Numbers for measurements, made and compared where they are.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// A bijection of 64 bits that looks random (Steele, Lea and Flood's finaliser).
__device__ u64 mix(u64 z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
__device__ u16 narrow(float value, u32 half) {
    u16 bits;
    if (half) {
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    } else {
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    }
    return bits;
}
__device__ float widen(u16 bits, u32 half) {
    float value;
    if (half) {
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
    }
    return __uint_as_float((u32)bits << 16);
}
// Element types, as the host numbers them: 0 bf16, 1 f16, 2 f32.
__device__ float get(const void* from, u64 i, u32 type) {
    return type == 2 ? ((const float*)from)[i] : widen(((const u16*)from)[i], type);
}

// Element i of the endless normal sequence of `seed`.
__device__ float drawn(u64 seed, u64 i) {
    u64 bits = mix(mix(seed) + i);
    float a = ((u32)(bits >> 40) + 1) * (1.0f / 16777217.0f);
    float b = (u32)(bits & 0xffffff) * (1.0f / 16777216.0f);
    return sqrtf(-2.0f * logf(a)) * cospif(2.0f * b);
}

// Elements first .. first + count of it.
extern "C" __global__ void normal(void* to, u64 count, u64 seed, u64 first, u32 type) {
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        float value = drawn(seed, first + i);
        if (type == 2) {
            ((float*)to)[i] = value;
        } else {
            ((u16*)to)[i] = narrow(value, type);
        }
    }
}

// to = silu(gate) * up, eight elements a thread: sixteen bytes of each matrix.
extern "C" __global__ void gate(const uint4* gates, const uint4* ups, uint4* to, u64 count, u32 half) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i * 8 >= count) return;
    uint4 gate = gates[i], up = ups[i], result;
    const u32 g[4] = {gate.x, gate.y, gate.z, gate.w}, u[4] = {up.x, up.y, up.z, up.w};
    u32 r[4];
#pragma unroll
    for (u32 pair = 0; pair < 4; ++pair) {
        u32 packed = 0;
#pragma unroll
        for (u32 side = 0; side < 2; ++side) {
            float value = widen((u16)(g[pair] >> 16 * side), half);
            float silu = value * __fdividef(1.0f, 1.0f + __expf(-value));
            packed |= (u32)narrow(silu * widen((u16)(u[pair] >> 16 * side), half), half) << 16 * side;
        }
        r[pair] = packed;
    }
    result.x = r[0], result.y = r[1], result.z = r[2], result.w = r[3];
    to[i] = result;
}

struct Found {
    u32 wrong, worst; // the worst in units of what is allowed, as the bits of a float
};

__device__ void tell(Found* found, u32 wrong, float worst) {
    atomicMax(&found->worst, __float_as_uint(worst));
    if (wrong) atomicAdd(&found->wrong, wrong);
}

// `got` beside the sum of `parts` matrices that lie `stride` bytes apart. NaN is wrong.
extern "C" __global__ void differ(const u16* got, const char* want, u64 stride, u32 parts, u64 count, u32 half,
                                  float relative, float absolute, Found* found) {
    u64 step = (u64)gridDim.x * blockDim.x;
    u32 wrong = 0;
    float worst = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        float sum = 0, size = 0;
        for (u32 part = 0; part < parts; ++part) {
            float value = widen(((const u16*)(want + part * stride))[i], half);
            sum += value;
            size += fabsf(value);
        }
        float off = fabsf(widen(got[i], half) - sum) / (relative * size + absolute);
        wrong += !(off <= 1.0f);
        worst = fmaxf(worst, off);
    }
    tell(found, wrong, worst);
}

// `got` beside what becomes of an unrounded product: plus a bias along its rows, through an activation (1: GELU by
// erf, 2: by tanh), plus a matrix. With `up`, SiLU of the product times that one. NaN is wrong. `steep`: allowed besides,
// in units of the activation's argument, or of both products.
extern "C" __global__ void differ_fused(const void* got, const float* product, const float* up, const void* bias,
                                        const void* added, u64 count, u32 columns, u32 got_type, u32 bias_type, u32 added_type,
                                        u32 activation, float relative, float absolute, float steep, Found* found) {
    u64 step = (u64)gridDim.x * blockDim.x;
    u32 wrong = 0;
    float worst = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        float value = product[i];
        if (bias) value += get(bias, i % columns, bias_type);
        float argument = fabsf(value);
        if (activation == 1) value = 0.5f * value * erfcf(-0.70710678f * value);
        if (activation == 2) {
            float u = 0.79788456f * (value + 0.044715f * value * value * value);
            value = 0.5f * value * (1.0f + tanhf(u));
        }
        float sums = absolute;
        if (up) {
            float silu = value / (1.0f + expf(-value));
            // SiLU is no steeper than 1.1.
            sums = absolute * (1.1f * fabsf(up[i]) + fabsf(silu));
            argument *= fabsf(up[i]);
            value = silu * up[i];
        }
        if (added) value += get(added, i, added_type);
        float allowed = relative * fabsf(value) + sums + steep * argument;
        float off = fabsf(get(got, i, got_type) - value) / allowed;
        wrong += !(off <= 1.0f);
        worst = fmaxf(worst, off);
    }
    tell(found, wrong, worst);
}
