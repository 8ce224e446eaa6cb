// Attention with an online softmax, right first: a warp has one row of one head and goes over keys, or queries, one after another.
// Each sum has a fixed order, so every run has the same bits.

#include "philox.cuh"

struct Shape {
    // Positions and batch: row = position · batch + item.
    u32 positions, batch;
    // Heads of queries, heads of keys and of values, numbers of each, at most 256.
    u32 heads, groups, depth;
    u32 causal;
    float scale;
};

// A probability is kept, scaled by `kept`, if its number is below `below`. `drops` says whether any may be dropped.
struct Drop {
    u64 seed, offset;
    u32 below, drops;
    float kept;
};

constexpr u32 MOST = 8;  // of a head's numbers for each lane

// What a probability is multiplied by: 1 where nothing is dropped.
__device__ __forceinline__ Num kept(const Drop& drop, const Shape& of, u32 item, u32 head, u32 query, u32 key) {
    if (!drop.drops) return 1.f;
    const u64 at = ((u64(item) * of.heads + head) * of.positions + query) * of.positions + key, group = at / 4;
    const uint4 counter = make_uint4(u32(drop.offset), u32(drop.offset >> 32), u32(group), u32(group >> 32));
    const uint4 drawn = philox(counter, make_uint2(u32(drop.seed), u32(drop.seed >> 32)));
    const u32 number = at % 4 == 0 ? drawn.x : at % 4 == 1 ? drawn.y : at % 4 == 2 ? drawn.z : drawn.w;
    return number < drop.below ? Num(drop.kept) : Num(0.f);
}

// One head of one row: lane l has numbers l, l + 32, and so on.
struct Row {
    Num of[MOST];
    __device__ __forceinline__ void zero() {
#pragma unroll
        for (u32 i = 0; i < MOST; ++i) of[i] = 0.f;
    }
    __device__ __forceinline__ void load(const u16* from, u32 depth) {
#pragma unroll
        for (u32 i = 0; i < MOST; ++i) {
            const u32 at = 32 * i + threadIdx.x % 32;
            of[i] = at < depth ? from_bf16(from[at]) : Num(0.f);
        }
    }
    __device__ __forceinline__ void store(u16* to, u32 depth) const {
#pragma unroll
        for (u32 i = 0; i < MOST; ++i) {
            const u32 at = 32 * i + threadIdx.x % 32;
            if (at < depth) to[at] = static_cast<u16>(to_bf16(of[i]));
        }
    }
    // The sum of products in every lane: those of a lane in order, then lanes 16, 8, 4, 2 and 1 apart.
    __device__ __forceinline__ Num dot(const Row& other) const {
        Num sum = 0.f;
#pragma unroll
        for (u32 i = 0; i < MOST; ++i) sum = sum + of[i] * other.of[i];
#pragma unroll
        for (u32 apart = 16; apart > 0; apart /= 2) sum = sum + Num(__shfl_xor_sync(0xffffffffu, sum.v, apart));
        return sum;
    }
    __device__ __forceinline__ void add(Num by, const Row& other) {
#pragma unroll
        for (u32 i = 0; i < MOST; ++i) of[i] = of[i] + by * other.of[i];
    }
    __device__ __forceinline__ void multiply(Num by) {
#pragma unroll
        for (u32 i = 0; i < MOST; ++i) of[i] = of[i] * by;
    }
};

// Where a head of a row is in a tensor of queries, keys and values side by side.
struct Qkv {
    const Shape& of;
    __device__ __forceinline__ u64 row(u32 position, u32 item) const {
        return (u64(position) * of.batch + item) * (of.heads + 2 * of.groups) * of.depth;
    }
    __device__ __forceinline__ u64 query(u32 position, u32 item, u32 head) const { return row(position, item) + head * of.depth; }
    __device__ __forceinline__ u64 key(u32 position, u32 item, u32 group) const {
        return row(position, item) + (of.heads + group) * of.depth;
    }
    __device__ __forceinline__ u64 value(u32 position, u32 item, u32 group) const {
        return row(position, item) + (of.heads + of.groups + group) * of.depth;
    }
};

// `logs`: of each row and head the logarithm of the sum of its exponentials, for the backward pass.
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_forward(const u16* qkv, u16* out, float* logs, Shape of, Drop drop) {
    const u64 own = (u64(blockIdx.x) * THREADS + threadIdx.x) / 32;
    if (own >= u64(of.positions) * of.batch * of.heads) return;
    const u32 head = own % of.heads, item = own / of.heads % of.batch, at = own / of.heads / of.batch;
    const u32 group = head / (of.heads / of.groups), keys = of.causal ? at + 1 : of.positions;
    const Qkv place{of};
    Row q, k, v, sum;
    q.load(qkv + place.query(at, item, head), of.depth);
    sum.zero();
    Num most = __uint_as_float(0xff800000u), all = 0.f;
    for (u32 key = 0; key < keys; ++key) {
        k.load(qkv + place.key(key, item, group), of.depth);
        v.load(qkv + place.value(key, item, group), of.depth);
        const Num score = q.dot(k) * Num(of.scale), next = larger(most, score);
        const Num less = exp_of(most - next), p = exp_of(score - next);
        all = all * less + p;
        sum.multiply(less);
        sum.add(p * kept(drop, of, item, head, at, key), v);
        most = next;
    }
    sum.multiply(Num(1.f) / all);
    sum.store(out + own * of.depth, of.depth);
    if (threadIdx.x % 32 == 0) logs[own] = (most + ln_of(all)).v;
}

// The gradient of queries; and `deltas`, of each row and head the sum of output times gradient, for that of keys and values.
extern "C" __global__ void __launch_bounds__(THREADS) attention_queries(const u16* qkv, const u16* out, const u16* dout, const float* logs,
                                                                        float* deltas, u16* dqkv, Shape of, Drop drop) {
    const u64 own = (u64(blockIdx.x) * THREADS + threadIdx.x) / 32;
    if (own >= u64(of.positions) * of.batch * of.heads) return;
    const u32 head = own % of.heads, item = own / of.heads % of.batch, at = own / of.heads / of.batch;
    const u32 group = head / (of.heads / of.groups), keys = of.causal ? at + 1 : of.positions;
    const Qkv place{of};
    Row q, k, v, o, d, dq;
    q.load(qkv + place.query(at, item, head), of.depth);
    o.load(out + own * of.depth, of.depth);
    d.load(dout + own * of.depth, of.depth);
    const Num delta = o.dot(d), log = logs[own];
    dq.zero();
    for (u32 key = 0; key < keys; ++key) {
        k.load(qkv + place.key(key, item, group), of.depth);
        v.load(qkv + place.value(key, item, group), of.depth);
        const Num p = exp_of(q.dot(k) * Num(of.scale) - log);
        const Num of_p = d.dot(v) * kept(drop, of, item, head, at, key);
        dq.add(p * (of_p - delta) * Num(of.scale), k);
    }
    dq.store(dqkv + place.query(at, item, head), of.depth);
    if (threadIdx.x % 32 == 0) deltas[own] = delta.v;
}

// The gradients of keys and values: over all heads of queries of a group, and their rows, in order.
extern "C" __global__ void __launch_bounds__(THREADS) attention_keys(const u16* qkv, const u16* dout, const float* logs, const float* deltas,
                                                                     u16* dqkv, Shape of, Drop drop) {
    const u64 own = (u64(blockIdx.x) * THREADS + threadIdx.x) / 32;
    if (own >= u64(of.positions) * of.batch * of.groups) return;
    const u32 group = own % of.groups, item = own / of.groups % of.batch, at = own / of.groups / of.batch;
    const u32 each = of.heads / of.groups;
    const Qkv place{of};
    Row q, k, v, d, dk, dv;
    k.load(qkv + place.key(at, item, group), of.depth);
    v.load(qkv + place.value(at, item, group), of.depth);
    dk.zero(), dv.zero();
    for (u32 head = group * each; head < (group + 1) * each; ++head)
        for (u32 query = of.causal ? at : 0; query < of.positions; ++query) {
            const u64 row = (u64(query) * of.batch + item) * of.heads + head;
            q.load(qkv + place.query(query, item, head), of.depth);
            d.load(dout + row * of.depth, of.depth);
            const Num p = exp_of(q.dot(k) * Num(of.scale) - Num(logs[row]));
            const Num keep = kept(drop, of, item, head, query, at);
            const Num of_p = d.dot(v) * keep;
            dv.add(p * keep, d);
            dk.add(p * (of_p - Num(deltas[row])) * Num(of.scale), q);
        }
    dk.store(dqkv + place.key(at, item, group), of.depth);
    dv.store(dqkv + place.value(at, item, group), of.depth);
}
