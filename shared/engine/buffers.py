"""The static buffers of a step: inputs, activations, and the kernels' work space.

A capture of a rung is these buffers for so many tokens. Smaller rungs are views of the largest one's memory: one step
runs at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

import numpy as np
import numpy.typing as npt
import torch

from shared.engine.models.decoder import Activations, run_layers
from shared.engine.models.loaded import LoadedModel
from shared.engine.ops import AttentionSpec, HeadBuffers, Kernels, PackedStep
from shared.engine.step import StepRow
from shared.engine.storage import zeros


@dataclass(frozen=True)
class LoadedStep:
    """A step as it lies in the buffers; on the model's device, but for what `packed` has on the host."""

    token_ids: torch.Tensor
    """int64 [num_tokens]; -1 where a vector stands in the place of an embedding"""
    packed: PackedStep
    logit_tokens: torch.Tensor
    """int64 [rows that want logits]: the last token of each"""


class _Staged:
    """Integers that are written on the host and read on a device; on the host itself both are the same memory."""

    def __init__(self, size: int, device: torch.device) -> None:
        host = zeros(size, dtype=torch.int64)
        self._host = host
        self.device = host if device == host.device else zeros(size, dtype=torch.int64, device=device)
        """The device's memory."""

    @property
    def values(self) -> npt.NDArray[np.int64]:
        """The host's memory."""
        return self._host.numpy()

    def first(self, size: int) -> torch.Tensor:
        """The first `size` of them, on the device."""
        if self.device is not self._host:
            self.device[:size].copy_(self._host[:size])
        return self.device[:size]


class StepInputs:
    """What changes from step to step, written with numpy into memory that torch reads."""

    def __init__(
        self,
        num_tokens: int,
        num_rows: int,
        num_blocks_a_row: int,
        num_blocks: int,
        block_size: int,
        device: torch.device,
    ) -> None:
        """Allocates for steps of up to so many tokens and rows, whose blocks are of a pool of `num_blocks`."""
        self._block_size = block_size
        self._num_blocks = num_blocks
        self._token_ids, self._positions, self._slots = (_Staged(num_tokens, device) for _ in range(3))
        self._logit_tokens = _Staged(num_rows, device)
        self._row_starts = zeros(num_rows + 1, dtype=torch.int64)
        self._kv_lens = zeros(num_rows, dtype=torch.int64)
        self._block_table = zeros(num_rows, num_blocks_a_row, dtype=torch.int64)
        self._tables: list[Sequence[int]] = [()] * num_rows
        self._is_on_host = device == self._kv_lens.device
        self._viewed: tuple[tuple[int, int, int], LoadedStep] | None = None

    def whole(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The memory of all token ids and of all tokens that want logits, on the device."""
        return self._token_ids.device, self._logit_tokens.device

    def load(self, rows: Sequence[StepRow]) -> LoadedStep:
        """Writes the rows of a step, in order.

        A table that stands where it stood in the last step is not written again, so a step of the same decode rows
        costs the same however long they are.
        """
        num_rows = len(rows)
        ends = list(accumulate(len(row.token_ids) for row in rows))
        num_tokens = ends[-1]
        wanted = [end - 1 for row, end in zip(rows, ends, strict=True) if row.wants_logits]
        self._write_tables(rows)
        self._kv_lens.numpy()[:num_rows] = [row.kv_len for row in rows]
        self._row_starts.numpy()[1 : num_rows + 1] = ends
        self._logit_tokens.values[: len(wanted)] = wanted
        self._token_ids.values[:num_tokens] = list(chain.from_iterable(row.token_ids for row in rows))
        if num_tokens == num_rows:
            self._place_single_tokens(rows)
        else:
            self._place_tokens(rows, num_tokens)
        self._mark_vectors(rows, ends)
        return self._views(num_tokens, num_rows, len(wanted))

    def _place_single_tokens(self, rows: Sequence[StepRow]) -> None:
        """Positions and slots where each row is one token. In plain Python, as numpy costs more for so few numbers."""
        size = self._block_size
        self._positions.values[: len(rows)] = [row.start for row in rows]
        self._slots.values[: len(rows)] = [row.block_table[row.start // size] * size + row.start % size for row in rows]

    def _place_tokens(self, rows: Sequence[StepRow], num_tokens: int) -> None:
        #   token     0 1 2 | 3 | 4 5      rows of 3, 1 and 2 tokens that start at positions 3, 0 and 1
        #   row       0 0 0 | 1 | 2 2
        #   position  3 4 5 | 0 | 1 2      = token + (start - row_start) of its row
        row_of_token = np.repeat(np.arange(len(rows)), [len(row.token_ids) for row in rows])
        starts = np.array([row.start for row in rows])
        positions = self._positions.values[:num_tokens]
        np.add(np.arange(num_tokens), (starts - self._row_starts.numpy()[: len(rows)])[row_of_token], out=positions)
        blocks, offsets = np.divmod(positions, self._block_size)
        block_ids = self._block_table.numpy()[row_of_token, blocks]
        np.add(block_ids * self._block_size, offsets, out=self._slots.values[:num_tokens])

    def _mark_vectors(self, rows: Sequence[StepRow], ends: Sequence[int]) -> None:
        for row, end in zip(rows, ends, strict=True):
            if row.input_embeddings is not None:
                start = end - len(row.token_ids)
                self._token_ids.values[start : start + len(row.input_embeddings)] = -1

    def _views(self, num_tokens: int, num_rows: int, num_logits: int) -> LoadedStep:
        """The buffers as far as a step fills them: one of the same counts as the last has the same."""
        counts = (num_tokens, num_rows, num_logits)
        if self._viewed is None or self._viewed[0] != counts or not self._is_on_host:
            packed = PackedStep(
                positions=self._positions.first(num_tokens),
                slots=self._slots.first(num_tokens),
                row_starts=self._row_starts[: num_rows + 1],
                kv_lens=self._kv_lens[:num_rows],
                block_table=self._block_table[:num_rows],
                num_logits=num_logits,
            )
            step = LoadedStep(self._token_ids.first(num_tokens), packed, self._logit_tokens.first(num_logits))
            self._viewed = counts, step
        return self._viewed[1]

    def _write_tables(self, rows: Sequence[StepRow]) -> None:
        width = self._block_table.shape[1]
        for index, row in enumerate(rows):
            table = row.block_table
            if table is not self._tables[index]:
                blocks = np.asarray(table[:width], np.int64)
                assert 0 <= blocks.min() <= blocks.max() < self._num_blocks, "a block that is not in the pool"
                self._block_table.numpy()[index, : len(blocks)] = blocks
                # What can change in place must be written every time.
                self._tables[index] = table if isinstance(table, tuple) else ()


@dataclass(frozen=True)
class StepBuffers:
    """All buffers of steps up to `num_tokens`."""

    num_tokens: int
    inputs: StepInputs
    activations: Activations
    kernels: Kernels
    program: Callable[[], None] | None
    """Runs the whole step that has begun, where the kernels know a way better than call by call."""

    @classmethod
    def allocate(
        cls, model: LoadedModel, spec: AttentionSpec, head: HeadBuffers, num_tokens: int, num_rows: int
    ) -> "StepBuffers":
        """Allocates buffers for steps of up to `num_tokens` tokens in up to `num_rows` rows."""
        num_blocks_a_row = -(-model.config.max_model_len // spec.block_size)
        activations, kernels = _activations(model, spec, num_tokens), model.ops.kernels(spec, num_tokens)
        inputs = StepInputs(num_tokens, num_rows, num_blocks_a_row, spec.pool.shape[0], spec.block_size, model.device)
        token_ids, logit_tokens = inputs.whole()

        def run_step(noting: Kernels) -> None:
            weights, eps = model.weights, model.config.norm_eps
            noting.embed(token_ids, weights.embedding, activations.hidden)
            run_layers(weights, eps, noting, activations)
            noting.head(activations.hidden, logit_tokens, weights.norm, eps, weights.lm_head, head)

        return cls(num_tokens, inputs, activations, kernels, kernels.program(run_step))

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
