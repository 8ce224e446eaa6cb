// Warpgroup matrix multiply: D[64][n] (+)= A[64][16] * B[n][16]^T, A and B in shared memory, D in f32 registers.
// Four consecutive warps issue it together; it runs on the async proxy until waited for.
//
// Register map: warp v of the group holds rows 16v..16v+15. d[4j], d[4j+1] are row lane/4, columns 8j + 2(lane%4) and
// the next; d[4j+2], d[4j+3] are the same columns eight rows down.

// A descriptor has room for 14 bits of 16 bytes. Above them an address names its CTA, in a cluster, and would run into
// the next field.
__device__ __forceinline__ u32 wgmma_address(u32 shared) {
    return shared >> 4 & 0x3fff;
}

// Shared-memory descriptor of a K-major tile in 128-byte swizzle: rows of 64 16-bit elements, 1024-byte aligned, eight
// rows (1024 bytes) from one swizzle atom to the next. Steps of 16 along K add WGMMA_K_STEP, of 64 rows WGMMA_64_ROWS.
// The address goes through a shuffle so that it is known warp-uniform and lives in uniform registers.
__device__ __forceinline__ u64 wgmma_descriptor(u32 shared) {
    const u32 low = __shfl_sync(~0u, wgmma_address(shared) | (1u << 16), 0);
    return 0x4000004000000000ull | low;
}
constexpr u64 WGMMA_K_STEP = 32 >> 4;
constexpr u64 WGMMA_ROW = 128 >> 4;
constexpr u64 WGMMA_64_ROWS = 64 * WGMMA_ROW;

// The same place, `slots` slots of so many bytes further.
template <u32 bytes>
__device__ __forceinline__ u64 wgmma_at(u64 first, u32 slots) {
    return first + slots * (bytes >> 4);
}

// What is contiguous in an operand's memory: K, or M or N (then the multiply transposes it on the way in).
enum Major : u32 { K_MAJOR, MN_MAJOR };

// Descriptor of a tile that is MN-major: blocks of 64 rows, `block` bytes each, with a line of 128 bytes
// for every K; eight lines (1024 bytes) from one swizzle atom to the next. Steps of 16 along K add 16 lines, of 64 rows
// a block.
__device__ __forceinline__ u64 wgmma_descriptor_mn_major(u32 shared, u32 block) {
    const u32 low = __shfl_sync(~0u, wgmma_address(shared) | (block >> 4 << 16), 0);
    return 0x4000004000000000ull | low;
}
constexpr u64 WGMMA_MN_MAJOR_K_STEP = 16 * 128 >> 4;

// Before the first multiply of a group: the accumulators' earlier register accesses are done. From here to the wait no
// instruction may name an accumulator.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Close the group.
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// All but the latest `pending` groups are done: this warp no longer reads their stages, their sums are in registers.
template <u32 pending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

#define ACC4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ACC8(i)                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]),              \
        "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])

// Accumulators of an n side of n, as operands and by their names in the instruction: four for every 8.
#define OUT8 ACC4(0)
#define NAMES8 "%0, %1, %2, %3"
#define OUT16 ACC8(0)
#define NAMES16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define OUT24 OUT16, ACC4(8)
#define NAMES24 NAMES16 ", %8, %9, %10, %11"
#define OUT32 OUT16, ACC8(8)
#define NAMES32 NAMES16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define OUT40 OUT32, ACC4(16)
#define NAMES40 NAMES32 ", %16, %17, %18, %19"
#define OUT48 OUT32, ACC8(16)
#define NAMES48 NAMES32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define OUT56 OUT48, ACC4(24)
#define NAMES56 NAMES48 ", %24, %25, %26, %27"
#define OUT64 OUT48, ACC8(24)
#define NAMES64 NAMES48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define OUT72 OUT64, ACC4(32)
#define NAMES72 NAMES64 ", %32, %33, %34, %35"
#define OUT80 OUT64, ACC8(32)
#define NAMES80 NAMES64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define OUT88 OUT80, ACC4(40)
#define NAMES88 NAMES80 ", %40, %41, %42, %43"
#define OUT96 OUT80, ACC8(40)
#define NAMES96 NAMES80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define OUT104 OUT96, ACC4(48)
#define NAMES104 NAMES96 ", %48, %49, %50, %51"
#define OUT112 OUT96, ACC8(48)
#define NAMES112 NAMES96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define OUT120 OUT112, ACC4(56)
#define NAMES120 NAMES112 ", %56, %57, %58, %59"
#define OUT128 OUT112, ACC8(56)
#define NAMES128 NAMES112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define OUT136 OUT128, ACC4(64)
#define NAMES136 NAMES128 ", %64, %65, %66, %67"
#define OUT144 OUT128, ACC8(64)
#define NAMES144 NAMES128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define OUT152 OUT144, ACC4(72)
#define NAMES152 NAMES144 ", %72, %73, %74, %75"
#define OUT160 OUT144, ACC8(72)
#define NAMES160 NAMES144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define OUT168 OUT160, ACC4(80)
#define NAMES168 NAMES160 ", %80, %81, %82, %83"
#define OUT176 OUT160, ACC8(80)
#define NAMES176 NAMES160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define OUT184 OUT176, ACC4(88)
#define NAMES184 NAMES176 ", %88, %89, %90, %91"
#define OUT192 OUT176, ACC8(88)
#define NAMES192 NAMES176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define OUT200 OUT192, ACC4(96)
#define NAMES200 NAMES192 ", %96, %97, %98, %99"
#define OUT208 OUT192, ACC8(96)
#define NAMES208 NAMES192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define OUT216 OUT208, ACC4(104)
#define NAMES216 NAMES208 ", %104, %105, %106, %107"
#define OUT224 OUT208, ACC8(104)
#define NAMES224 NAMES208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define OUT232 OUT224, ACC4(112)
#define NAMES232 NAMES224 ", %112, %113, %114, %115"
#define OUT240 OUT224, ACC8(112)
#define NAMES240 NAMES224 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define OUT248 OUT240, ACC4(120)
#define NAMES248 NAMES240 ", %120, %121, %122, %123"
#define OUT256 OUT240, ACC8(120)
#define NAMES256 NAMES240 ", %120, %121, %122, %123, %124, %125, %126, %127"

// accumulate = false starts from zero and saves clearing the registers. The last arguments only pick the types.
// A thread holds half of N's accumulators. Operands have K contiguous unless said otherwise.
// a, b, p, a_is and b_is number the operands after the accumulators.
#define WGMMA_OF(type, n, a_at, b_at, p_at, a_is_at, b_is_at) \
    template <u32 N, u32 a_is = K_MAJOR, u32 b_is = K_MAJOR> \
    __device__ __forceinline__ void wgmma_m64k16(float (&d)[n / 2], u64 a, u64 b, bool accumulate, type) { \
        static_assert(N == n); \
        asm volatile( \
            "{ .reg .pred p; setp.ne.b32 p, %" #p_at ", 0;\n\t" \
            "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type " {" NAMES##n "}, " \
            "%" #a_at ", %" #b_at ", p, 1, 1, %" #a_is_at ", %" #b_is_at "; }" \
            : OUT##n \
            : "l"(a), "l"(b), "r"(static_cast<u32>(accumulate)), "n"(a_is), "n"(b_is)); \
    }
// Of one byte an element: as many bytes of K, so twice as many elements, K contiguous in both operands. Each has a
// type of its own.
#define WGMMA_OF_BYTES(a_type, b_type, n, a_at, b_at, p_at) \
    template <u32 N> \
    __device__ __forceinline__ void wgmma_m64k32(float (&d)[n / 2], u64 a, u64 b, bool accumulate, a_type, b_type) { \
        static_assert(N == n); \
        asm volatile( \
            "{ .reg .pred p; setp.ne.b32 p, %" #p_at ", 0;\n\t" \
            "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32." #a_type "." #b_type " {" NAMES##n "}, " \
            "%" #a_at ", %" #b_at ", p, 1, 1; }" \
            : OUT##n \
            : "l"(a), "l"(b), "r"(static_cast<u32>(accumulate))); \
    }
#define WGMMA(n, a, b, p, a_is, b_is) \
    WGMMA_OF(bf16, n, a, b, p, a_is, b_is) WGMMA_OF(f16, n, a, b, p, a_is, b_is) \
    WGMMA_OF_BYTES(e4m3, e4m3, n, a, b, p) WGMMA_OF_BYTES(e4m3, e5m2, n, a, b, p) \
    WGMMA_OF_BYTES(e5m2, e4m3, n, a, b, p)

WGMMA(8, 4, 5, 6, 7, 8)
WGMMA(16, 8, 9, 10, 11, 12)
WGMMA(24, 12, 13, 14, 15, 16)
WGMMA(32, 16, 17, 18, 19, 20)
WGMMA(40, 20, 21, 22, 23, 24)
WGMMA(48, 24, 25, 26, 27, 28)
WGMMA(56, 28, 29, 30, 31, 32)
WGMMA(64, 32, 33, 34, 35, 36)
WGMMA(72, 36, 37, 38, 39, 40)
WGMMA(80, 40, 41, 42, 43, 44)
WGMMA(88, 44, 45, 46, 47, 48)
WGMMA(96, 48, 49, 50, 51, 52)
WGMMA(104, 52, 53, 54, 55, 56)
WGMMA(112, 56, 57, 58, 59, 60)
WGMMA(120, 60, 61, 62, 63, 64)
WGMMA(128, 64, 65, 66, 67, 68)
WGMMA(136, 68, 69, 70, 71, 72)
WGMMA(144, 72, 73, 74, 75, 76)
WGMMA(152, 76, 77, 78, 79, 80)
WGMMA(160, 80, 81, 82, 83, 84)
WGMMA(168, 84, 85, 86, 87, 88)
WGMMA(176, 88, 89, 90, 91, 92)
WGMMA(184, 92, 93, 94, 95, 96)
WGMMA(192, 96, 97, 98, 99, 100)
WGMMA(200, 100, 101, 102, 103, 104)
WGMMA(208, 104, 105, 106, 107, 108)
WGMMA(216, 108, 109, 110, 111, 112)
WGMMA(224, 112, 113, 114, 115, 116)
WGMMA(232, 116, 117, 118, 119, 120)
WGMMA(240, 120, 121, 122, 123, 124)
WGMMA(248, 124, 125, 126, 127, 128)
WGMMA(256, 128, 129, 130, 131, 132)

#undef WGMMA
#undef WGMMA_OF
#undef WGMMA_OF_BYTES
#undef ACC4
#undef ACC8
