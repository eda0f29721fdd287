"""How the KV of one block is arranged; two services exchange KV only when their layouts are equal."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass

from shared.kv.dtypes import torch_dtype


@dataclass(frozen=True)
class KvLayout:
    """Arrangement of one block, which holds `block_size` tokens of all layers.

    Any values are allowed, because a peer's layout must be representable to be compared; only `block_bytes` needs a
    known dtype.
    """

    name: str
    """Arrangement of values inside a block and head, such as "token_major": [block_size, head_dim]."""
    dtype: str
    """Element type, a key of `TORCH_DTYPES`."""
    block_size: int
    """Tokens a block."""
    num_layers: int
    num_kv_heads: int
    head_dim: int

    @property
    def block_shape(self) -> tuple[int, int, int, int]:
        """Shape of one block: [num_layers, 2 (K, V), num_kv_heads, block_size * head_dim]."""
        return (self.num_layers, 2, self.num_kv_heads, self.block_size * self.head_dim)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block.

        Raises:
            ConfigError: the dtype is not served.
        """
        return math.prod(self.block_shape) * torch_dtype(self.dtype).itemsize

    def difference(self, other: "KvLayout") -> tuple[str, str, str] | None:
        """The first field that differs as (field, ours, theirs), or None if the layouts are equal."""
        theirs = asdict(other)
        for field, ours in asdict(self).items():
            if ours != theirs[field]:
                return field, str(ours), str(theirs[field])
        return None

    def digest(self) -> bytes:
        """SHA-256 of all fields, 32 bytes."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).digest()
