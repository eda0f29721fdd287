"""Runs packed steps.

1. The walk's ladder picks the rung that holds the step, and with it the buffers; a step above the top rung gets
   buffers of its own.
2. Rows are written into the input buffers; on a CPU the kernels stop at the real number of tokens.
3. The layers run and write KV into the pool.
4. The LM head runs on the last token of the rows that want logits, and only there.
"""

import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import structlog
import torch

from shared.config.resolve import ResolvedWalk
from shared.engine.buffers import SCRATCH_BLOCK, StepBuffers
from shared.engine.compute import StepComputer
from shared.engine.models.loaded import LoadedModel, load_model
from shared.engine.stats import RungTiming, WalkStats
from shared.engine.step import StepRow
from shared.kv.pool import KvPool

__all__ = ["LoadedModel", "Runner", "load_model"]

log = structlog.get_logger()

ROW_WALK = "decode"
"""The walk whose rungs count rows, one token each; those of all others count tokens."""


class Runner:
    """Computes steps of one model over one pool. Not for use by two threads at once."""

    def __init__(
        self,
        model: LoadedModel,
        pool: KvPool,
        walks: Sequence[ResolvedWalk],
        *,
        max_num_rows: int = 256,
        compute_padding: bool = False,
    ) -> None:
        """Allocates all buffers.

        Args:
            model: what to compute with.
            pool: where KV is; of the model's layout. Block 0 belongs to no request.
            walks: the walks of this node.
            max_num_rows: most rows of a step.
            compute_padding: whether steps are filled up to their rung with tokens of no request, as on a GPU. Costs
                time; results are the same.
        """
        assert pool.layout == model.kv_layout(pool.layout.block_size)
        self._config = model.config
        self._num_blocks, self._block_size = pool.num_blocks, pool.layout.block_size
        self._walks = {walk.name: walk for walk in walks}
        self._stats = {walk.name: WalkStats() for walk in walks}
        self._max_num_rows = max_num_rows
        self._compute_padding = compute_padding
        self._computer = StepComputer(model, pool, max_num_rows)
        self._captures = self._make_captures()

    @property
    def stats(self) -> Mapping[str, WalkStats]:
        """Totals by walk, as of now."""
        return dict(self._stats)

    def run(self, walk: str, rows: Sequence[StepRow]) -> torch.Tensor:
        """Computes one step: writes the KV of all its tokens, and gives the logits that are wanted.

        Args:
            walk: which of the node's walks this is.
            rows: at least one, of different sequences, within the limits that the runner was made for.

        Returns:
            float32 [rows that want logits, vocab_size], in row order. It is the runner's own buffer: valid until
            the next call.
        """
        started = time.perf_counter()
        self._check(rows)
        num_tokens = sum(len(row.token_ids) for row in rows)
        rung = self._walks[walk].ladder.rung_for(num_tokens)
        buffers = self._allocate(num_tokens) if rung is None else self._captures[rung]
        logits = self._computer.compute(buffers, self._filled(rows, buffers.num_tokens - num_tokens))
        self._stats[walk] = self._stats[walk].with_step(num_tokens, rung, time.perf_counter() - started)
        if rung is None:
            self._log_miss(walk, num_tokens)
        return logits

    def warm_up(self) -> Iterator[RungTiming]:
        """Runs every rung of every walk once, the largest first, never with more tokens than the walk's budget.

        Yields:
            How long each took, as soon as it has run: a caller may leave in between.
        """
        for walk in self._walks.values():
            for timing in self._warm_up_walk(walk):
                log.debug("rung_warm", walk=timing.walk, rung=timing.rung, seconds=round(timing.seconds, 4))
                yield timing

    def _warm_up_walk(self, walk: ResolvedWalk) -> Iterator[RungTiming]:
        for rung in reversed(walk.ladder.rungs):
            num_tokens = rung if walk.step_budget is None else min(rung, walk.step_budget)
            rows = list(self._warm_up_rows(walk.name, num_tokens))
            num_tokens = sum(len(row.token_ids) for row in rows)
            started = time.perf_counter()
            self._computer.compute(self._captures[rung], self._filled(rows, rung - num_tokens))
            yield RungTiming(walk.name, rung, num_tokens, time.perf_counter() - started)

    def _warm_up_rows(self, walk: str, num_tokens: int) -> Iterator[StepRow]:
        """Rows that no request owns: all their KV goes to the scratch block."""
        row_len = 1 if walk == ROW_WALK else min(num_tokens, self._config.max_model_len)
        num_rows = min(-(-num_tokens // row_len), self._max_num_rows)
        for _ in range(num_rows):
            this_len = min(row_len, num_tokens)
            num_tokens -= this_len
            yield StepRow([0] * this_len, 0, [SCRATCH_BLOCK] * -(-this_len // self._block_size), wants_logits=True)

    def _filled(self, rows: Sequence[StepRow], num_padding: int) -> Sequence[StepRow]:
        """The rows, and padding where it is computed: tokens at position 0 that attend to themselves alone."""
        if not self._compute_padding:
            return rows
        return [*rows, *([StepRow([0], 0, [SCRATCH_BLOCK], wants_logits=False)] * num_padding)]

    def _make_captures(self) -> dict[int, StepBuffers]:
        rungs = sorted({rung for walk in self._walks.values() for rung in walk.ladder.rungs})
        if not rungs:
            return {}
        largest = self._allocate(rungs[-1])
        return {rung: largest.first(rung) for rung in rungs}

    def _allocate(self, num_tokens: int) -> StepBuffers:
        num_rows = num_tokens if self._compute_padding else min(num_tokens, self._max_num_rows)
        return self._computer.allocate(num_tokens, num_rows)

    def _check(self, rows: Sequence[StepRow]) -> None:
        assert 0 < len(rows) <= self._max_num_rows, f"{len(rows)} rows; 1 to {self._max_num_rows} can be run"
        for row in rows:
            num_blocks = -(-row.kv_len // self._block_size)
            assert row.token_ids, "a row without tokens"
            assert row.start >= 0, f"row starts at {row.start}"
            assert row.kv_len <= self._config.max_model_len, f"{row.kv_len} tokens; {self._config.max_model_len} fit"
            assert num_blocks <= len(row.block_table), f"{len(row.block_table)} blocks; {num_blocks} are needed"
            assert all(0 <= block < self._num_blocks for block in row.block_table), "a block that is not in the pool"
            if row.input_embeddings is not None:
                self._check_embeddings(row.input_embeddings, len(row.token_ids))

    def _check_embeddings(self, vectors: npt.NDArray[np.float32], num_tokens: int) -> None:
        assert vectors.dtype == np.float32, f"embeddings are {vectors.dtype}, not float32"
        assert vectors.ndim == 2, f"embeddings have {vectors.ndim} dimensions, not 2"
        num_vectors, size = vectors.shape
        assert 0 < num_vectors <= num_tokens, f"{num_vectors} embeddings for {num_tokens} tokens"
        assert size == self._config.hidden_size, (
            f"embeddings of {size} values; hidden_size is {self._config.hidden_size}"
        )

    def _log_miss(self, walk: str, num_tokens: int) -> None:
        num_unpadded_steps = self._stats[walk].num_unpadded_steps
        if num_unpadded_steps & (num_unpadded_steps - 1) == 0:  # the 1st, 2nd, 4th, 8th …
            top = self._walks[walk].ladder.top
            log.warning("step_above_top_rung", walk=walk, num_tokens=num_tokens, top_rung=top, times=num_unpadded_steps)
