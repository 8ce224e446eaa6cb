# compile the host program here (stub cublasLt.h), only to see that it compiles
T=../../.cuda/tools/nvidia/cu13
$T/bin/nvcc -O1 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -I../../.cuda/cccl/nvidia/cu13/include -I../../.cuda/stub -c $1 -o /tmp/$(basename $1).o
