//! What the order of a kernel's hand-overs rests on, in a kernel with nothing else: one thread acquires a flag and lets another
//! one go on by an mbarrier, on which a load of its own completes too; the other one reads what the flag guards.
//!
//! PTX ISA, Memory Consistency Model:
//!
//! - Release and Acquire Patterns, Causality Order: an arrival at an mbarrier releases and a wait acquires, at the scope of the CTA
//!   by default, and base causality order is transitive. So who waits comes after all that the arriving thread had acquired.
//! - Program Order, Asynchronous Operations: the implicit complete-tx operation of `cp.async.bulk` is ordered only with the same
//!   instruction's accesses. Data Movement, `cp.async.bulk`: it releases at the scope of the cluster. So its bytes are there for
//!   who waits, and what its thread had acquired before is not passed on by it.
//! - Contents of the mbarrier object: the tx-count may be negative. So bytes may land before they are announced.
//!
//! Kernels arrive behind the wait ([`Order::Behind`]). The other orders are here to be seen.

use crate::gpus::loopback;
use crate::{fine, nvidia};
use counterflow::Communicator;
use counterflow::cuda::{Arguments, LaunchConfig, Module};
use counterflow::jit::{Compiler, Source, Target};
use std::time::Instant;

/// Even CTAs write 128 words, by ordinary and by bulk stores in turns, and release a flag. In odd ones a thread (0) waits and loads
/// other words, and a warp (1) waits for its barrier, reads the words both ways and says so. It has them in its L1 from before.
pub const LITMUS: Source<'_> = Source::new(
    "litmus",
    r#"typedef unsigned u32;
typedef unsigned long long u64;
constexpr u32 WORDS = 128, BYTES = WORDS * 4, PAIR = 2 * WORDS + 64;
constexpr u64 LONGEST = 2000000000;  // nanoseconds of a wait
enum Order { BEHIND, BEFORE, RELAXED, NONE };

__device__ u32 at(const void* shared) { return static_cast<u32>(__cvta_generic_to_shared(shared)); }
__device__ u64 now() { u64 time; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time)); return time; }
__device__ u32 relaxed(const u32* from) { u32 is; asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(is) : "l"(from) : "memory"); return is; }
__device__ u32 acquire(const u32* from) { u32 is; asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(is) : "l"(from) : "memory"); return is; }
__device__ void release(u32* to, u32 value) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory"); }
__device__ u32 plain(const u32* from) { u32 is; asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(is) : "l"(from) : "memory"); return is; }
__device__ void arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
__device__ void expect(u32 barrier) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(BYTES) : "memory"); }
__device__ bool passed(u32 barrier, u32 parity) {
    u32 done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    return done != 0;
}
__device__ void load(void* to, const u32* from, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(at(to)), "l"(from), "r"(BYTES), "r"(barrier) : "memory");
}
__device__ void store(u32* to, const void* from) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(at(from)), "r"(BYTES) : "memory");
    asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group 0;" ::: "memory");
}
__device__ void fence_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
__device__ void fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ void pause(u32& random) {
    random ^= random << 13, random ^= random >> 17, random ^= random << 5;
    if (random & 3) __nanosleep(random >> 8 & 511);
}

struct Told { u64 stale_plain, stale_bulk, gave_up, rounds; };

// Whether it came to pass; after two seconds, or once another wait gave up, nobody waits any more.
template <typename Test>
__device__ bool wait(Told* told, Test test) {
    for (const u64 start = now(); !test();) {
        if (*reinterpret_cast<volatile u64*>(&told->gave_up) == 0 && now() - start < LONGEST) continue;
        atomicAdd(&told->gave_up, 1ull);
        return false;
    }
    return true;
}

extern "C" __global__ void litmus(u32* memory, Told* told, u32 order, u32 rounds, u32 seed)
{
    __shared__ alignas(128) u32 staged[WORDS];
    __shared__ alignas(128) u32 loaded[WORDS];
    __shared__ alignas(8) u64 barriers[3];
    const u32 full = at(barriers), empty = full + 8, own = full + 16;
    u32* const data = memory + blockIdx.x / 2 * PAIR;
    u32* const flag = data + 2 * WORDS;
    u32* const read = flag + 32;
    u32 random = (seed + blockIdx.x * 64 + threadIdx.x / 32) * 2654435761u | 1;
    if (threadIdx.x == 0) {
        for (u32 barrier = full; barrier <= own; barrier += 8)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (blockIdx.x % 2 == 0) {  // writes
        for (u32 round = 1; round <= rounds; ++round) {
            bool late = false;
            if (threadIdx.x == 0) {
                late = !wait(told, [&] { return acquire(read) >= round - 1; });
                pause(random);
            }
            if (__syncthreads_or(late)) return;
            if (round % 2 == 1) {
                data[threadIdx.x] = round;
            } else {
                staged[threadIdx.x] = round;
                fence_shared();
                fence_global();
                __syncthreads();
                if (threadIdx.x == 0) store(data, staged);
            }
            __syncthreads();
            if (threadIdx.x == 0) pause(random), release(flag, round);
        }
    } else if (threadIdx.x == 0) {  // waits and loads
        for (u32 round = 1; round <= rounds; ++round) {
            if (!wait(told, [&] { return passed(empty, round & 1); })) return;
            pause(random);
            if (order == BEFORE) expect(full);
            if (order != NONE && !wait(told, [&] { return relaxed(flag) >= round; })) return;
            if (order == BEHIND || order == BEFORE) acquire(flag), fence_global();
            if (order != BEFORE) expect(full);
            load(loaded, data + WORDS, full);
        }
    } else if (threadIdx.x / 32 == 1) {  // reads
        const u32 lane = threadIdx.x % 32;
        u64 stale_plain = 0, stale_bulk = 0, cached = 0;
        for (u32 round = 1; round <= rounds; ++round) {
            for (u32 word = lane; word < WORDS; word += 32) cached += plain(data + word);
            pause(random);
            if (__any_sync(~0u, !wait(told, [&] { return passed(full, (round - 1) & 1); }))) return;
            for (u32 word = lane; word < WORDS; word += 32) stale_plain += plain(data + word) != round;
            fence_shared();
            __syncwarp();
            if (lane == 0) fence_global(), expect(own), load(staged, data, own);
            if (__any_sync(~0u, !wait(told, [&] { return passed(own, (round - 1) & 1); }))) return;
            for (u32 word = lane; word < WORDS; word += 32) stale_bulk += staged[word] != round;
            __syncwarp();
            if (lane == 0) release(read, round), arrive(empty);
        }
        atomicAdd(&told->stale_plain, stale_plain + (cached == ~0ull));
        atomicAdd(&told->stale_bulk, stale_bulk);
        if (lane == 0) atomicAdd(&told->rounds, static_cast<u64>(rounds));
    }
}"#,
);

/// When the thread that acquires the flag arrives at the barrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    /// Behind the wait, as kernels do.
    Behind,
    /// Before it: only the load comes after.
    Before,
    /// Behind a wait that acquires nothing.
    Relaxed,
    /// Without a wait: the others must be seen to differ from this.
    None,
}

/// CTAs that write, each with one that reads; a page of each.
const PAIRS: u32 = 32;
const PAIR: usize = 2 * 128 + 64;
const ROUNDS: u32 = 20_000;

/// What the kernel says: words that were stale, read by ordinary and by bulk loads; waits that gave up; and rounds.
fn told(rank: &Communicator, order: Order) -> Result<[u64; 4], counterflow::Error> {
    let compiled = Compiler::find()?.compile(&LITMUS, Target::Sm90a)?;
    let litmus = Module::load(rank.gpu().cuda()?, &compiled)?.function("litmus", 0)?;
    let memory = rank.zeros::<u32>([PAIRS as usize, PAIR])?;
    let told = rank.zeros::<u64>([4])?;
    rank.synchronize()?;
    let mut arguments = Arguments::new();
    arguments.address(memory.address());
    arguments.address(told.address());
    for number in [order as u32, ROUNDS, 18] {
        arguments.number(number);
    }
    let stream = rank.gpu().stream()?;
    // SAFETY: it stays inside of both tensors, which live until the stream is done.
    unsafe { litmus.launch(stream.cuda()?, LaunchConfig::of(2 * PAIRS, 128), &arguments)? };
    stream.synchronize()?;
    let said = told.read()?;
    Ok([said[0], said[1], said[2], said[3]])
}

#[test]
fn who_waits_for_a_barrier_comes_after_what_the_arriving_thread_acquired() {
    let Some(world) = loopback(1) else { return };
    for order in [Order::Behind, Order::Before, Order::Relaxed, Order::None] {
        let start = Instant::now();
        let [plain, bulk, gave_up, rounds] = fine(told(&world.ranks[0], order));
        println!(
            "  {order:?}: {plain} words stale by ordinary loads, {bulk} by bulk loads, in {rounds} rounds, {:?}",
            start.elapsed()
        );
        assert_eq!(gave_up, 0, "{order:?}: waits gave up");
        assert_eq!(rounds, u64::from(PAIRS * ROUNDS), "{order:?}");
        match order {
            Order::Behind => assert_eq!([plain, bulk], [0, 0], "stale words behind an acquire"),
            // The memory model promises nothing there, and this hardware may.
            Order::Before | Order::Relaxed => {}
            Order::None => assert!(plain > 0 && bulk > 0, "what is stale is not seen"),
        }
    }
}

#[test]
fn the_litmus_kernel_compiles() {
    if nvidia::compiler().is_some() {
        // Or it is in the cache that came without a compiler.
        fine(fine(Compiler::find()).compile(&LITMUS, Target::Sm90a));
    }
}
