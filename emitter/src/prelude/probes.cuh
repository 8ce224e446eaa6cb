// What test builds add, by an option of the JIT and never by a kernel's text: random pauses (JITTER, a seed). In other
// builds the function is empty and leaves no instruction.

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
