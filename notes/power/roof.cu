// What the tensor cores reach at the power limit: wgmma alone over operands that stay in shared memory, and with the
// loads of each step from L2, for several tiles and clusters, back to back for seconds. See NOTES.md.
#include <cuda_runtime.h>
#include <nvml.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include "roof_prelude.cuh"

static void rt(cudaError_t r, int line) {
    if (r) printf("roof.cu:%d: %s\n", line, cudaGetErrorString(r)), exit(1);
}
#define RT(x) rt(x, __LINE__)
#define ACC8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])

enum Data { NORMAL, SIGNS, ZEROS };
// Where the loads of a step find their bytes: nowhere; in L2, 16 MB for all tiles; or as in a product of K = 8192, up to 138 MB each.
enum From { NOTHING, CACHE, MATRICES };
constexpr u32 STEPS = 128;    // of 64 along K, then the sums begin again
constexpr u32 HALF = 8 << 20;  // bytes of each operand in L2
constexpr u32 WHOLE = 8448 * 8192 * 2;

__device__ float normal(u32 i) {
    u64 z = i * 0x9e3779b97f4a7c15ull + 0x1234567;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull, z = (z ^ z >> 27) * 0x94d049bb133111ebull, z ^= z >> 31;
    const float a = ((z >> 40) + 1) * (1.f / 16777217), b = (z & 0xffffff) * (1.f / 16777216);
    return sqrtf(-2 * logf(a)) * cospif(2 * b);
}
__global__ void fill(u16* p, u32 n, Data data) {
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const float f = data == ZEROS ? 0 : data == SIGNS ? copysignf(1, normal(i)) : normal(i);
        const u32 bits = __float_as_uint(f);
        p[i] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
}

__device__ __forceinline__ void bulk(u32 to, const char* from, u32 bytes, u32 full, u32 mask) {
    if (mask == 0)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(full) : "memory");
    else
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to), "l"(from), "r"(bytes), "r"(full), "h"((u16)mask) : "memory");
}

// Tile `index` of tiles_m x tiles_n: columns of `group` rows, one group of rows after another.
__device__ __forceinline__ uint2 grouped(u32 index, u32 tiles_m, u32 tiles_n, u32 group) {
    const u32 sweep = group * tiles_n, within = index % sweep, first = index / sweep * group, height = min(tiles_m - first, group);
    return {first + within % height, within / height};
}

struct Order {
    u32 ctas = 132, group = 16;
    bool turn = false;  // every second tile of a CTA walks K backwards
};

// The loads of one CTA, step after step and tile after tile, by one thread.
template <u32 rows, u32 n, From loads, u32 down, u32 across>
struct Loads {
    static constexpr u32 X_BYTES = rows * 128, W_BYTES = n * 128, STAGE = X_BYTES + W_BYTES, STAGES = 3, CTAS = down * across;
    const char* source;
    u32 base, bars, rank, tiles_m, tiles_n;
    Order order;
    u32 index = blockIdx.x / CTAS, at = 0, stage = 0, parity = 1;
    bool backward = false;
    __device__ bool more() const { return index < tiles_m * tiles_n / CTAS; }
    __device__ void next() {
        const uint2 place = grouped(index, tiles_m / down, tiles_n / across, order.group / down);
        const u64 row = place.x * down + rank % down, column = place.y * across + rank / down;
        const u32 step = backward ? STEPS - 1 - at : at;
        while (!mbarrier_try_wait_relaxed(bars + 64 + stage * 8, parity)) {}
        const u32 full = bars + stage * 8, to = base + stage * STAGE;
        mbarrier_expect(full, STAGE);
        u64 x = (row * STEPS + step) * X_BYTES, w = (column * STEPS + step) * W_BYTES;
        if (loads == CACHE) x %= HALF - X_BYTES, w %= HALF - W_BYTES;
        w += loads == CACHE ? HALF : WHOLE;
        const u32 x_part = X_BYTES / across * (rank / down), w_part = W_BYTES / down * (rank % down);
        const u32 same_rows = across > 1 ? (1u | 1u << down) << rank % down : 0, same_columns = down > 1 ? ((1u << down) - 1) << rank / down * down : 0;
        bulk(to + x_part, source + x + x_part, X_BYTES / across, full, same_rows);
        bulk(to + X_BYTES + w_part, source + w + w_part, W_BYTES / down, full, same_columns);
        if (++stage == STAGES) stage = 0, parity ^= 1;
        if (++at == STEPS) at = 0, index += gridDim.x / CTAS, backward = order.turn && !backward;
    }
};

// Warpgroups of `blocks` times 64 rows by n columns each: two beside one that loads, or three of which a thread loads, too.
// Clusters of down x across CTAs.
template <u32 groups, u32 n, From loads, u32 down, u32 across, u32 blocks>
__global__ void __launch_bounds__(384, 1) roof(const char* source, u32 tiles_m, u32 tiles_n, Order order, u64* times) {
    typedef Loads<groups * 64 * blocks, n, loads, down, across> L;
    constexpr u32 STAGE = L::STAGE, STAGES = L::STAGES, CTAS = L::CTAS, first = (3 - groups) * 4;
    extern __shared__ __align__(1024) u8 shared[];
    const u32 base = shared_address(shared), bars = base + STAGES * STAGE, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 rank = 0;
    if (CTAS > 1) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    for (u32 i = threadIdx.x; i < STAGES * STAGE / 16; i += blockDim.x) reinterpret_cast<uint4*>(shared)[i] = reinterpret_cast<const uint4*>(source)[i + blockIdx.x * 1024];
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < STAGES; ++s) mbarrier_init(bars + s * 8, 1), mbarrier_init(bars + 64 + s * 8, groups * 4 * CTAS);
        mbarrier_init_fence();
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (CTAS > 1) asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
    L load{source, base, bars, rank, tiles_m, tiles_n, order};
    if (groups == 2 && warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (loads && threadIdx.x == 0)
            while (load.more()) load.next();
    } else {
        if (groups == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        if (groups == 3 && loads && threadIdx.x == 0)
            for (u32 s = 0; s < STAGES; ++s) load.next();
        __syncwarp();
        float acc[blocks][n / 2];
        u32 stage = 0, parity = 0, previous = 0;
        u64 ns = 0, cycles = 0;
        if (threadIdx.x == first * 32) {
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
            cycles = clock64();
        }
        const u64 x_tile = wgmma_descriptor(base + (warp - first) / 4 * 8192 * blocks), w_tile = wgmma_descriptor(base + L::X_BYTES);
        for (u32 index = blockIdx.x / CTAS, tile = 0; index < tiles_m * tiles_n / CTAS; index += gridDim.x / CTAS, ++tile) {
#pragma unroll 1
            for (u32 step = 0; step < STEPS; ++step) {
                if (loads) while (!mbarrier_try_wait(bars + stage * 8, parity)) {}
                const u64 x = x_tile + stage * (STAGE >> 4), w = w_tile + stage * (STAGE >> 4);
                wgmma_fence();
#pragma unroll
                for (u32 k = 0; k < 4; ++k)
#pragma unroll
                    for (u32 b = 0; b < blocks; ++b) wgmma_m64k16(acc[b], x + b * 512 + k * WGMMA_K_STEP, w + k * WGMMA_K_STEP, step + k != 0, bf16());
                wgmma_commit();
                wgmma_wait<1>();
                if (loads && step + tile != 0) {
                    if (CTAS > 1) {
                        if (lane < CTAS) mbarrier_arrive_cluster(bars + 64 + previous * 8, lane);
                    } else if (lane == 0) mbarrier_arrive(bars + 64 + previous * 8);
                    if (groups == 3) {
                        if (threadIdx.x == 0 && load.more()) load.next();
                        __syncwarp();
                    }
                }
                previous = stage;
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
            wgmma_wait<0>();
        }
        if (threadIdx.x == first * 32) {
            u64 to;
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(to));
            times[blockIdx.x * 2] = to - ns, times[blockIdx.x * 2 + 1] = clock64() - cycles;
        }
        if (acc[0][0] == 12345.f || acc[blocks - 1][1] == 12345.f) times[0] = 7;
    }
    __syncwarp();
    if (CTAS > 1) asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}

static double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
static nvmlDevice_t device;
static char* source;
static u64* times;

template <u32 groups, u32 n, From loads, u32 down, u32 across, u32 blocks = 1>
static void run(const char* name, double seconds, Order order = {}, Data data = NORMAL, u32 mm = 8192, u32 nn = 8192) {
    auto kernel = roof<groups, n, loads, down, across, blocks>;
    constexpr u32 R = groups * 64 * blocks;
    const u32 bytes = 3 * (R + n) * 128 + 128, tiles_m = (mm + R - 1) / R, tiles_n = (nn + n - 1) / n;
    static Data last = ZEROS;
    if (data != last) fill<<<264, 256>>>(reinterpret_cast<u16*>(source), WHOLE, last = data);
    RT(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(order.ctas), config.blockDim = dim3(384), config.dynamicSmemBytes = bytes;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension, attribute.val.clusterDim.x = down * across, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.attrs = &attribute, config.numAttrs = 1;
    const u32 sms = config.gridDim.x;
    cudaEvent_t from, to;
    RT(cudaEventCreate(&from));
    RT(cudaEventCreate(&to));
    std::vector<double> tflops, clocks, watts, reals, uses;
    std::vector<u64> host(sms * 2);
    const double start = now();
    while (now() - start < seconds * 1.4) {
        RT(cudaEventRecord(from));
        for (u32 i = 0; i < 60; ++i) RT(cudaLaunchKernelEx(&config, kernel, (const char*)source, tiles_m, tiles_n, order, times));
        RT(cudaEventRecord(to));
        RT(cudaEventSynchronize(to));
        float ms;
        RT(cudaEventElapsedTime(&ms, from, to));
        RT(cudaMemcpy(host.data(), times, sms * 16, cudaMemcpyDeviceToHost));
        unsigned clock, power;
        nvmlDeviceGetClockInfo(device, NVML_CLOCK_SM, &clock), nvmlDeviceGetPowerUsage(device, &power);
        if (now() - start < seconds * 0.4) continue;
        double ns = 0, cycles = 0;
        for (u32 i = 0; i < sms; ++i) ns += host[2 * i], cycles += host[2 * i + 1];
        tflops.push_back(60 * 2.0 * mm * nn * 8192 / ms / 1e9), clocks.push_back(clock), watts.push_back(power / 1000);
        reals.push_back(cycles / ns * 1000), uses.push_back((tiles_m * tiles_n * STEPS * 4.0 * groups * blocks * n / 2) / cycles);
    }
    auto mid = [](auto v) { std::sort(v.begin(), v.end()); return v[v.size() / 2]; };
    printf("| %-52s | %3u | %6.1f | %5.0f | %5.0f | %4.0f | %5.3f |\n", name, sms, mid(tflops), mid(clocks), mid(reals), mid(watts), mid(uses)), fflush(stdout);
}

int main(int argc, char** argv) {
    const double seconds = argc > 1 ? atof(argv[1]) : 2.5;
    nvmlInit(), nvmlDeviceGetHandleByIndex(0, &device);
    RT(cudaMalloc(&source, 2ull * WHOLE + (16 << 20)));
    RT(cudaMalloc(&times, 4096));
    printf("| what | CTAs | TFLOP/s | MHz by NVML | MHz by the SMs' clocks | W | tensor cores busy |\n|---|---|---|---|---|---|---|\n");
    run<2, 256, MATRICES, 1, 1>("(first: clocks settle)", seconds);
    for (u32 i = 0; i < 2; ++i) {
        run<2, 256, MATRICES, 1, 1>("128x256 8192, groups of 16, 128 CTAs", seconds, {128});
        run<2, 256, MATRICES, 1, 1>("128x256 8448, groups of 11", seconds, {132, 11}, NORMAL, 8448, 8448);
        run<2, 256, MATRICES, 1, 1>("128x256 8448, groups of 22", seconds, {132, 22}, NORMAL, 8448, 8448);
        run<2, 192, MATRICES, 1, 1, 2>("256x192 8448, groups of 11", seconds, {132, 11}, NORMAL, 8448, 8448);
        run<2, 192, MATRICES, 1, 1, 2>("256x192 8192, groups of 11", seconds, {132, 11});
        run<2, 192, MATRICES, 1, 1, 2>("256x192 8192, groups of 8, 128 CTAs", seconds, {128, 8});
        run<2, 192, CACHE, 1, 1, 2>("256x192 8448 L2", seconds, {132, 11}, NORMAL, 8448, 8448);
        run<2, 256, CACHE, 1, 1>("128x256 8192 L2", seconds, {128});
    }
    return 0;
}
