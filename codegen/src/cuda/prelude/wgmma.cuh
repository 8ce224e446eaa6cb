// Warpgroup matrix multiply: D[64][n] (+)= A[64][16] * B[n][16]^T, A and B in shared memory, D in f32 registers.
// Four consecutive warps issue it together; it runs on the async proxy until waited for.
//
// Register map: warp v of the group holds rows 16v..16v+15. d[4j], d[4j+1] are row lane/4, columns 8j + 2(lane%4) and
// the next; d[4j+2], d[4j+3] are the same columns eight rows down.

// Shared-memory descriptor of a K-major tile in 128-byte swizzle: rows of 64 16-bit elements, 1024-byte aligned, eight
// rows (1024 bytes) from one swizzle atom to the next. Steps of 16 along K add WGMMA_K_STEP, of 64 rows WGMMA_64_ROWS.
// The address goes through a shuffle so that it is known warp-uniform and lives in uniform registers.
__device__ __forceinline__ u64 wgmma_descriptor(u32 shared) {
    const u32 low = __shfl_sync(~0u, (shared >> 4) | (1u << 16), 0);
    return 0x4000004000000000ull | low;
}
constexpr u64 WGMMA_K_STEP = 32 >> 4;
constexpr u64 WGMMA_64_ROWS = 64 * 128 >> 4;

// What is contiguous in an operand's memory: K, or its rows (then the multiply transposes it on the way in).
enum Contiguous : u32 { K_CONTIGUOUS, ROWS_CONTIGUOUS };

// Descriptor of a tile whose rows are contiguous: blocks of 64 of them, `block` bytes each, with a line of 128 bytes for
// every K; eight lines (1024 bytes) from one swizzle atom to the next. Steps of 16 along K add 16 lines, of 64 rows a block.
__device__ __forceinline__ u64 wgmma_descriptor_rows(u32 shared, u32 block) {
    const u32 low = __shfl_sync(~0u, (shared >> 4) | (block >> 4 << 16), 0);
    return 0x4000004000000000ull | low;
}
constexpr u64 WGMMA_ROWS_K_STEP = 16 * 128 >> 4;

// Before the first multiply of a batch: the accumulators' earlier register accesses are done. From here to the wait no
// instruction may name an accumulator.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Close the batch.
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// All but the latest `pending` batches are done: this warp no longer reads their stages, their sums are in registers.
template <u32 pending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

#define ACC4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ACC16(d, i) ACC4(d, i), ACC4(d, i + 4), ACC4(d, i + 8), ACC4(d, i + 12)

// accumulate = false starts from zero and saves clearing the registers. The last argument only picks the type.
// The number of accumulators picks n: a thread holds n / 2 of them. Operands have K contiguous unless said otherwise.
template <u32 a_has = K_CONTIGUOUS, u32 b_has = K_CONTIGUOUS>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[128], u64 a, u64 b, bool accumulate, bf16) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %130, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, p, 1, 1, %131, %132; }"
        : ACC16(d, 0), ACC16(d, 16), ACC16(d, 32), ACC16(d, 48), ACC16(d, 64), ACC16(d, 80), ACC16(d, 96), ACC16(d, 112)
        : "l"(a), "l"(b), "r"(static_cast<u32>(accumulate)), "n"(a_has), "n"(b_has));
}

template <u32 a_has = K_CONTIGUOUS, u32 b_has = K_CONTIGUOUS>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[128], u64 a, u64 b, bool accumulate, f16) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %130, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, p, 1, 1, %131, %132; }"
        : ACC16(d, 0), ACC16(d, 16), ACC16(d, 32), ACC16(d, 48), ACC16(d, 64), ACC16(d, 80), ACC16(d, 96), ACC16(d, 112)
        : "l"(a), "l"(b), "r"(static_cast<u32>(accumulate)), "n"(a_has), "n"(b_has));
}

template <u32 a_has = K_CONTIGUOUS, u32 b_has = K_CONTIGUOUS>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[96], u64 a, u64 b, bool accumulate, bf16) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %98, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
        "}, %96, %97, p, 1, 1, %99, %100; }"
        : ACC16(d, 0), ACC16(d, 16), ACC16(d, 32), ACC16(d, 48), ACC16(d, 64), ACC16(d, 80)
        : "l"(a), "l"(b), "r"(static_cast<u32>(accumulate)), "n"(a_has), "n"(b_has));
}

template <u32 a_has = K_CONTIGUOUS, u32 b_has = K_CONTIGUOUS>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[96], u64 a, u64 b, bool accumulate, f16) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %98, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
        "}, %96, %97, p, 1, 1, %99, %100; }"
        : ACC16(d, 0), ACC16(d, 16), ACC16(d, 32), ACC16(d, 48), ACC16(d, 64), ACC16(d, 80)
        : "l"(a), "l"(b), "r"(static_cast<u32>(accumulate)), "n"(a_has), "n"(b_has));
}

template <u32 a_has = K_CONTIGUOUS, u32 b_has = K_CONTIGUOUS>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[64], u64 a, u64 b, bool accumulate, bf16) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, %67, %68; }"
        : ACC16(d, 0), ACC16(d, 16), ACC16(d, 32), ACC16(d, 48)
        : "l"(a), "l"(b), "r"(static_cast<u32>(accumulate)), "n"(a_has), "n"(b_has));
}

template <u32 a_has = K_CONTIGUOUS, u32 b_has = K_CONTIGUOUS>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[64], u64 a, u64 b, bool accumulate, f16) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, %67, %68; }"
        : ACC16(d, 0), ACC16(d, 16), ACC16(d, 32), ACC16(d, 48)
        : "l"(a), "l"(b), "r"(static_cast<u32>(accumulate)), "n"(a_has), "n"(b_has));
}

#undef ACC16
#undef ACC4
