// What a traced kernel writes down: when each role came to which point of the schedule, by its GPU's clock. Only the
// text of a traced kernel includes this file, so other kernels have no word and no instruction of it.
//
// A lane is one thread of a role: the only one, or the first of a warpgroup. Each lane has a place of its own in memory,
// so an event is plain stores that nothing waits for: no atomic, and no lane ever waits for another one's. The host
// finds the places in the module by these names.
struct TraceEvent {
    u64 time;    // nanoseconds of %globaltimer
    u32 site;    // which probe of the text, by the number the emitter gave it
    u32 number;  // the item, or the counter's cell
    u64 place;   // of a signal: the bytes from the first cell in slot 0 of the symmetric heap to the counter
};
constexpr u32 TRACE_CTAS = 144;     // every SM of a full Hopper die
constexpr u32 TRACE_LANES = 8;      // four warps of one thread each, then warpgroups
constexpr u32 TRACE_EVENTS = 1024;  // of a lane; later ones are counted, not kept
extern "C" {
__device__ u32 trace_counts[TRACE_CTAS * TRACE_LANES];
__device__ TraceEvent trace_events[TRACE_CTAS * TRACE_LANES * TRACE_EVENTS];
}

struct LaneTrace {
    u32 lane;    // its place; behind the last one for threads that write nothing
    u32 count;   // of its events so far
    bool fresh;  // nothing of the item was loaded yet

    __device__ __forceinline__ LaneTrace(bool records, u32 site) : count(0), fresh(false) {
        const u32 warp = threadIdx.x / 32;
        const u32 within = warp < 4 ? warp : 3 + warp / 4;
        records = records && blockIdx.x < TRACE_CTAS && within < TRACE_LANES;
        lane = records ? blockIdx.x * TRACE_LANES + within : TRACE_CTAS * TRACE_LANES;
        event(site, 0, 0);
    }

    __device__ __forceinline__ bool records() const { return lane < TRACE_CTAS * TRACE_LANES; }

    __device__ __forceinline__ void event(u32 site, u32 number, u64 place) {
        if (!records()) return;
        if (count < TRACE_EVENTS) trace_events[lane * TRACE_EVENTS + count] = {global_nanoseconds(), site, number, place};
        // With each event, so that a launch that is given up has told how far it came.
        trace_counts[lane] = ++count;
    }

    // The lane begins an item.
    __device__ __forceinline__ void item(u32 site, u32 number) {
        fresh = true;
        event(site, number, 0);
    }

    // A stage is full: of interest for the first one of an item.
    __device__ __forceinline__ void loaded(u32 site) {
        if (fresh) event(site, 0, 0);
        fresh = false;
    }

    // All boxes that this thread handed to TMA are written: it waits for that, as it would at the end.
    __device__ __forceinline__ void stored(u32 site) {
        if (records()) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        event(site, 0, 0);
    }

    // About to signal: all that the signal is about is complete.
    __device__ __forceinline__ void signals(u32 site, const Cells& cells, const Counter* counter) {
        event(site, 0, static_cast<u64>(reinterpret_cast<const char*>(counter) - cells.heap) - cells.offset);
    }
};
