"""How much memory a runner takes, told from the shape of its model before there are any weights."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from shared.config.resolve import ResolvedWalk
from shared.engine.captures import Captures
from shared.engine.compute import StepComputer
from shared.engine.models.config import ModelConfig
from shared.engine.models.loaded import outline_model
from shared.engine.pool import DevicePool
from shared.engine.storage import storage_bytes
from shared.kv.segment import Arrangement

_TILES_BOUND = 1024
"""Rows that work buffers of tiles are no larger than, however small the steps."""


@dataclass(frozen=True)
class StepBytes:
    """Bytes of a runner's static memory, by what they are for. The first three grow with the top rung."""

    inputs: int
    """Token ids, positions, block tables."""
    activations: int
    """The residual stream and what the layers make of it."""
    kernels: int
    """The kernels' work space."""
    head: int
    """Hidden states and logits of the rows that want them; grows with the rows."""
    rope_table: int
    """Cosines and sines of every position."""

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, part.name) for part in fields(self))


def step_bytes(
    config: ModelConfig,
    dtype: str,
    walks: Sequence[ResolvedWalk],
    max_num_rows: int,
    block_size: int,
    *,
    kernels: str = "torch",
) -> StepBytes:
    """The bytes that a `Runner` allocates on a CPU, weights and pool not counted.

    It allocates what a runner would on torch's meta device, which keeps sizes alone, and adds up the storages.

    Args:
        config: the model's shape, limited to the length that it is to serve.
        dtype: "float32", "bfloat16", or "auto": what `load_model` would take on this machine.
        walks: the walks of the node.
        max_num_rows: most rows of a step.
        block_size: tokens a KV block.
        kernels: as for `load_model`.

    Raises:
        ModelLoadError: the dtype is not served.
    """
    with torch.device("meta"):
        model = outline_model(config, dtype, block_size=block_size, kernels=kernels)
        pool = DevicePool.allocate(model.kv_layout(block_size), 1, model.device)
        computer = StepComputer(model, pool, max_num_rows)
        rungs = [rung for walk in walks for rung in walk.ladder.rungs]
        buffers = Captures(computer, rungs, max_num_rows).buffers
    shared = (pool.tensor, computer.spec.rope_table)
    return StepBytes(
        inputs=storage_bytes(buffers and buffers.inputs),
        activations=storage_bytes(buffers and buffers.activations),
        kernels=storage_bytes(buffers and buffers.kernels, besides=shared),
        head=storage_bytes(computer.head_buffers),
        rope_table=storage_bytes(computer.spec.rope_table),
    )


def step_bytes_bound(config: ModelConfig, walks: Sequence[ResolvedWalk], max_num_rows: int, block_size: int) -> int:
    """No less than `step_bytes`, whatever the ops: at once, where the exact figure takes a second of imports."""
    heads, kv_heads = config.num_heads, config.num_kv_heads
    num_tokens = max((rung for walk in walks for rung in walk.ladder.rungs), default=0) + _TILES_BOUND
    a_token = config.hidden_size + config.intermediate_size + (2 * heads + 2 * kv_heads) * config.head_dim
    a_row = config.vocab_size + 2 * config.hidden_size + 2 * -(-config.max_model_len // block_size)
    rope_table = config.max_model_len * config.head_dim
    return 4 * (16 * num_tokens * a_token + (max_num_rows + _TILES_BOUND) * a_row + rope_table)


def kv_pool_bytes(config: ModelConfig, dtype: str, block_size: int, num_blocks: int, *, kernels: str = "torch") -> int:
    """The bytes of a pool of so many blocks for this model, its bookkeeping included; `dtype` as for `step_bytes`."""
    model = outline_model(config, dtype, block_size=block_size, kernels=kernels)
    return Arrangement.of(model.kv_layout(block_size), num_blocks).num_bytes
