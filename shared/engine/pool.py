"""What the engine needs of a pool of KV blocks."""

from dataclasses import dataclass
from typing import Protocol, Self

import torch

from shared.kv.dtypes import torch_dtype
from shared.kv.layout import KvLayout


class BlockPool(Protocol):
    """Blocks that steps write to and read from; `KvPool` is one."""

    @property
    def layout(self) -> KvLayout:
        """How a block is arranged."""

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool; block 0 is scratch."""

    @property
    def tensor(self) -> torch.Tensor:
        """The blocks: [num_blocks, *layout.block_shape]."""


@dataclass(frozen=True)
class DevicePool:
    """Blocks in the memory of any torch device. No other process can fetch from it."""

    layout: KvLayout
    num_blocks: int
    tensor: torch.Tensor

    @classmethod
    def allocate(cls, layout: KvLayout, num_blocks: int, device: torch.device) -> Self:
        """Blocks of zeros.

        Raises:
            ConfigError: the layout's dtype is not served.
        """
        dtype = torch_dtype(layout.dtype)
        return cls(layout, num_blocks, torch.zeros(num_blocks, *layout.block_shape, dtype=dtype, device=device))
