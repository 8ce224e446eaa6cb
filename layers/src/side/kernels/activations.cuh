// Activations and their gradients, element by element. The text before includes numbers.cuh.

// x · σ(2u), u = √(2/π) · (x + 0.044715 · x³): GELU with a tanh, which is 2σ(2u) - 1. Beyond these limits it is as good as 0 and x, and
// its gradient as good as 0 and 1. The power of 2 that `logistic` takes stays below 125: here it is 123.9.
#define OF_GELU 9.9375f
// σ(2u) is 1 / (1 + 2^(-2u · log2 e)).
__device__ __forceinline__ Num gelu_share(Num x) { return logistic(x, fma_of(-0.102943242f, x * x, -2.30220819f)); }

__device__ __forceinline__ Num gelu(Num x) {
    x = at_least(x, -OF_GELU);
    return x * gelu_share(at_most(x, OF_GELU));
}

__device__ __forceinline__ Num gelu_slope(Num x) {
    x = at_most(at_least(x, -OF_GELU), OF_GELU);
    const Num s = gelu_share(x);
    return fma_of(x * s, (Num(1.f) - s) * fma_of(0.214064449f, x * x, 1.59576912f), s);
}

// The same of x · σ(x): the power is 124.1.
#define OF_SILU 86.f
__device__ __forceinline__ Num silu_share(Num x) { return logistic(at_most(x, OF_SILU), -1.44269504f); }

// Of x, where `by` is x · σ(x) and s is σ(x).
__device__ __forceinline__ Num silu_slope(Num by, Num s) { return fma_of(by, Num(1.f) - s, s); }

__device__ __forceinline__ Num swiglu(Num gate, Num up) {
    gate = at_least(gate, -OF_SILU);
    return gate * silu_share(gate) * up;
}

__device__ __forceinline__ Num of_swiglu_gate(Num gate, Num up, Num dy) {
    gate = at_least(gate, -OF_SILU);
    const Num s = silu_share(gate);
    return dy * up * silu_slope(gate * s, s);
}

__device__ __forceinline__ Num of_swiglu_up(Num gate, Num dy) {
    gate = at_least(gate, -OF_SILU);
    return dy * (gate * silu_share(gate));
}
