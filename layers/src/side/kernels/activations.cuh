// Activations and their gradients, element by element. The text before includes numbers.cuh.

// x · σ(2u), u = √(2/π) · (x + 0.044715 · x³): GELU with a tanh, which is 2σ(2u) - 1.
__device__ __forceinline__ Num twice_u(Num x) { return x * fma_of(0.0713548163f, x * x, 1.59576912f); }

__device__ __forceinline__ Num gelu(Num x) { return x * logistic(twice_u(x)); }

__device__ __forceinline__ Num gelu_slope(Num x) {
    const Num s = logistic(twice_u(x));
    return fma_of(x * s, (Num(1.f) - s) * fma_of(0.214064449f, x * x, 1.59576912f), s);
}

// Of x, where `by` is x · σ(x) and s is σ(x).
__device__ __forceinline__ Num silu_slope(Num by, Num s) { return fma_of(by, Num(1.f) - s, s); }

__device__ __forceinline__ Num swiglu(Num gate, Num up) { return gate * logistic(gate) * up; }

__device__ __forceinline__ Num of_swiglu_gate(Num gate, Num up, Num dy) {
    const Num s = logistic(gate);
    return dy * up * silu_slope(gate * s, s);
}

__device__ __forceinline__ Num of_swiglu_up(Num gate, Num dy) { return dy * (gate * logistic(gate)); }
