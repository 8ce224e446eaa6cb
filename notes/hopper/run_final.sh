# one device call on one GPU: checks of every final text, then the GEMM table
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 UB_SKIPMC=1 CUDA_MODULE_LOADING=EAGER
cd "$(dirname "$0")" || exit 1
OUT=${OUT:-/tmp}
nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.limit,temperature.gpu --format=csv,noheader
N="nvcc -O2 -std=c++17 -gencode=arch=compute_90a,code=sm_90a"
$N test_gemm.cu -o /tmp/test_gemm -lcublasLt -lcuda & $N test_fused.cu -o /tmp/test_fused -lcublasLt -lcuda || exit 1; wait %1
for a in "checks 4 60" "checks 3 20" "stall 2"; do timeout 60 /tmp/test_fused $a 2>&1 | tee -a $OUT/fused.log | grep -v ^ok; done
(timeout 200 nvidia-smi --query-gpu=clocks.sm,power.draw,temperature.gpu --format=csv,noheader -lms 200 > $OUT/clocks.log 2>&1) & SMI=$!
timeout 100 /tmp/test_gemm checks 2>&1 | tee $OUT/gemm.log | grep -v ^ok
NOSUSTAIN=1 timeout 120 /tmp/test_gemm ladder >> $OUT/gemm.log 2>&1; grep WRONG $OUT/gemm.log | head; kill $SMI
grep '^| [0-9]' $OUT/gemm.log | awk -F'|' '{k=$2; if(k!=p){if(p!="")print line; line=""; p=k; best=1e9} n=split($3,a," "); if($3 ~ /cuBLAS/) {c=$4} else if ($4+0<best) {best=$4+0; line=k "| cuBLASLt " c " | best own" $3 "|" $4 "|" $5 "|" $6 "|" $7}} END{print line}'
