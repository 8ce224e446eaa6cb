// From an amax to the scale that its elements share: codegen/src/rule.rs in CUDA. Quantisers include it, too. The
// compiler's options allow approximate quotients, so each one here is asked for with its rounding.
enum Convention : u32 { TRANSFORMER_ENGINE, DEEP_GEMM };

__device__ constexpr float LARGEST_F32 = 0x1.fffffep127f;

// The numbers of a rule: the least amax, the largest code, what a quotient beyond f32 becomes.
struct RuleNumbers {
    float eps, largest, most;
};

struct Scale {
    float multiplier, stored;
};

__device__ __forceinline__ float same_nan(float value) {
    return value == value ? value : __uint_as_float(0x7fc00000u);
}

template <Convention convention, bool power_of_two>
__device__ __forceinline__ Scale scale_of(float amax, const RuleNumbers& rule) {
    amax = amax < rule.eps ? rule.eps : amax;
    if constexpr (convention == TRANSFORMER_ENGINE) {
        if (amax == 0.f || !(amax <= LARGEST_F32)) return {1.f, 1.f};
        float exact = __fdiv_rn(rule.largest, amax);
        exact = exact <= LARGEST_F32 ? exact : rule.most;
        if constexpr (power_of_two) exact = __uint_as_float(__float_as_uint(exact) & 0xff800000u);
        return {exact, __frcp_rn(exact)};
    } else {
        float stored = __fdiv_rn(amax, rule.largest);
        if constexpr (power_of_two) {
            const u32 bits = __float_as_uint(stored) & 0x7fffffffu;
            const u32 exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0);
            stored = __uint_as_float(min(max(exponent, 1u), 254u) << 23);
        }
        return {__frcp_rn(stored), same_nan(stored)};
    }
}
