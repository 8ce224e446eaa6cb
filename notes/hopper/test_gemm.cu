// One GPU: checks on ragged shapes against f64, then the ladder beside cuBLASLt. usage: test_gemm checks|ladder|all
#include "host.h"
struct Shape { u32 m, n, k, group; };
static Watch watch; static Stall* stall_host;
static void make_watch() { RT(cudaHostAlloc((void**)&stall_host, sizeof(Stall), cudaHostAllocMapped)); memset(stall_host, 0, sizeof(Stall)); CUdeviceptr p; CU(cuMemHostGetDevicePointer(&p, stall_host, 0)); CUdeviceptr q; CU(cuMemAlloc(&q, 256)); CU(cuMemsetD8(q, 0, 256)); watch = {p, q, q + 128, 128, 2000000000ull, 0, 1}; }
struct Call { CUtensorMap x, w, y; };
static Call call(const Kernel& k, CUdeviceptr x, CUdeviceptr w, CUdeviceptr y, u32 m, u32 n, u32 kk) { return {map_matrix(x, k.half, kk, m, 128), map_matrix(w, k.half, kk, n, k.tile_n() / k.cluster()), map_matrix(y, k.half, n, m, 128, k.panel_n())}; }
static void go(const Kernel& k, Call& c, Shape s, u32 sms) { u32 tm = (s.m + 128 * k.cluster() - 1) / (128 * k.cluster()), tn = (s.n + k.tile_n() - 1) / k.tile_n(); u32 grid = std::min(tm * tn, sms / k.cluster()) * k.cluster(); launch(k, grid, 0, {&c.x, &c.w, &c.y, &s, &watch}); }
static void done(const char* what) { cudaError_t r = cudaDeviceSynchronize(); if (r) { printf("FAILED %s: %s; stall written %u role %u block %u what %u index %u seen %llu wanted %llu\n", what, cudaGetErrorString(r), stall_host->written, stall_host->role, stall_host->block, stall_host->what, stall_host->index, (unsigned long long)stall_host->seen, (unsigned long long)stall_host->wanted); fflush(stdout); exit(1); } }
static int checks(std::vector<Kernel>& ks) {
    int failures = 0; u32 cases = 0; const u32 guard = 1 << 16; u32 nk[][2] = {{8, 8}, {264, 72}, {1032, 1000}, {4104, 520}, {256, 2048}};
    for (u32 m : {1u, 7u, 127u, 129u, 1000u, 4097u}) for (auto& s : nk) { u32 n = s[0], k = s[1]; CUdeviceptr x, w, y; double* ref; CU(cuMemAlloc(&x, (u64)m * k * 2)); CU(cuMemAlloc(&w, (u64)n * k * 2)); CU(cuMemAlloc(&y, ((u64)m * n + 2 * guard) * 2)); RT(cudaMalloc(&ref, (u64)m * n * 8));
        for (bool half : {false, true}) { normal(x, (u64)m * k, 1 + cases, half); normal(w, (u64)n * k, 1001 + cases, half); k_reference<<<dim3((n + 15) / 16, (m + 15) / 16), dim3(16, 16)>>>((u16*)x, (u16*)w, ref, m, n, k, half, false); RT(cudaGetLastError());
            for (auto& kn : ks) if (kn.half == half) { poison(y, (u64)m * n + 2 * guard); Call c = call(kn, x, w, y + guard * 2, m, n, k); go(kn, c, {m, n, k, 1 + cases % 9}, 132); done(kn.name.c_str());
                Errors e = compare(y + guard * 2, ref, (u64)m * n, half, k); u32 spilled = unpoisoned(y, guard) + unpoisoned(y + guard * 2 + (u64)m * n * 2, guard); ++cases; double ratio = sqrt(e.diff2 / e.ref2);
                bool ok = !e.nan && !e.bad && !spilled && ratio < 4e-3; failures += !ok; if (!ok) printf("WRONG %s m=%u n=%u k=%u: nan %u bad %u worst %.2f ratio %.2e spilled %u\n", kn.name.c_str(), m, n, k, e.nan, e.bad, e.worst, ratio, spilled); else if (m == 1000 && k >= 1000) printf("ok %s m=%u n=%u k=%u ratio %.2e worst %.2f\n", kn.name.c_str(), m, n, k, ratio, e.worst); } }
        cuMemFree(x); cuMemFree(w); cuMemFree(y); cudaFree(ref); }
    printf("checks: %u cases, %d failures\n", cases, failures); fflush(stdout); return failures;
}
struct Config { Kernel* k; u32 group, sms; };
int main(int argc, char** argv) {
    std::string mode = argc > 1 ? argv[1] : "all"; u32 rounds = getenv("ROUNDS") ? atoi(getenv("ROUNDS")) : 31; CU(cuInit(0)); RT(cudaSetDevice(0)); RT(cudaFree(0)); make_watch(); if (getenv("PROMOTION")) promotion = atoi(getenv("PROMOTION"));
    std::vector<Kernel> ks; std::map<std::string, int> at; { std::string list = slurp("build/gemm.list"), n; for (char ch : list) if (ch == '\n') { if (!n.empty()) { at[n] = ks.size(); ks.push_back(load(n, "gemm")); printf("%s: shared %u cluster %u\n", n.c_str(), ks.back().shared(), ks.back().cluster()); } n.clear(); } else n += ch; }
    if (mode != "ladder" && checks(ks)) return 1;
    if (mode == "checks") return 0;
    std::vector<Config> cs; { std::ifstream f("build/gemm.configs"); std::string n; u32 g, s; while (f >> n >> g >> s) if (at.count(n)) cs.push_back({&ks[at[n]], g, s}); }
    struct { u32 m, n, k; } shapes[] = {{4096, 4096, 4096}, {8192, 8192, 8192}, {2048, 7168, 8192}, {8192, 8192, 2048}, {2048, 8192, 2048}, {2048, 2560, 8192}, {4096, 8192, 7168}, {8192, 14336, 8192}, {512, 7168, 8192}, {4000, 8200, 1032}};
    printf("| m n k | contender | us | p10..p90 | TFLOP/s | of cuBLASLt |\n|---|---|---|---|---|---|\n");
    for (auto& s : shapes) { if (getenv("ONLY") && atoi(getenv("ONLY")) != (int)(&s - shapes)) continue;
        u64 bytes = ((u64)s.m * s.k + (u64)s.n * s.k + (u64)s.m * s.n) * 2; u32 sets = std::max<u64>(2, std::min<u64>(16, (300ull << 20) / bytes + 1)); std::vector<CUdeviceptr> x(sets), w(sets), y(sets); CUdeviceptr want; CU(cuMemAlloc(&want, (u64)s.m * s.n * 2));
        for (u32 i = 0; i < sets; ++i) { CU(cuMemAlloc(&x[i], (u64)s.m * s.k * 2)); CU(cuMemAlloc(&w[i], (u64)s.n * s.k * 2)); CU(cuMemAlloc(&y[i], (u64)s.m * s.n * 2)); normal(x[i], (u64)s.m * s.k, i, false); normal(w[i], (u64)s.n * s.k, 100 + i, false); }
        Blas blas(s.m, s.n, s.k, false, x[0], w[0], y[0]); blas.run(x[0], w[0], want); done("cublas");
        std::vector<std::function<void(u32)>> runs; runs.push_back([&](u32 i) { i %= sets; blas.run(x[i], w[i], y[i]); }); std::vector<std::string> names = {"cuBLASLt"}; std::vector<std::vector<Call>> calls(cs.size());
        for (size_t q = 0; q < cs.size(); ++q) { Config c = cs[q]; if (c.k->half) continue; for (u32 i = 0; i < sets; ++i) calls[q].push_back(call(*c.k, x[i], w[i], y[i], s.m, s.n, s.k)); auto* cp = &calls[q]; Shape sh{s.m, s.n, s.k, c.group};
            poison(y[0], (u64)s.m * s.n); go(*c.k, (*cp)[0], sh, c.sms); done(c.k->name.c_str()); Errors e = differ(y[0], want, (u64)s.m * s.n, false, s.k); if (e.nan || e.bad) printf("WRONG %s at %u %u %u: nan %u bad %u worst %.2f\n", c.k->name.c_str(), s.m, s.n, s.k, e.nan, e.bad, e.worst);
            runs.push_back([=](u32 i) { go(*c.k, (*cp)[i % cp->size()], sh, c.sms); }); names.push_back(c.k->name + " G" + std::to_string(c.group) + " on " + std::to_string(c.sms)); }
        for (u32 i = 0; i < 200; ++i) { blas.run(x[i % sets], w[i % sets], y[i % sets]); if (i % 20 == 19) done("warm"); }
        auto t = alternate(runs, rounds); done("timing"); double f = 2.0 * s.m * s.n * s.k; for (size_t i = 0; i < runs.size(); ++i) printf("| %u %u %u | %s | %.1f | %.1f..%.1f | %.0f | %.3f |\n", s.m, s.n, s.k, names[i].c_str(), t[i].median, t[i].low, t[i].high, f / t[i].median / 1e6, t[i].median / t[0].median);
        if (s.m == 8192 && s.k == 8192 && s.n == 8192 && !getenv("NOSUSTAIN")) { printf("sustained 1 s each, back to back:"); for (u32 pass = 0; pass < 2; ++pass) for (size_t i = 0; i < runs.size(); ++i) { cudaEvent_t a, b; RT(cudaEventCreate(&a)); RT(cudaEventCreate(&b)); u32 reps = 400; RT(cudaEventRecord(a)); for (u32 q = 0; q < reps; ++q) runs[i](q); RT(cudaEventRecord(b)); done("sustained"); float ms; RT(cudaEventElapsedTime(&ms, a, b)); printf(" %s %.0f;", names[i].c_str(), f * reps / ms / 1e9); } printf("\n"); }
        fflush(stdout); for (u32 i = 0; i < sets; ++i) { cuMemFree(x[i]); cuMemFree(w[i]); cuMemFree(y[i]); } cuMemFree(want); }
    return 0;
}
