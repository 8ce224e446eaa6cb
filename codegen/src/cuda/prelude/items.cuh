// Which items of the running order a CTA does. Item i of a wave is block i's, fixed in advance: neighbouring SMs stay in
// step and L2 sees their common rows and columns once.

// The first `comm` blocks move data before they take part: the others do `join` waves of items alone, then all do.
__device__ __forceinline__ u32 first_item(u32 join, u32 comm) {
    const u32 others = gridDim.x - comm;
    return blockIdx.x >= comm && join != 0 ? blockIdx.x - comm : join * others + blockIdx.x;
}
__device__ __forceinline__ u32 next_item(u32 index, u32 join, u32 comm) {
    const u32 others = gridDim.x - comm, joined = join * others;
    if (index >= joined) return index + gridDim.x;
    return index + others < joined ? index + others : joined + blockIdx.x;
}

// An item's place in the grid of its chunk.
struct Place {
    u32 row, column;
};
