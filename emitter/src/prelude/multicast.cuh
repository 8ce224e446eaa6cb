// Memory of every rank at one address. Sections are those of PTX ISA 9.4, read in November 2026. A multicast address is
// touched by `multimem` instructions alone; any other access of it is undefined (8.2 "Multimem Addresses", 9.7.10.15
// "multimem.ld_reduce, multimem.st, multimem.red"). A store leaves a rank once, and the NVSwitch writes it on every
// rank, so it comes back once. A sum reads every rank's copy, this rank's too: the NVSwitch adds them, and one arrives.
//
// All lanes of a warp work: 16 bytes each, the widest there is (.v4 of 32 bits). Rows of a tensor are whole 16 bytes,
// and its boxes begin at multiples of them, so no access is cut or misaligned.

// What a map is for TMA, this is for multimem: where a tensor lies, and where it ends.
struct EveryCopy {
    char* at;    // its multicast address
    u64 line;    // bytes from a row to the next
    u64 slab;    // bytes from a shard or slot to the next
    u32 columns;
    u32 rows;    // of a shard
};

// An access by a multicast address and one by the rank's own address of the same memory are of two proxies. This stands
// between them on the path from one to the other (PTX ISA 8.6 "Proxies" and "Causality Order": aliases need an alias
// proxy fence along it). The warp that uses the multicast address has it on both sides:
// behind each wait that guards it, and before each signal that announces it.
__device__ __forceinline__ void fence_alias() {
    jitter();
    asm volatile("fence.proxy.alias;" ::: "memory");
}

// What a lane does for each 16 bytes of a box that exist: their address in the swizzled box, and in every copy.
template <typename T, u32 rows, u32 columns, typename Each>
__device__ __forceinline__ void each_sixteen(const EveryCopy& copies, u32 shared, u32 column, u32 row, u32 shard,
        Each each) {
    constexpr u32 line = columns * sizeof(T), in_line = line / 16;
    const u32 lane = threadIdx.x % 32;
    char* const first = copies.at + shard * copies.slab + column * u64(sizeof(T));
    jitter();
    #pragma unroll 4
    for (u32 at = lane; at < rows * in_line; at += 32) {
        const u32 down = at / in_line, across = at % in_line;
        if (row + down < copies.rows && column + across * u32(16 / sizeof(T)) < copies.columns)
            each(subtile_address<line / 2>(shared, down, across), first + (row + down) * copies.line + across * 16);
    }
}

// A box to the same place on every rank. Bits are moved as they are, whatever the type: so also FP8. Weak, as data is:
// a signal orders it.
template <typename T, u32 rows, u32 columns>
__device__ __forceinline__ void multicast_store(const EveryCopy& to, u32 shared, u32 column, u32 row, u32 shard) {
    each_sixteen<T, rows, columns>(to, shared, column, row, shard, [](u32 from, char* at) {
        const uint4 v = shared_sixteen(from);
        asm volatile("multimem.st.weak.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z),
                     "r"(v.w) : "memory");
    });
}

// One add to what lies at an address on every rank, one rounding each, unordered among senders. There is no weak form;
// relaxed at system scope, as the adds of several GPUs meet there.
__device__ __forceinline__ void multimem_add(char* at, uint4 v, bf16) {
    asm volatile("multimem.red.relaxed.sys.global.add.v4.bf16x2 [%0], {%1, %2, %3, %4};"
                 ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void multimem_add(char* at, uint4 v, f16) {
    asm volatile("multimem.red.relaxed.sys.global.add.v4.f16x2 [%0], {%1, %2, %3, %4};"
                 ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void multimem_add(char* at, uint4 v, float) {
    asm volatile("multimem.red.relaxed.sys.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// The same as multicast_store, added to what is there.
template <typename T, u32 rows, u32 columns>
__device__ __forceinline__ void multicast_add(const EveryCopy& to, u32 shared, u32 column, u32 row, u32 shard) {
    each_sixteen<T, rows, columns>(to, shared, column, row, shard, [](u32 from, char* at) {
        multimem_add(at, shared_sixteen(from), T());
    });
}

// The sum of what lies at an address on every rank. The order of the additions is the switch's own, and PTX does not
// say it; 16-bit floats are added with the precision of f32, and the sum is rounded once. Relaxed at system scope: no
// copy of an SM's own may answer it.
__device__ __forceinline__ uint4 multimem_sum(const char* at, bf16) {
    uint4 v;
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ uint4 multimem_sum(const char* at, f16) {
    uint4 v;
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.f16x2 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ uint4 multimem_sum(const char* at, float) {
    uint4 v;
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
    return v;
}

// A box of sums into shared memory, by ordinary stores: whoever reads it by ordinary loads waits for an arrival after
// the warp has met. What does not exist is left as it was, and ends in rows and columns that nobody stores.
// A sum comes back through the switch, so a lane has two under way. Four would take registers that a loader lacks.
template <typename T, u32 rows, u32 columns>
__device__ __forceinline__ void multicast_sum(u32 shared, const EveryCopy& from, u32 column, u32 row, u32 shard) {
    constexpr u32 in_line = columns * sizeof(T) / 16, all = rows * in_line, ahead = 2;
    const char* const first = from.at + shard * from.slab + column * u64(sizeof(T));
    const auto exists = [&](u32 at) {
        return at < all && row + at / in_line < from.rows && column + at % in_line * u32(16 / sizeof(T)) < from.columns;
    };
    jitter();
    #pragma unroll 1
    for (u32 begin = threadIdx.x % 32; begin < all; begin += 32 * ahead) {
        uint4 sums[ahead];
        #pragma unroll
        for (u32 i = 0; i < ahead; ++i) {
            const u32 at = begin + 32 * i;
            if (exists(at)) sums[i] = multimem_sum(first + (row + at / in_line) * from.line + at % in_line * 16, T());
        }
        #pragma unroll
        for (u32 i = 0; i < ahead; ++i) {
            const u32 at = begin + 32 * i;
            const u32 to = subtile_address<columns * sizeof(T) / 2>(shared, at / in_line, at % in_line);
            if (exists(at))
                asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                             ::"r"(to), "r"(sums[i].x), "r"(sums[i].y), "r"(sums[i].z), "r"(sums[i].w) : "memory");
        }
    }
}

// A signal to one cell of every rank, by one instruction: release at system scope, as counter_add. Each rank polls the
// cell at its own address, hence the fence behind it. No other signal adds to the cell there: PTX promises that
// overlapping atomic operations are whole (8.7.2), and does not say that an add by the switch is one of them.
__device__ __forceinline__ void counter_add_everywhere(char* heap_everywhere, const Cells& cells, u32 cell,
        u64 amount) {
    Counter* const counter = reinterpret_cast<Counter*>(heap_everywhere + cells.offset) + cell;
    jitter();
    asm volatile("multimem.red.release.sys.global.add.u64 [%0], %1;\n\tfence.proxy.alias;"
                 ::"l"(&counter->count), "l"(amount) : "memory");
}
