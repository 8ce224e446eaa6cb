export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 UB_SKIPMC=1 CUDA_MODULE_LOADING=EAGER NOSUSTAIN=1 ROUNDS=1
cd "$(dirname "$0")" || exit 1
OUT=${OUT:-/tmp}
nvcc -O2 -std=c++17 -gencode=arch=compute_90a,code=sm_90a test_gemm.cu -o /tmp/test_gemm -lcublasLt -lcuda || exit 1
for i in 0 1 2 3 4 5 6 8 9; do echo "shape $i"; ONLY=$i timeout 60 ncu --clock-control none -k regex:nvjet -s 90 -c 1 --metrics sm__cycles_elapsed.max,sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed,lts__t_bytes.sum /tmp/test_gemm ladder 2>&1 | grep -E "nvjet|sm__|lts__" | cut -c1-150; done | tee $OUT/nvjet.log
for i in 1 3; do echo "own, shape $i"; ONLY=$i timeout 100 ncu --clock-control none -k regex:^gemm -c 4 --metrics sm__cycles_elapsed.max,sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed,lts__t_bytes.sum /tmp/test_gemm ladder 2>&1 | grep -E "sm__|lts__|G[0-9]+ on" | cut -c1-120; done | tee $OUT/own.log
