// The tile scheduler: which tiles of a role's loops a CTA has. The tiles of all loops are numbered in the order in
// which the loops visit them. The claim is static: tile i of a wave is that of CTA i, so neighbouring SMs stay in step
// and L2 sees their common rows and columns once. For CTAs that move data, tiles are what they send with one signal.
//
//     for (; scheduler.has(tiles); scheduler.next()) { ... scheduler.tile() ... }
//     scheduler.end_loop(tiles);  // if another loop follows
struct TileScheduler {
    u32 index;         // of this CTA's next tile, among those of all loops
    u32 first;         // tiles of the loops before this one
    u32 rank, ctas;    // which of how many CTAs (or clusters) this one is, from tile `alone` on
    u32 early, alone;  // so many CTAs compute the tiles before that

    // All of them take part.
    __device__ __forceinline__ TileScheduler(u32 rank, u32 ctas)
        : index(rank), first(0), rank(rank), ctas(ctas), early(ctas), alone(0) {}

    // All CTAs do, but the first `comm` ones, which move data, join late: when the others have done `late_join` waves.
    static __device__ __forceinline__ TileScheduler late_comm(u32 late_join, u32 comm) {
        TileScheduler scheduler(blockIdx.x, gridDim.x);
        scheduler.early = gridDim.x - comm;
        scheduler.alone = late_join * scheduler.early;
        const bool joins = blockIdx.x < comm || late_join == 0;
        scheduler.index = joins ? scheduler.alone + blockIdx.x : blockIdx.x - comm;
        return scheduler;
    }

    // Whether the current loop, of `tiles`, has one more for this CTA.
    __device__ __forceinline__ bool has(u32 tiles) const { return index - first < tiles; }

    // Which one of the current loop it is.
    __device__ __forceinline__ u32 tile() const { return index - first; }

    // On to the CTA's next tile.
    __device__ __forceinline__ void next() {
        if (index >= alone) {
            index += ctas;
        } else {
            index = index + early < alone ? index + early : alone + rank;
        }
    }

    // Ping-pong: past the other consumer's tile, to this one's next.
    __device__ __forceinline__ void next_ping_pong() {
        next();
        next();
    }

    // The current loop, of `tiles`, is over: the next one continues the numbering.
    __device__ __forceinline__ void end_loop(u32 tiles) { first += tiles; }
};

// A tile's place in the grid of its shard.
struct Tile {
    u32 row, column;
};
