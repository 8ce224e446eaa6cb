//! Names of the user's in C++.

/// Words of C++, and names that the text around a function has.
const TAKEN: &str = "alignas alignof and and_eq asm auto bitand bitor bool case catch char class compl const \
    constexpr const_cast decltype default delete double do dynamic_cast explicit export extern float friend goto \
    inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public \
    register reinterpret_cast short signed sizeof static_assert static_cast switch template this thread_local \
    throw typedef typeid typename union unsigned using virtual void volatile wchar_t xor xor_eq main \
    acc i rounded bf16 f16 e4m3 e5m2 epilogue fminf fmaxf fabsf expf logf sqrtf tanhf erff sigmoid gelu gelu_tanh silu \
    relu";

/// Whether a name is the text's own.
pub(crate) fn is_taken(name: &str) -> bool {
    TAKEN.split_whitespace().any(|word| word == name)
}

/// A name of the user's as C++ takes it.
pub(crate) fn identifier(name: &str) -> String {
    if is_taken(name) {
        format!("{name}_")
    } else {
        name.into()
    }
}

/// Whether a name is one in C++, too.
pub(crate) fn is_identifier(name: &str) -> bool {
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.chars().all(letters) && name.starts_with(|c: char| !c.is_ascii_digit())
}
