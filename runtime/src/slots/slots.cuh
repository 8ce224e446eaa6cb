// Rows that ranks write into each other's memory, where data is its own signal. A word that a peer writes is zero until it has come,
// since words travel inverted and none that does is zero. The reader makes it zero again. So no fence and no flag stands between the
// ranks, and words may come in any order. The text before says WORLD, and includes watch.cuh.
//
// Launches write two buffers by turns. A rank ends launch n + 1 only with a word of every peer that the peer's launch n + 1 wrote, and
// that comes after the peer's launch n, which had read its buffer and made it zero. So when launch n + 2 writes the buffer of
// launch n to a peer, the peer is done with it. The ends of kernels between are the fences.
// So every launch sends every peer a word at least, and no launch touches memory before the one before it in the stream has ended.

typedef unsigned char u8;

// Memory that peers write, on every rank.
struct Slots {
    u8* first;   // rank 0's
    u64 stride;  // to the next rank's
    u64 each;    // bytes of a sender's rows
};

// Rows of one sender in a rank's buffer.
__device__ __forceinline__ u8* rows_from(const Slots& slots, u32 home, u32 sender, u32 launch) {
    const u32 at = launch % 2 * (WORLD - 1) + sender - (sender > home ? 1 : 0);
    return slots.first + home * slots.stride + at * slots.each;
}

// Two elements as they travel: another NaN for the one pair that would be zero.
__device__ __forceinline__ u32 inverted(u32 word) {
    return ~(word == 0xffffffffu ? 0x7fff7fffu : word);
}

// Relaxed: nothing but the words themselves is ordered.
template <class Words>
__device__ __forceinline__ void send(u8* at, const Words& x) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(inverted(x.words[0])),
                 "r"(inverted(x.words[1])), "r"(inverted(x.words[2])), "r"(inverted(x.words[3]))
                 : "memory");
}
// Without a branch, which would let the compiler keep ranks' elements in memory to choose among them.
template <class Words>
__device__ __forceinline__ void look_if(bool there, Words& x, const u8* at) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(x.words[0]), "+r"(x.words[1]), "+r"(x.words[2]), "+r"(x.words[3])
                 : "l"(at), "r"(static_cast<u32>(there))
                 : "memory");
}
template <class Words>
__device__ __forceinline__ u32 come(const Words& x) {
    return (x.words[0] != 0) + (x.words[1] != 0) + (x.words[2] != 0) + (x.words[3] != 0);
}

// A call, which costs its caller no copy of this text.
__device__ __noinline__ bool gave_up(const Watch& watch, u32 peer, u32 row, u32 seen, u64 start, u32 looks) {
    return gives_up(watch, 0, peer, row, seen, 4, start, looks);
}

// 16 bytes that a peer writes, or none.
struct Awaited {
    bool there;
    u8* at;
};

// Waits for what each of `at` is, which also stands for the arithmetic of `peer` and `row`, and makes it zero in memory again. What is
// not there becomes zeros. After the time limit, or when it is told to, it takes what there is.
template <u32 count, class Words, class At, class Peer, class Row>
__device__ __forceinline__ void receive(Words (&of)[count], At at, Peer peer, Row row, const Watch& watch, bool& gone) {
    u64 start = 0;
#pragma unroll
    for (u32 i = 0; i < count; ++i)
#pragma unroll
        for (u32 word = 0; word < 4; ++word) of[i].words[word] = ~0u;
    for (u32 looks = 0;; ++looks) {
        u32 absent = count, seen = 4;
#pragma unroll
        for (u32 i = 0; i < count; ++i) {
            const Awaited awaited = at(i);
            look_if(awaited.there, of[i], awaited.at);
        }
#pragma unroll
        for (u32 i = 0; i < count; ++i)
            if (come(of[i]) != 4) absent = i, seen = come(of[i]);
        if (absent == count || gone) break;
        if (looks == 0) start = global_nanoseconds();
        if (looks % 64 == 63) gone = gave_up(watch, peer(absent), row(absent), seen, start, looks + 1);
    }
    jitter();
#pragma unroll
    for (u32 i = 0; i < count; ++i) {
        const Awaited awaited = at(i);
        if (awaited.there) *reinterpret_cast<uint4*>(awaited.at) = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (u32 word = 0; word < 4; ++word) of[i].words[word] = ~of[i].words[word];
    }
}

// Moves the count of launches on. It has a word for each CTA that a launch may have, all of them how many launches there were. A CTA
// reads its own, and the CTAs of a launch move on all of them, when all threads of the CTA have read it.
__device__ __forceinline__ void launched(u32* launches, u32 launch, u32 most_ctas) {
    for (u32 cta = blockIdx.x + threadIdx.x * gridDim.x; cta < most_ctas; cta += blockDim.x * gridDim.x) launches[cta] = launch + 1;
}
__device__ __forceinline__ u32 launches_before(const u32* launches) {
    return *reinterpret_cast<const volatile u32*>(launches + blockIdx.x);
}
