//! Names of the user's in C++.

/// Words of C++, and names that the text around a function has.
const TAKEN: &str = "alignas alignof and and_eq asm auto bitand bitor bool case catch char class compl const \
    constexpr const_cast decltype default delete double do dynamic_cast explicit export extern float friend goto \
    inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public \
    register reinterpret_cast short signed sizeof static_assert static_cast switch template this thread_local \
    throw typedef typeid typename union unsigned using virtual void volatile wchar_t xor xor_eq main \
    acc i rounded bf16 f16 e4m3 e5m2 epilogue fminf fmaxf fabsf expf logf sqrtf tanhf erff sigmoid gelu gelu_tanh silu \
    relu";

/// The functions that a text may call: NVIDIA's compiler knows them without a header, and they need no memory.
pub(super) const FUNCTIONS: &str = "abs acos acosf acosh acoshf asin asinf asinh asinhf atan atan2 atan2f atanf atanh atanhf cbrt cbrtf ceil \
    ceilf copysignf cos cosf cosh coshf erf erfc erfcf erff exp exp2f expf expm1 expm1f fabsf fdimf floor floorf \
    fma fmaf fmax fmaxf fmin fminf hypot hypotf isfinite isinf isnan log log10f log1p log1pf log2f logf max min \
    pow powf rhypot rhypotf rint rintf round roundf rsqrt rsqrtf sin sinf sinh sinhf sqrt sqrtf tan tanf tanh \
    tanhf trunc truncf __cosf __expf __fdividef __frcp_rn __frsqrt_rn __fsqrt_rn __log2f __logf __powf __sinf \
    __float_as_int __float_as_uint __int_as_float __uint_as_float __clz __brev __popc";

/// True if a foreign function's text may call that.
pub(super) fn is_function(word: &str) -> bool {
    FUNCTIONS.split_whitespace().any(|known| known == word)
}

/// True if a name is the text's own.
pub fn is_taken(name: &str) -> bool {
    TAKEN.split_whitespace().any(|word| word == name)
}

/// A name of the user's as C++ takes it.
pub fn identifier(name: &str) -> String {
    if is_taken(name) {
        format!("{name}_")
    } else {
        name.into()
    }
}

/// A function of the user's as C++ takes it. One that is called as what texts call would be called instead.
pub fn function_identifier(name: &str) -> String {
    match is_function(name) {
        true => format!("{name}_"),
        false => identifier(name),
    }
}

/// True if a name is one in C++, too.
pub fn is_identifier(name: &str) -> bool {
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.chars().all(letters) && name.starts_with(|c: char| !c.is_ascii_digit())
}
