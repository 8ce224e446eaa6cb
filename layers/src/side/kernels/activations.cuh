// Activations and their gradients, element by element. The text before includes numbers.cuh.

// x · σ(2u), u = √(2/π) · (x + 0.044715 · x³): GELU with a tanh, which is 2σ(2u) - 1. Below the lowest x it is as good as 0, and stays
// what it is there. σ(2u) is 1 / (1 + 2^p), p = -2u · log2 e.
__device__ __forceinline__ Num of_gelu(Num x) { return at_least(x, -9.9375f); }
__device__ __forceinline__ Num gelu_share(Num x) { return logistic(x * fma_of(-0.102943242f, x * x, -2.30220819f)); }

__device__ __forceinline__ Num gelu(Num x) {
    x = of_gelu(x);
    return x * gelu_share(x);
}

__device__ __forceinline__ Num gelu_slope(Num x) {
    x = of_gelu(x);
    const Num s = gelu_share(x);
    return fma_of(x * s, (Num(1.f) - s) * fma_of(0.214064449f, x * x, 1.59576912f), s);
}

// The same of x · σ(x).
__device__ __forceinline__ Num of_silu(Num x) { return at_least(x, -86.f); }
__device__ __forceinline__ Num silu_share(Num x) { return logistic(x * Num(-1.44269504f)); }

// Of x, where `by` is x · σ(x) and s is σ(x).
__device__ __forceinline__ Num silu_slope(Num by, Num s) { return fma_of(by, Num(1.f) - s, s); }

__device__ __forceinline__ Num swiglu(Num gate, Num up) {
    gate = of_silu(gate);
    return gate * silu_share(gate) * up;
}

__device__ __forceinline__ Num of_swiglu_gate(Num gate, Num up, Num dy) {
    gate = of_silu(gate);
    const Num s = silu_share(gate);
    return dy * up * silu_slope(gate * s, s);
}

__device__ __forceinline__ Num of_swiglu_up(Num gate, Num dy) {
    gate = of_silu(gate);
    return dy * (gate * silu_share(gate));
}
