// Parts of tiles: a tile over the rows of several shards goes to their owners, to each the rows that are its own. TMA
// cannot store such a part. A store that begins before its tensor is an illegal instruction (a load is not), and a box
// that begins within its tile ends behind it. So all lanes of a warp store the rows, 16 bytes each: rows of a tensor
// are whole 16 bytes, and its boxes begin at multiples of them.

// What a map is for TMA, this is for ordinary stores: where a tensor lies on each rank.
struct EachRank {
    char* at;     // on the first rank
    u64 line;     // bytes from a row to the next
    u64 slab;     // bytes from a slot to the next
    u64 stride;   // bytes from a rank to the next
    u64 columns;
};

__device__ __forceinline__ uint4 shared_sixteen(u32 address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
    return v;
}

// The rows of a box that a shard has: from its row 0 on, before which the box may begin (`row` is below zero then,
// modulo 2^32), up to `end`. Weak stores, as data are: the warp meets, then its first lane's signal releases them.
// Whoever reads them by TMA has its fence behind the wait. Several at a time would take registers that the warps that
// multiply lack: 128x256 spills.
template <typename T, u32 rows, u32 columns>
__device__ __forceinline__ void store_part(const EachRank& to, u32 shared, u32 column, u32 row, u32 end, u32 shard,
        u32 rank) {
    constexpr u32 line = columns * sizeof(T), in_line = line / 16;
    const u32 first = max(-int(row), 0), last = max(min(int(rows), int(end - row)), int(first));
    char* const start = to.at + rank * to.stride + shard * to.slab + column * u64(sizeof(T));
    jitter();
    #pragma unroll 1
    for (u32 at = first * in_line + threadIdx.x % 32; at < last * in_line; at += 32) {
        const u32 down = at / in_line, across = at % in_line;
        if (column + across * u32(16 / sizeof(T)) >= to.columns) continue;
        const uint4 v = shared_sixteen(subtile_address<line / 2>(shared, down, across));
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                     ::"l"(start + (row + down) * to.line + across * 16), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                     : "memory");
    }
}
