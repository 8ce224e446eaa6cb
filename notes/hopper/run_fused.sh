# one device call: build the host program, then: run_fused.sh MODE...   each MODE is an argument list for test_fused
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 UB_SKIPMC=1 CUDA_MODULE_LOADING=EAGER
cd "$(dirname "$0")" || exit 1
OUT=${OUT:-/tmp}
nvcc -O2 -std=c++17 -gencode=arch=compute_90a,code=sm_90a test_fused.cu -o /tmp/test_fused -lcublasLt -lcuda || exit 1
nvidia-smi --query-gpu=index,name,clocks.sm,power.limit,temperature.gpu --format=csv,noheader; (timeout 500 nvidia-smi --query-gpu=index,clocks.sm,power.draw,temperature.gpu --format=csv,noheader -lms 250 > $OUT/clocks.log 2>&1) & SMI=$!
for mode in "$@"; do echo "== $mode"; timeout 150 /tmp/test_fused $mode 2>&1 | tee -a $OUT/fused.log | grep -v '^ok' | cut -c1-200; done
kill $SMI
