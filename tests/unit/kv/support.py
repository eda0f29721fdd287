"""Small pools and handles whose bytes can be told apart by eye."""

from collections.abc import Sequence

from shared.kv.handle import GrpcLocation, KvHandle, Location
from shared.kv.layout import KvLayout
from shared.kv.pool import KvPool

LAYOUT = KvLayout("token_major", "float32", block_size=4, num_layers=2, num_kv_heads=1, head_dim=2)
BLOCK_BYTES = 128
"""2 layers, K and V, 1 head, 4 tokens of 2 float32."""


def fill(pool: KvPool, block_ids: Sequence[int]) -> None:
    """Give each block a content of its own: block b holds b + 0, b + 1/128, b + 2/128, …"""
    values = pool.tensor.new_tensor(range(BLOCK_BYTES // 4)).view(pool.layout.block_shape) / 128
    for block_id in block_ids:
        pool.tensor[block_id] = block_id + values


def handle_of(
    pool: KvPool, block_ids: Sequence[int], location: Location | None = None, checksum: int | None = None
) -> KvHandle:
    """A handle for whole blocks of a pool, as their owner would export them now."""
    return KvHandle(
        handle_id=bytes(range(16)),
        epoch=pool.epoch,
        request_id="r1",
        first_token=0,
        end_token=len(block_ids) * pool.layout.block_size,
        is_final=True,
        block_ids=tuple(block_ids),
        block_generations=tuple(pool.generations[block_id] for block_id in block_ids),
        layout=pool.layout,
        location=GrpcLocation() if location is None else location,
        checksum=checksum,
    )
