// The prelude's parts that need no watch.
#include "../../codegen/src/cuda/prelude/types.cuh"
__device__ __forceinline__ void jitter() {}
struct Watch {
    u64 timeout_ns;
};
__device__ __forceinline__ u64 global_nanoseconds() { return 0; }
__device__ __forceinline__ void stalled(const Watch&, u32, u32, u32, u64, u64) {}
#include "../../codegen/src/cuda/prelude/mbarrier.cuh"
#include "../../codegen/src/cuda/prelude/wgmma.cuh"
