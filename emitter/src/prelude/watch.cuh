// What ends a spin whose signal does not come. A wait for a counter gives up after the time limit, or when it is told
// to: it leaves a record that the host can read, tells the others, and returns as if the signal had come. From then on
// every such wait of the rank returns at once, and everything else goes on as usual with whatever bytes are there:
// loads land, barriers complete, signals go out, CTAs leave, and the context lives. No address depends on data, so
// nothing is written anywhere else. What comes out is garbage, and the host gives none of it out: it looks at the
// records first.

// Why a wait gave up.
enum Cause : u32 { NO_CAUSE, TIME_LIMIT, TOLD_BY_PEER, TOLD_BY_HOST, BARRIER };

// Lives in host memory mapped into the device.
struct Stall {
    u32 written;  // 1 once the rest is valid
    u32 cause;
    u32 rank;
    u32 kernel;  // by its number in the communicator
    u32 role;    // who waited
    u32 block;   // in which CTA
    u32 what;    // on what: a counter or a barrier, by the number the emitter gave it
    u32 index;   // which cell or stage
    u64 time;    // when it gave up, by the GPU's clock
    u64 seen;
    u64 wanted;
};

struct Watch {
    Stall* stall;      // host-mapped, one per rank
    u32* claim;        // device memory: the first stalled thread of the rank takes it and writes the record
    char* abort;       // rank 0's abort flag; rank r's is r * abort_stride bytes further
    u64 abort_stride;
    const u32* host;   // host-mapped, one per communicator: not zero once the host tells all to give up
    u64 timeout_ns;    // of a wait for a counter
    u64 barrier_ns;    // of a wait for an mbarrier: more than all counters of a launch and the work between can take
    u32 rank;
    u32 world;
    u32 kernel;
};

__device__ __forceinline__ u64 global_nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Relaxed at system scope: the flag orders nothing, it only has to be seen.
__device__ __forceinline__ bool raised(const void* flag) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value != 0;
}
__device__ __forceinline__ void raise(void* flag) {
    asm volatile("st.relaxed.sys.global.u32 [%0], 1;" ::"l"(flag) : "memory");
}

// Whether somebody of this communicator gave up.
__device__ __forceinline__ bool aborted(const Watch& watch) {
    return raised(watch.abort + watch.rank * watch.abort_stride);
}

// The rank's first record, complete (system fence) before `written` is set; and that before anybody is told.
__device__ __forceinline__ void record_stall(const Watch& watch, u32 cause, u32 role, u32 what, u32 index, u64 seen,
        u64 wanted) {
    volatile Stall* record = watch.stall;
    record->cause = cause;
    record->rank = watch.rank;
    record->kernel = watch.kernel;
    record->role = role;
    record->block = blockIdx.x;
    record->what = what;
    record->index = index;
    record->time = global_nanoseconds();
    record->seen = seen;
    record->wanted = wanted;
    __threadfence_system();
    record->written = 1;
    __threadfence_system();
    // This rank's flag first, then everybody's.
    raise(watch.abort + watch.rank * watch.abort_stride);
    for (u32 rank = 0; rank < watch.world; ++rank) raise(watch.abort + rank * watch.abort_stride);
}

// Whether the wait for a counter that began at `start` and has looked so often gives up: after the time limit, or when
// it is told to. The host's word is far away, so a wait looks there only about once in a millisecond. Says yes once the
// rank's record is complete: what the thread signals next must not make a peer believe that all is well before the host
// can know better.
__device__ __forceinline__ bool gives_up(const Watch& watch, u32 role, u32 what, u32 index, u64 seen, u64 wanted,
        u64 start, u32 looks) {
    Cause cause = TIME_LIMIT;
    if (aborted(watch)) {
        cause = TOLD_BY_PEER;
    } else if (looks % 512 == 0 && raised(watch.host)) {
        cause = TOLD_BY_HOST;
    } else if (global_nanoseconds() - start <= watch.timeout_ns) {
        return false;
    }
    if (atomicExch(watch.claim, 1u) == 0) record_stall(watch, cause, role, what, index, seen, wanted);
    while (!aborted(watch)) __nanosleep(100);
    return true;
}

// An mbarrier's wait gave up. Waits for counters return, so only a fault of the compiler gets here, and nothing could
// go on. Never returns, so a call costs its caller no register and no copy of this text.
__device__ __noinline__ __attribute__((noreturn)) void stuck(const Watch& watch, u32 role, u32 what, u32 index,
        u64 seen, u64 wanted) {
    if (atomicExch(watch.claim, 1u) == 0) record_stall(watch, BARRIER, role, what, index, seen, wanted);
    __nanosleep(1000000);  // let the record reach the host before the trap ends the grid
    __trap();
}
