// Types every kernel uses. No CUDA header is needed: NVRTC compiles these files alone.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// 16-bit floats are opaque here: memory and the tensor cores hold them, arithmetic happens in f32.
// Two enums, not two typedefs, so that overloads can tell them apart.
enum class bf16 : u16 {};
enum class f16 : u16 {};
// FP8 is multiplied, copied, and what sums are rounded to.
enum class e4m3 : u8 {};
enum class e5m2 : u8 {};

// What cuTensorMapEncodeTiled writes. A kernel takes it as `const __grid_constant__`, never by copy.
struct alignas(128) TensorMap {
    u64 opaque[16];
};

// Tiles, barriers and descriptors are named by their 32-bit shared-memory address.
__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// Rounded up.
__device__ __forceinline__ u32 ceil_div(u32 a, u32 b) {
    return (a + b - 1) / b;
}
