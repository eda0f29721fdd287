"""Memory for what is read in every step, in huge pages where the system gives them.

A step reads all weights once. In pages of 4 KiB it also waits for the address of each page: in pages of 2 MiB a decode
step of one row takes about an eighth less time.
"""

import mmap
from contextlib import suppress
from pathlib import Path

import torch

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_HUGE_PAGE_BYTES = 2 << 20
_CHUNK_BYTES = 64 << 20
_ALIGNMENT = 64
"""Bytes of a cache line, which is also the widest vector."""


class Arena:
    """Holds tensors one behind the other. Memory is given back with the last tensor of a chunk."""

    def __init__(self) -> None:
        self._chunk: mmap.mmap | None = None
        self._used = 0

    def place(self, values: torch.Tensor) -> torch.Tensor:
        """A contiguous copy of `values` in the arena; what is not in this machine's memory stays where it is.

        Raises:
            OSError: there is not enough memory.
        """
        if values.device.type != "cpu" or values.numel() == 0:
            return values.contiguous()
        num_bytes = values.numel() * values.element_size()
        if self._chunk is None or self._used + num_bytes > len(self._chunk):
            self._chunk, self._used = _new_chunk(num_bytes)
        placed = torch.frombuffer(self._chunk, dtype=values.dtype, count=values.numel(), offset=self._used)
        self._used += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        return placed.view(values.shape).copy_(values)


def huge_pages() -> str:
    """What the system does when a program asks for huge pages: "on request", "always", "never", or "unknown"."""
    try:
        setting = SETTING.read_text(encoding="ascii")
    except OSError:
        return "unknown"
    chosen = setting.partition("[")[2].partition("]")[0]
    return {"madvise": "on request", "always": "always", "never": "never"}.get(chosen, "unknown")


def _new_chunk(num_bytes: int) -> tuple[mmap.mmap, int]:
    """A mapping with room for so many bytes, and where its first huge page begins."""
    size = max(_CHUNK_BYTES, -(-num_bytes // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES)
    chunk = mmap.mmap(-1, size + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        chunk.madvise(mmap.MADV_HUGEPAGE)
    address = torch.frombuffer(chunk, dtype=torch.uint8).data_ptr()
    return chunk, -address % _HUGE_PAGE_BYTES
