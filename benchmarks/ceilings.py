"""What this machine can do at most, measured where it is used: reading memory, and multiplying matrices."""

import torch

from benchmarks.bounds import Ceilings
from benchmarks.timing import seconds_of

_READ_BYTES = 512 << 20
_SIZE = 2048
_REPEATS = 5


def measure_ceilings(num_threads: int) -> Ceilings:
    """Measures both with so many threads; takes about two seconds."""
    torch.set_num_threads(num_threads)
    dtype = torch.bfloat16 if torch.cpu.get_capabilities().get("avx512_bf16") else torch.float32
    memory = torch.ones(_READ_BYTES // 4)
    left, right = (torch.randn(_SIZE, _SIZE).to(dtype) for _ in range(2))
    return Ceilings(
        read_gb_s=_READ_BYTES / seconds_of(memory.sum, _REPEATS, best=True) / 1e9,
        gemm_gflop_s=2 * _SIZE**3 / seconds_of(lambda: left @ right, _REPEATS, best=True) / 1e9,
    )
