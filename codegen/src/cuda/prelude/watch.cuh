// What a spin does when it has waited too long: leave a record the host can read, tell the peers, trap.

// Lives in host memory mapped into the device; the host reads it after the launch failed.
struct Stall {
    u32 written;  // 1 once the rest is valid
    u32 rank;
    u32 role;   // who waited
    u32 block;  // in which CTA
    u32 what;   // on what: a counter or a barrier, by the number the emitter gave it
    u32 index;  // which cell or stage
    u64 seen;
    u64 wanted;
};

struct Watch {
    Stall* stall;      // host-mapped, one per rank
    u32* claim;        // device memory: the first stalled thread of the rank takes it and writes the record
    char* abort;       // rank 0's abort flag; rank r's is r * abort_stride bytes further
    u64 abort_stride;
    u64 timeout_ns;
    u32 rank;
    u32 world;
};

__device__ __forceinline__ u64 global_nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Relaxed at system scope: the flag orders nothing, it only has to be seen.
__device__ __forceinline__ bool aborted(const Watch& watch) {
    u32 flag;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];"
                 : "=r"(flag)
                 : "l"(watch.abort + watch.rank * watch.abort_stride)
                 : "memory");
    return flag != 0;
}

// Never returns, so a call costs its caller no register and no copy of this text. The record is complete (system fence)
// before `written` is set and before the peers are told.
__device__ __noinline__ __attribute__((noreturn)) void stalled(const Watch& watch, u32 role, u32 what, u32 index,
        u64 seen, u64 wanted) {
    if (atomicExch(watch.claim, 1u) == 0) {
        volatile Stall* record = watch.stall;
        record->rank = watch.rank;
        record->role = role;
        record->block = blockIdx.x;
        record->what = what;
        record->index = index;
        record->seen = seen;
        record->wanted = wanted;
        __threadfence_system();
        record->written = 1;
        for (u32 rank = 0; rank < watch.world; ++rank) {
            asm volatile("st.relaxed.sys.global.u32 [%0], 1;"
                         ::"l"(watch.abort + rank * watch.abort_stride) : "memory");
        }
        __threadfence_system();
    }
    __nanosleep(1000000);  // let the first one's record reach the host before any trap ends the grid
    __trap();
}
