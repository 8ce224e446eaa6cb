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
// Whoever reads them by TMA has its fence behind the wait. A lane has so many loads under way together.
template <typename T, u32 rows, u32 columns>
__device__ __forceinline__ void store_part(const EachRank& to, u32 shared, u32 column, u32 row, u32 end, u32 chunk,
        u32 rank) {
    constexpr u32 AHEAD = 4, line = columns * sizeof(T), in_line = line / 16;
    const u32 first = max(-int(row), 0), last = max(min(int(rows), int(end - row)), int(first));
    char* const start = to.at + rank * to.stride + chunk * to.slab + column * u64(sizeof(T));
    const auto exists = [&](u32 at) {
        return at < last * in_line && column + at % in_line * u32(16 / sizeof(T)) < to.columns;
    };
    jitter();
    #pragma unroll 1
    for (u32 begin = first * in_line + threadIdx.x % 32; begin < last * in_line; begin += 32 * AHEAD) {
        uint4 held[AHEAD];
        #pragma unroll
        for (u32 i = 0; i < AHEAD; ++i) {
            const u32 at = begin + 32 * i;
            if (exists(at)) held[i] = shared_sixteen(subtile_address<line / 2>(shared, at / in_line, at % in_line));
        }
        #pragma unroll
        for (u32 i = 0; i < AHEAD; ++i) {
            const u32 at = begin + 32 * i;
            char* const place = start + (row + at / in_line) * to.line + at % in_line * 16;
            if (exists(at))
                asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                             ::"l"(place), "r"(held[i].x), "r"(held[i].y), "r"(held[i].z), "r"(held[i].w) : "memory");
        }
    }
}
