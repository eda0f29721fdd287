"""Runs packed steps.

1. The walk's ladder picks the rung that holds the step, and with it the capture; a step above the top rung has none.
2. Rows are written into the input buffers; on a CPU the kernels stop at the real number of tokens.
3. The layers run and write KV into the pool.
4. The LM head runs on the last token of the rows that want logits, and only there.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import structlog
import torch

from shared.config.resolve import ResolvedWalk
from shared.engine.captures import Capture, Captures
from shared.engine.compute import StepComputer
from shared.engine.cuda import recorder_for, wait_for
from shared.engine.graphs import Recorder
from shared.engine.models.loaded import LoadedModel, load_model
from shared.engine.padding import scratch_rows
from shared.engine.pool import BlockPool
from shared.engine.stats import RungTiming, WalkStats
from shared.engine.step import BeforeCompute, StepRow, do_nothing

__all__ = ["LoadedModel", "Runner", "load_model"]

log = structlog.get_logger()

ROW_WALK = "decode"
"""The walk whose rungs count rows, one token each; those of all others count tokens."""
WARM_UP_TOKENS = 128
"""Most tokens that warm-up runs at a rung: so many take all kernels through their largest tiles. That is all that a
first run can find undone, as buffers are touched when they are allocated, and graphs compute the whole rung anyway."""


class Runner:
    """Computes steps of one model over one pool. Not for use by two threads at once, but for what is said to be."""

    def __init__(
        self,
        model: LoadedModel,
        pool: BlockPool,
        walks: Sequence[ResolvedWalk],
        *,
        max_num_rows: int = 256,
        compute_padding: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        """Allocates all buffers.

        Args:
            model: what to compute with.
            pool: where KV is; of the model's layout and on its device. Block 0 belongs to no request.
            walks: the walks of this node.
            max_num_rows: most rows of a step.
            compute_padding: whether steps are filled up to their rung with tokens of no request, as on a GPU. Costs
                time; results are the same.
            recorder: records the captures as graphs; None: CUDA graphs on a GPU, no graphs on a CPU.
        """
        assert pool.layout == model.kv_layout(pool.layout.block_size)
        assert pool.tensor.device == model.device, f"pool on {pool.tensor.device}, model on {model.device}"
        self.walks: Mapping[str, ResolvedWalk] = MappingProxyType({walk.name: walk for walk in walks})
        self._config = model.config
        self._device = model.device
        self._block_size = pool.layout.block_size
        self._stats = MappingProxyType({walk.name: WalkStats.of_rungs(walk.ladder.rungs) for walk in walks})
        self._num_prepared_rungs = MappingProxyType({walk.name: 0 for walk in walks})
        self._max_num_rows = max_num_rows
        self._last: Capture | None = None
        self._captures = Captures(
            StepComputer(model, pool, max_num_rows),
            (rung for walk in walks for rung in walk.ladder.rungs),
            max_num_rows,
            recorder=recorder or recorder_for(model.device),
            compute_padding=compute_padding,
        )

    @property
    def stats(self) -> Mapping[str, WalkStats]:
        """Totals by walk after some step; any thread may ask. It does not change: ask again for later steps."""
        return self._stats

    @property
    def num_prepared_rungs(self) -> Mapping[str, int]:
        """Rungs by walk that warm-up has prepared; any thread may ask."""
        return self._num_prepared_rungs

    def run(self, walk: str, rows: Sequence[StepRow], before_compute: BeforeCompute = do_nothing) -> torch.Tensor:
        """Computes one step: writes the KV of all its tokens, and gives the logits that are wanted.

        Args:
            walk: which of the node's walks this is.
            rows: at least one, of different sequences, within the limits that the runner was made for.
            before_compute: called once the step is loaded. What it wakes in other threads runs while the step does.

        Returns:
            float32 [rows that want logits, vocab_size], in row order. It is the runner's own buffer: valid until
            the next call.
        """
        started = time.perf_counter()
        self._check(rows)
        num_tokens = sum(len(row.token_ids) for row in rows)
        rung = self.walks[walk].ladder.rung_for(num_tokens)
        self._last = None  # buffers of a step above the top rung go before those of the next are allocated
        capture = self._captures.unpadded(num_tokens) if rung is None else self._captures.of_rung(rung)
        self._last = capture
        logits = capture.run(rows, before_compute)
        wait_for(self._device)
        stats = self._stats[walk].with_step(num_tokens, rung, time.perf_counter() - started)
        self._stats = MappingProxyType({**self._stats, walk: stats})
        if rung is None:
            self._log_miss(walk, num_tokens)
        return logits

    @property
    def max_num_logits(self) -> int:
        """Most tokens that `logits_of` takes."""
        return self._max_num_rows

    def logits_of(self, first: int, end: int) -> torch.Tensor:
        """Runs the LM head on tokens of the step just run, as log-probabilities of prompts want.

        Args:
            first: place of the first token in the step, its rows one after the other.
            end: place after the last; no more than `max_num_logits` tokens.

        Returns:
            float32 [end - first, vocab_size]. It is the runner's own buffer, which `run` gave out too: valid until the
            next call of either.
        """
        assert 0 <= first < end <= first + self._max_num_rows, (first, end)
        assert self._last is not None, "no step has been run"
        logits = self._last.logits_of(first, end)
        wait_for(self._device)
        return logits

    def warm_up(self) -> Iterator[RungTiming]:
        """Runs every rung of every walk once, the largest first, never with more tokens than the walk's budget.

        Yields:
            How long each took, as soon as it has run: a caller may leave in between.
        """
        pairs = [(rung, walk) for walk in self.walks.values() for rung in walk.ladder.rungs]
        for rung, walk in sorted(pairs, key=lambda pair: -pair[0]):
            timing = self._prepare(walk, rung)
            num_prepared = self._num_prepared_rungs[walk.name] + 1
            self._num_prepared_rungs = MappingProxyType({**self._num_prepared_rungs, walk.name: num_prepared})
            log.debug("rung_warm", walk=walk.name, rung=rung, seconds=round(timing.seconds, 4))
            yield timing

    def _prepare(self, walk: ResolvedWalk, rung: int) -> RungTiming:
        num_tokens = min(rung, walk.step_budget or rung, WARM_UP_TOKENS)
        row_len = 1 if walk.name == ROW_WALK else min(num_tokens, self._config.max_model_len)
        rows = list(scratch_rows(num_tokens, row_len, self._max_num_rows, self._block_size))
        started = time.perf_counter()
        self._captures.of_rung(rung).run(rows)
        wait_for(self._device)
        seconds = time.perf_counter() - started
        return RungTiming(walk.name, rung, sum(len(row.token_ids) for row in rows), seconds)

    def _check(self, rows: Sequence[StepRow]) -> None:
        assert 0 < len(rows) <= self._max_num_rows, f"{len(rows)} rows; 1 to {self._max_num_rows} can be run"
        for row in rows:
            num_blocks = -(-row.kv_len // self._block_size)
            assert row.token_ids, "a row without tokens"
            assert row.start >= 0, f"row starts at {row.start}"
            assert row.kv_len <= self._config.max_model_len, f"{row.kv_len} tokens; {self._config.max_model_len} fit"
            assert num_blocks <= len(row.block_table), f"{len(row.block_table)} blocks; {num_blocks} are needed"
            if row.input_embeddings is not None:
                self._check_embeddings(row.input_embeddings, len(row.token_ids))

    def _check_embeddings(self, vectors: npt.NDArray[np.float32], num_tokens: int) -> None:
        assert vectors.dtype == np.float32, f"embeddings are {vectors.dtype}, not float32"
        assert vectors.ndim == 2, f"embeddings have {vectors.ndim} dimensions, not 2"
        num_vectors, size = vectors.shape
        assert 0 < num_vectors <= num_tokens, f"{num_vectors} embeddings for {num_tokens} tokens"
        assert size == self._config.hidden_size, f"embeddings of {size}, not {self._config.hidden_size} values"

    def _log_miss(self, walk: str, num_tokens: int) -> None:
        num_misses = self._stats[walk].over_top.num_steps
        if num_misses & (num_misses - 1) == 0:  # the 1st, 2nd, 4th, 8th …
            top = self.walks[walk].ladder.top
            log.warning("step_above_top_rung", walk=walk, num_tokens=num_tokens, top_rung=top, times=num_misses)
