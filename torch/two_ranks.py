"""Ranks beside PyTorch: a column-parallel layer whose all-gather is in the kernel of its product.

    torchrun --nproc-per-node 2 torch/two_ranks.py

Without a GPU the ranks are emulated and the tensors are the host's. Without PyTorch they are NumPy's, and
`counterflow-run -n 2 -- python3 torch/two_ranks.py` starts the ranks."""

import counterflow_torch

try:
    import torch
except ImportError:
    import numpy

    torch = None

ROWS, COLUMNS, DEPTH = 40, 64, 96  # rows over all ranks; columns and depth of one


def of_torch(rank, device):
    """The layer on tensors of PyTorch, and the error beside its own product."""
    layer = rank.all_gather_gemm("bfloat16", ROWS, COLUMNS, DEPTH)
    numbers = torch.Generator().manual_seed(0)
    everyones = torch.randn(ROWS, DEPTH, generator=numbers).bfloat16().to(device)
    numbers.manual_seed(1 + rank.rank)
    w = torch.randn(COLUMNS, DEPTH, generator=numbers).bfloat16().to(device)
    first, last = rank.shard(ROWS)
    x = everyones[first:last]  # this rank's rows
    y = torch.full((ROWS, COLUMNS), torch.nan, dtype=torch.bfloat16, device=device)
    stream = torch.cuda.current_stream().cuda_stream if device == "cuda" else 0
    layer(x, w, y, stream)
    wanted = everyones.float() @ w.float().T
    return ((y.float() - wanted).abs().max() / wanted.abs().max()).item(), 2**-8


def of_numpy(rank):
    """The same on arrays of NumPy, which has no bfloat16."""
    layer = rank.all_gather_gemm("float16", ROWS, COLUMNS, DEPTH)
    everyones = numpy.random.default_rng(0).normal(size=(ROWS, DEPTH)).astype(numpy.float16)
    w = numpy.random.default_rng(1 + rank.rank).normal(size=(COLUMNS, DEPTH)).astype(numpy.float16)
    first, last = rank.shard(ROWS)
    y = numpy.full((ROWS, COLUMNS), numpy.nan, dtype=numpy.float16)
    layer(everyones[first:last], w, y)
    wanted = everyones.astype(numpy.float32) @ w.astype(numpy.float32).T
    return abs(y.astype(numpy.float32) - wanted).max() / abs(wanted).max(), 2**-10


def main():
    gpus = torch is not None and torch.cuda.is_available()
    rank = counterflow_torch.Rank(heap=64 << 20 if gpus else 4 << 20, emulated=not gpus)
    if torch is None:
        error, most = of_numpy(rank)
    else:
        if gpus:
            torch.cuda.set_device(rank.rank % torch.cuda.device_count())
        error, most = of_torch(rank, "cuda" if gpus else "cpu")
    assert error <= most, f"rank {rank.rank}: an error of {error}"  # NaN fails, too
    rank.barrier()
    print(f"rank {rank.rank} of {rank.world}: the largest error is {error:.1e} of the largest element")


if __name__ == "__main__":
    main()
