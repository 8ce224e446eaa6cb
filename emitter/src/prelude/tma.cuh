// The tensor memory accelerator. Every map is 4-D {columns, rows in a shard, shard or slot, rank}: a peer is a
// coordinate, and what lies outside the map is read as zero and never written.
// Own memory in one matrix has shard 0 and rank 0.
// One thread issues; bulk groups belong to that thread, so the same thread commits and waits.

// Fetch the descriptor early; the first use would otherwise wait for it.
__device__ __forceinline__ void tma_prefetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Global (any GPU of the map) to shared. Completes on `barrier` with the whole box's bytes, clipped or not.
__device__ __forceinline__ void tma_load(u32 shared, const TensorMap& map, u32 barrier, u32 column, u32 row,
        u32 shard = 0, u32 rank = 0) {
    jitter();
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared), "l"(&map), "r"(barrier), "r"(column), "r"(row),
        "r"(shard), "r"(rank)
        : "memory");
}

// The same into the CTAs of `mask`, at the same shared offset; completes on each one's barrier at that offset.
__device__ __forceinline__ void tma_load_multicast(u32 shared, const TensorMap& map, u32 barrier, u16 mask, u32 column,
        u32 row, u32 shard = 0, u32 rank = 0) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared), "l"(&map), "r"(barrier), "r"(column), "r"(row),
        "r"(shard), "r"(rank), "h"(mask)
        : "memory");
}

// A box of `all` rows, or by partial boxes the first `rows` of them, where the others lie outside the map: there, a row
// takes longer than inside. What is not loaded stays as it was; whoever multiplies it stores no row of that.
template <u32 partial_box_rows, u32 all>
__device__ __forceinline__ void tma_load_partial(u32 shared, const TensorMap& map, const TensorMap& partial_box,
        u32 rows, u32 barrier, u32 column, u32 row, u32 shard = 0, u32 rank = 0) {
    if (rows == all) {
        tma_load(shared, map, barrier, column, row, shard, rank);
    } else {
        #pragma unroll 1
        for (u32 at = 0; at < rows; at += partial_box_rows)
            tma_load(shared + at * 128, partial_box, barrier, column, row + at, shard, rank);
    }
}

// The same into the CTAs of `mask`.
template <u32 partial_box_rows, u32 all>
__device__ __forceinline__ void tma_load_multicast_partial(u32 shared, const TensorMap& map,
        const TensorMap& partial_box, u32 rows, u32 barrier, u16 mask, u32 column, u32 row, u32 shard = 0,
        u32 rank = 0) {
    if (rows == all) {
        tma_load_multicast(shared, map, barrier, mask, column, row, shard, rank);
    } else {
        #pragma unroll 1
        for (u32 at = 0; at < rows; at += partial_box_rows)
            tma_load_multicast(shared + at * 128, partial_box, barrier, mask, column, row + at, shard, rank);
    }
}

// Shared to global (any GPU of the map). The shared data must be visible to the async proxy: see fence_async_shared.
__device__ __forceinline__ void tma_store(const TensorMap& map, u32 shared, u32 column, u32 row, u32 shard = 0,
        u32 rank = 0) {
    jitter();
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
                 "r"(shared), "r"(column), "r"(row), "r"(shard), "r"(rank)
                 : "memory");
}

// The same, added to what is there, in the map's type, one rounding an add; unordered among senders. PTX defines these
// additions as relaxed at the scope of one GPU. A sum that several GPUs send to relies on more: that the memory of its
// owner does them all in one place, one after another. The tests hold that with four senders to a tile.
__device__ __forceinline__ void tma_reduce_add(const TensorMap& map, u32 shared, u32 column, u32 row, u32 shard = 0,
        u32 rank = 0) {
    jitter();
    asm volatile("cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
                 ::"l"(&map),
                 "r"(shared), "r"(column), "r"(row), "r"(shard), "r"(rank)
                 : "memory");
}

// Close the group of stores issued so far.
__device__ __forceinline__ void tma_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// All but the latest `pending` groups have READ their shared memory: it may be overwritten. Says nothing about the
// destination; never signal after this one.
template <u32 pending>
__device__ __forceinline__ void tma_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
    jitter();
}

// All but the latest `pending` groups are complete: their writes are visible to this thread, and so to whoever
// acquires what this thread releases next.
template <u32 pending>
__device__ __forceinline__ void tma_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
    jitter();
}

// Ordinary accesses of shared memory, before; TMA or wgmma on it, after. Run by each accessing thread before it arrives
// on the barrier the TMA-issuing thread waits for, or, where all are reads, by that thread when it has waited. The
// unqualified form would fence the whole GPU.
__device__ __forceinline__ void fence_async_shared() {
    jitter();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// An acquire of global data (a counter), before; TMA on that data, after.
__device__ __forceinline__ void fence_async_global() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}
