// Test harness: modules, tensor maps, random data, poisoned outputs, f64 reference, alternating timings.
#pragma once
#include <cublasLt.h>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>
#define CU(x) do { CUresult r_ = (x); if (r_) { const char* s_; cuGetErrorString(r_, &s_); printf("%s:%d %s: %s\n", __FILE__, __LINE__, #x, s_); fflush(stdout); exit(1); } } while (0)
#define RT(x) do { cudaError_t r_ = (x); if (r_) { printf("%s:%d %s: %s\n", __FILE__, __LINE__, #x, cudaGetErrorString(r_)); fflush(stdout); exit(1); } } while (0)
#define LT(x) do { cublasStatus_t r_ = (x); if (r_) { printf("%s:%d %s: %d\n", __FILE__, __LINE__, #x, (int)r_); fflush(stdout); exit(1); } } while (0)
typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64;

struct Stall { u32 written, rank, role, block, what, index; u64 seen, wanted; };
struct Watch { CUdeviceptr stall, claim, abort; u64 abort_stride, timeout_ns; u32 rank, world; };

struct Kernel {
    std::string name; CUmodule module; CUfunction function; std::vector<u32> facts; bool half;
    u32 tile_m() const { return facts[0]; } u32 tile_n() const { return facts[1]; } u32 shared() const { return facts[2]; } u32 cluster() const { return facts[3]; } u32 panel_n() const { return facts[4]; }
};
static std::string slurp(const std::string& p) { std::ifstream f(p, std::ios::binary); if (!f) { printf("no file %s\n", p.c_str()); exit(1); } return std::string((std::istreambuf_iterator<char>(f)), {}); }
static Kernel load(const std::string& name, const char* entry) {  // into the current context
    Kernel k; k.name = name; k.half = name.find("f16") != std::string::npos; std::string bin = slurp("build/" + name + ".cubin");
    CU(cuModuleLoadData(&k.module, bin.data())); CU(cuModuleGetFunction(&k.function, k.module, entry));
    CUdeviceptr p; size_t n; CU(cuModuleGetGlobal(&p, &n, k.module, "facts")); k.facts.resize(n / 4); CU(cuMemcpyDtoH(k.facts.data(), p, n));
    CU(cuFuncSetAttribute(k.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, k.shared())); return k;
}
static int promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
// {columns, rows in a chunk, chunks, ranks}, 16-bit elements
static CUtensorMap map4(CUdeviceptr p, bool half, u64 columns, u64 rows, u64 chunks, u64 ranks, u64 chunk_bytes, u64 rank_bytes, u32 box_rows, u32 box_columns = 64) {
    CUtensorMap m; cuuint64_t d[4] = {columns, rows, chunks, ranks}, st[3] = {columns * 2, chunk_bytes, rank_bytes}; cuuint32_t box[4] = {box_columns, box_rows, 1, 1}, es[4] = {1, 1, 1, 1};
    CU(cuTensorMapEncodeTiled(&m, half ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void*)p, d, st, box, es, CU_TENSOR_MAP_INTERLEAVE_NONE, box_columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : box_columns == 32 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_32B, (CUtensorMapL2promotion)promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)); return m;
}
static CUtensorMap map_matrix(CUdeviceptr p, bool half, u64 columns, u64 rows, u32 box_rows, u32 box_columns = 64) { return map4(p, half, columns, rows, 1, 1, rows * columns * 2, rows * columns * 2, box_rows, box_columns); }
static void launch(const Kernel& k, u32 grid, CUstream s, std::vector<void*> args) {
    CUlaunchConfig c = {}; c.gridDimX = grid; c.gridDimY = c.gridDimZ = 1; c.blockDimX = 384; c.blockDimY = c.blockDimZ = 1; c.sharedMemBytes = k.shared(); c.hStream = s;
    CUlaunchAttribute a = {}; a.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION; a.value.clusterDim.x = k.cluster(); a.value.clusterDim.y = a.value.clusterDim.z = 1; c.attrs = &a; c.numAttrs = k.cluster() > 1;
    CU(cuLaunchKernelEx(&c, k.function, args.data(), nullptr));
}

// ---- data ----
template <bool H> __device__ u16 to16(float f) { return H ? __half_as_ushort(__float2half_rn(f)) : __bfloat16_as_ushort(__float2bfloat16_rn(f)); }
__device__ __host__ inline float from16(u16 v, bool half) {
    if (half) { __half_raw r; r.x = v; return __half2float(__half(r)); }
    union { u32 u; float f; } c; c.u = (u32)v << 16; return c.f;
}
__device__ inline u64 mix(u64 z) { z += 0x9e3779b97f4a7c15ull; z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull; z = (z ^ (z >> 27)) * 0x94d049bb133111ebull; return z ^ (z >> 31); }
__global__ void k_normal(u16* p, u64 n, u64 seed, bool half) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) {
        u64 r = mix(seed * 0x1000003 + i); float a = ((u32)(r >> 40) + 1) * (1.f / 16777217.f), b = (u32)(r & 0xffffff) * (1.f / 16777216.f); float g = sqrtf(-2 * logf(a)) * cospif(2 * b);
        p[i] = half ? to16<true>(g) : to16<false>(g); } }
__global__ void k_poison(u16* p, u64 n) { for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) p[i] = 0x7fff; }
static u64 mix_host(u64 z) { z += 0x9e3779b97f4a7c15ull; z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull; z = (z ^ (z >> 27)) * 0x94d049bb133111ebull; return z ^ (z >> 31); }
static void normal(CUdeviceptr p, u64 n, u64 seed, bool half, cudaStream_t s = 0) { k_normal<<<528, 256, 0, s>>>((u16*)p, n, seed, half); RT(cudaGetLastError()); }
static void poison(CUdeviceptr p, u64 n, cudaStream_t s = 0) { k_poison<<<528, 256, 0, s>>>((u16*)p, n); RT(cudaGetLastError()); }
// ref[m][n] (+)= sum_k x[m][k] w[n][k] in f64
__global__ void k_reference(const u16* x, const u16* w, double* ref, u32 m, u32 n, u32 k, bool half, bool add) {
    __shared__ float xs[16][33], ws[16][33]; u32 r = blockIdx.y * 16 + threadIdx.y, c = blockIdx.x * 16 + threadIdx.x; double s = 0;
    for (u32 k0 = 0; k0 < k; k0 += 32) {
        for (u32 q = threadIdx.x; q < 32; q += 16) { u32 rr = blockIdx.y * 16 + threadIdx.y, cc = blockIdx.x * 16 + threadIdx.y;
            xs[threadIdx.y][q] = rr < m && k0 + q < k ? from16(x[(u64)rr * k + k0 + q], half) : 0; ws[threadIdx.y][q] = cc < n && k0 + q < k ? from16(w[(u64)cc * k + k0 + q], half) : 0; }
        __syncthreads(); for (u32 q = 0; q < 32; ++q) s += (double)xs[threadIdx.y][q] * (double)ws[threadIdx.x][q]; __syncthreads(); }
    if (r < m && c < n) { u64 i = (u64)r * n + c; ref[i] = add ? ref[i] + s : s; } }
struct Errors { double diff2, ref2; float worst; u32 bad, nan; };
__global__ void k_compare(const u16* y, const double* ref, u64 n, bool half, double rel, double abs, Errors* e) {
    double d2 = 0, r2 = 0; float worst = 0; u32 bad = 0, nan = 0;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) { double v = from16(y[i], half), r = ref[i], d = v - r; if (!(d == d)) { ++nan; continue; } d2 += d * d; r2 += r * r;
        float q = fabs(d) / (rel * fabs(r) + abs); worst = fmaxf(worst, q); bad += q > 1; }
    atomicAdd(&e->diff2, d2); atomicAdd(&e->ref2, r2); atomicMax((int*)&e->worst, __float_as_int(worst)); atomicAdd(&e->bad, bad); atomicAdd(&e->nan, nan); }
__global__ void k_differ(const u16* a, const u16* b, u64 n, bool half, float rel, float abs, Errors* e) {  // two 16-bit results
    u32 bad = 0, nan = 0; float worst = 0; for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) { float v = from16(a[i], half), r = from16(b[i], half), d = fabsf(v - r); if (!(d == d)) { ++nan; continue; } float q = d / (rel * fabsf(r) + abs); worst = fmaxf(worst, q); bad += q > 1; }
    atomicMax((int*)&e->worst, __float_as_int(worst)); atomicAdd(&e->bad, bad); atomicAdd(&e->nan, nan); }
__global__ void k_unpoisoned(const u16* p, u64 n, u32* count) { u32 c = 0; for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) c += p[i] != 0x7fff; if (c) atomicAdd(count, c); }
static Errors* errors() { static std::map<int, Errors*> e; int d; RT(cudaGetDevice(&d)); if (!e[d]) RT(cudaMalloc(&e[d], sizeof(Errors))); RT(cudaMemset(e[d], 0, sizeof(Errors))); return e[d]; }
static Errors compare(CUdeviceptr y, const double* ref, u64 n, bool half, u32 k) { Errors* e = errors(), h; k_compare<<<264, 256>>>((u16*)y, ref, n, half, (half ? 1. / 2048 : 1. / 256) * 1.02, 3e-5 * sqrt((double)k), e); RT(cudaMemcpy(&h, e, sizeof h, cudaMemcpyDeviceToHost)); return h; }
static Errors differ(CUdeviceptr a, CUdeviceptr b, u64 n, bool half, u32 k) { Errors* e = errors(), h; k_differ<<<264, 256>>>((u16*)a, (u16*)b, n, half, half ? 1.1f / 1024 : 1.1f / 128, 1e-4f * sqrtf((float)k), e); RT(cudaMemcpy(&h, e, sizeof h, cudaMemcpyDeviceToHost)); return h; }
static u32 unpoisoned(CUdeviceptr p, u64 n) { Errors* e = errors(); k_unpoisoned<<<64, 256>>>((u16*)p, n, (u32*)e); u32 h; RT(cudaMemcpy(&h, e, 4, cudaMemcpyDeviceToHost)); return h; }

// ---- cuBLASLt: y[m][n] = x[m][k] w[n][k]^T, the fastest of the heuristic's answers ----
struct Blas {
    cublasLtHandle_t h; cublasLtMatmulDesc_t d; cublasLtMatrixLayout_t a, b, c; cublasLtMatmulAlgo_t algo; void* ws; size_t wsn = 64 << 20; u32 tried = 0; float best = 1e30f;
    Blas(u32 m, u32 n, u32 k, bool half, CUdeviceptr x, CUdeviceptr w, CUdeviceptr y) {
        cudaDataType_t t = half ? CUDA_R_16F : CUDA_R_16BF; LT(cublasLtCreate(&h)); RT(cudaMalloc(&ws, wsn)); LT(cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        cublasOperation_t op = CUBLAS_OP_T; LT(cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSA, &op, sizeof op));
        LT(cublasLtMatrixLayoutCreate(&a, t, k, n, k)); LT(cublasLtMatrixLayoutCreate(&b, t, k, m, k)); LT(cublasLtMatrixLayoutCreate(&c, t, n, m, n));
        cublasLtMatmulPreference_t p; LT(cublasLtMatmulPreferenceCreate(&p)); LT(cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &wsn, sizeof wsn));
        cublasLtMatmulHeuristicResult_t r[12]; int got = 0; LT(cublasLtMatmulAlgoGetHeuristic(h, d, a, b, c, c, p, 12, r, &got)); cudaEvent_t e0, e1; RT(cudaEventCreate(&e0)); RT(cudaEventCreate(&e1));
        for (int i = 0; i < got; ++i) { algo = r[i].algo; std::vector<float> v; bool ok = true;
            for (int q = 0; q < 6 && ok; ++q) { RT(cudaEventRecord(e0)); ok = try_run(x, w, y, 0) == CUBLAS_STATUS_SUCCESS; RT(cudaEventRecord(e1)); RT(cudaEventSynchronize(e1)); float ms; RT(cudaEventElapsedTime(&ms, e0, e1)); v.push_back(ms); }
            if (!ok) { cudaGetLastError(); continue; } ++tried; std::sort(v.begin(), v.end()); if (v[2] < best) { best = v[2]; keep = algo; } }
        algo = keep; }
    cublasLtMatmulAlgo_t keep;
    cublasStatus_t try_run(CUdeviceptr x, CUdeviceptr w, CUdeviceptr y, cudaStream_t s) { float one = 1, zero = 0; return cublasLtMatmul(h, d, &one, (void*)w, a, (void*)x, b, &zero, (void*)y, c, (void*)y, c, &algo, ws, wsn, s); }
    void run(CUdeviceptr x, CUdeviceptr w, CUdeviceptr y, cudaStream_t s = 0) { LT(try_run(x, w, y, s)); }
    ~Blas() { cudaDeviceSynchronize(); cudaFree(ws); cublasLtDestroy(h); }
};

// ---- timing: every contender once a round, rounds alternate; median, 10th and 90th percentile in microseconds ----
struct Timing { float median, low, high; };
static std::vector<Timing> alternate(const std::vector<std::function<void(u32)>>& runs, u32 rounds, cudaStream_t s = 0) {
    std::vector<std::vector<float>> t(runs.size()); std::vector<cudaEvent_t> e(2 * runs.size()); for (auto& v : e) RT(cudaEventCreate(&v)); u32 set = 0;
    for (u32 r = 0; r < rounds + 3; ++r) { for (size_t q = 0; q < runs.size(); ++q) { size_t i = (q + r) % runs.size(); RT(cudaEventRecord(e[2 * i], s)); runs[i](set++); RT(cudaEventRecord(e[2 * i + 1], s)); } RT(cudaStreamSynchronize(s));
        if (r >= 3) for (size_t i = 0; i < runs.size(); ++i) { float ms; RT(cudaEventElapsedTime(&ms, e[2 * i], e[2 * i + 1])); t[i].push_back(ms * 1000); } }
    for (auto& v : e) cudaEventDestroy(v); std::vector<Timing> out; for (auto& v : t) { std::sort(v.begin(), v.end()); out.push_back({v[v.size() / 2], v[v.size() / 10], v[v.size() * 9 / 10]}); } return out;
}
