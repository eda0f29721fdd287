"""The static buffers of a step: inputs, activations, and the kernels' work space.

A capture of a rung is these buffers for so many tokens. Smaller rungs are views of the largest one's memory: one step
runs at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from shared.engine.models.decoder import Activations, run_layers
from shared.engine.models.loaded import LoadedModel
from shared.engine.ops import AttentionSpec, Kernels, PackedStep
from shared.engine.step import StepRow
from shared.engine.storage import zeros


@dataclass(frozen=True)
class LoadedStep:
    """A step as it lies in the buffers; on the model's device, but for what `packed` has on the host."""

    token_ids: torch.Tensor
    """int64 [num_tokens]"""
    packed: PackedStep
    logit_tokens: torch.Tensor
    """int64 [rows that want logits]: the last token of each"""


class _Staged:
    """Integers that are written on the host and read on a device; on the host itself both are the same memory."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.host = zeros(size, dtype=torch.int64)
        self._device = self.host if device == self.host.device else zeros(size, dtype=torch.int64, device=device)

    def first(self, size: int) -> torch.Tensor:
        """The first `size` of them, on the device."""
        if self._device is not self.host:
            self._device[:size].copy_(self.host[:size])
        return self._device[:size]


class StepInputs:
    """What changes from step to step, written with numpy into memory that torch reads."""

    def __init__(
        self, num_tokens: int, num_rows: int, num_blocks_a_row: int, block_size: int, device: torch.device
    ) -> None:
        self._block_size = block_size
        self._device = device
        self._token_ids, self._positions, self._slots = (_Staged(num_tokens, device) for _ in range(3))
        self._row_starts = zeros(num_rows + 1, dtype=torch.int64)
        self._kv_lens = zeros(num_rows, dtype=torch.int64)
        self._block_table = zeros(num_rows, num_blocks_a_row, dtype=torch.int64)

    def load(self, rows: Sequence[StepRow]) -> LoadedStep:
        """Writes the rows of a step, in order."""
        num_tokens = 0
        for index, row in enumerate(rows):
            end = num_tokens + len(row.token_ids)
            num_blocks = -(-row.kv_len // self._block_size)
            positions = np.arange(row.start, row.kv_len)
            table = self._block_table[index].numpy()
            table[:num_blocks] = row.block_table[:num_blocks]
            self._token_ids.host[num_tokens:end].numpy()[:] = row.token_ids
            self._positions.host[num_tokens:end].numpy()[:] = positions
            slots = table[positions // self._block_size] * self._block_size + positions % self._block_size
            self._slots.host[num_tokens:end].numpy()[:] = slots
            self._kv_lens[index] = row.kv_len
            self._row_starts[index + 1] = num_tokens = end
        wanted = [index + 1 for index, row in enumerate(rows) if row.wants_logits]
        packed = PackedStep(
            positions=self._positions.first(num_tokens),
            slots=self._slots.first(num_tokens),
            row_starts=self._row_starts[: len(rows) + 1],
            kv_lens=self._kv_lens[: len(rows)],
            block_table=self._block_table[: len(rows)],
        )
        logit_tokens = (self._row_starts[wanted] - 1).to(self._device)
        return LoadedStep(self._token_ids.first(num_tokens), packed, logit_tokens)


@dataclass(frozen=True)
class StepBuffers:
    """All buffers of steps up to `num_tokens`."""

    num_tokens: int
    inputs: StepInputs
    activations: Activations
    kernels: Kernels
    program: Callable[[], None] | None
    """Runs the layers of the step that has begun, where the kernels know a way better than call by call."""

    @classmethod
    def allocate(cls, model: LoadedModel, spec: AttentionSpec, num_tokens: int, num_rows: int) -> "StepBuffers":
        """Allocates buffers for steps of up to `num_tokens` tokens in up to `num_rows` rows."""
        num_blocks_a_row = -(-model.config.max_model_len // spec.block_size)
        activations, kernels = _activations(model, spec, num_tokens), model.ops.kernels(spec, num_tokens)
        return cls(
            num_tokens=num_tokens,
            inputs=StepInputs(num_tokens, num_rows, num_blocks_a_row, spec.block_size, model.device),
            activations=activations,
            kernels=kernels,
            program=kernels.program(
                lambda noting: run_layers(model.weights, model.config.norm_eps, noting, activations)
            ),
        )

    def first(self, num_tokens: int) -> "StepBuffers":
        """The same memory as a capture of a smaller rung."""
        return replace(self, num_tokens=num_tokens, activations=self.activations.first(num_tokens))


def row_buffer(model: LoadedModel, num_rows: int, num_values: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Zeros [num_rows, num_values], with memory up to a multiple of the ops' row multiple."""
    multiple = model.ops.row_multiple
    return zeros(-(-num_rows // multiple) * multiple, num_values, dtype=dtype, device=model.device)[:num_rows]


def _activations(model: LoadedModel, spec: AttentionSpec, num_tokens: int) -> Activations:
    dtype, hidden_size = model.ops.activation_dtype, model.config.hidden_size
    return Activations(
        hidden=row_buffer(model, num_tokens, hidden_size),
        normed=row_buffer(model, num_tokens, hidden_size, dtype),
        qkv=row_buffer(model, num_tokens, spec.qkv_len, dtype),
        attended=row_buffer(model, num_tokens, spec.query_len, dtype),
        inner=row_buffer(model, num_tokens, model.config.intermediate_size, dtype),
    )
