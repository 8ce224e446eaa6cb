// Who runs what, and when: one lane of a warp, the registers of a warpgroup, the CTAs of a cluster, launches that
// overlap.

// The warp's index in the CTA, made uniform by a shuffle: role branches on it stay warp-uniform for ptxas.
__device__ __forceinline__ u32 warp_index() {
    return __shfl_sync(~0u, threadIdx.x / 32, 0);
}

// True in one lane. Unlike `lane == 0` ptxas knows that exactly one lane is left, so a TMA instruction behind it
// needs no loop over lanes. The branch around it must be warp-uniform.
__device__ __forceinline__ bool elect_one() {
    u32 elected;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(elected));
    return elected != 0;
}

// Move registers between warpgroups. All four warps run it; `take` blocks until others gave enough.
template <u32 count>
__device__ __forceinline__ void reg_dealloc() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <u32 count>
__device__ __forceinline__ void reg_alloc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Every thread of the cluster is here. The arrival is relaxed: a releasing one would be a GPU-wide fence of each
// thread. At the start: peers' barriers are initialised; mbarrier_init_fence is the release of that. At the end: no CTA
// leaves while a peer may still arrive on its barriers or write its shared memory. Each of those accesses completed a
// phase that its receiver waited for before it came here, so none is under way.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.relaxed;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

// Once every CTA of this launch has done it (or left), CTAs of the next one may become resident, if that launch was
// made with programmatic stream serialization. It says nothing of memory, so the first instruction is the best place:
// all our CTAs are resident then and need nothing more, and the next ones' prologue fills the SMs that we leave.
__device__ __forceinline__ void launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;");
}

// Until all launches before on the stream are complete and what they wrote is visible; at once where none overlaps.
// Every thread, before it touches global memory, but for loads of what no launch writes (declared constant): what it
// reads a launch before may still write, and what it writes one may still read. And no thread leaves without it: the
// next launch waits for our end alone, and takes it for theirs.
// Where it stands, loads of a later line must not be moved up: they are ordinary ones, never ld.global.nc, which
// promises that nothing writes while the kernel runs.
__device__ __forceinline__ void wait_prerequisites() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
