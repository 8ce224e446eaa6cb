// What test builds add, by options of the JIT and never by a kernel's text: random pauses (JITTER, a seed) and a record
// of what happened when (TRACE). In other builds every function here is empty and leaves no instruction.

// Stands where two agents could only be in order by luck. Mostly it does nothing, often it waits for less than a
// microsecond, and rarely for up to 32. The clock makes every call another draw.
__device__ __forceinline__ void jitter() {
#ifdef JITTER
    u32 draw;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(draw));
    draw ^= JITTER * 0x9e3779b9u ^ blockIdx.x * 0x85ebca6bu ^ threadIdx.x / 32 * 0xc2b2ae35u;
    draw = (draw ^ draw >> 16) * 0x7feb352du;
    draw = (draw ^ draw >> 15) * 0x846ca68bu;
    draw ^= draw >> 16;
    if (draw % 8 == 0) __nanosleep(draw % 2048 == 0 ? draw >> 17 : draw >> 23);
#endif
}

#ifdef TRACE
// What one thread saw, by its GPU's clock. The host finds the record in the module by these names.
struct Event {
    u64 time;
    u32 kind;
    u32 block;
    u32 thread;
    u32 at[5];  // STORE: column, row, chunk, rank, which map; LATE: what, cell
};
enum EventKind : u32 { EVENT_STORE, EVENT_STORED, EVENT_SENT, EVENT_LATE };
constexpr u32 TRACED = 1 << 17;  // later ones are counted, not kept
extern "C" {
__device__ u32 trace_count;
__device__ Event trace_events[TRACED];
}
__device__ __forceinline__ void trace(u64 time, u32 kind, u32 a = 0, u32 b = 0, u32 c = 0, u32 d = 0, u32 e = 0) {
    const u32 index = atomicAdd(&trace_count, 1u);
    if (index < TRACED) trace_events[index] = {time, kind, blockIdx.x, threadIdx.x, {a, b, c, d, e}};
}
#endif

// A box was handed to TMA.
__device__ __forceinline__ void trace_store(const TensorMap& map, u32 column, u32 row, u32 chunk, u32 rank) {
#ifdef TRACE
    trace(global_nanoseconds(), EVENT_STORE, column, row, chunk, rank, static_cast<u32>(reinterpret_cast<u64>(&map)));
#endif
}

// The boxes of this thread were read, all but `pending` groups. If all: in a trace build they are also written, and the
// time is after that.
template <u32 pending>
__device__ __forceinline__ void trace_read() {
#ifdef TRACE
    if constexpr (pending == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    trace(global_nanoseconds(), pending == 0 ? EVENT_STORED : EVENT_SENT);
#endif
}

// The time before a look at a counter, and what that look found: if it had not come, it came later than that.
__device__ __forceinline__ u64 trace_clock() {
#ifdef TRACE
    return global_nanoseconds();
#else
    return 0;
#endif
}
__device__ __forceinline__ void trace_late(u64 time, u32 what, u32 cell) {
#ifdef TRACE
    trace(time, EVENT_LATE, what, cell);
#endif
}
