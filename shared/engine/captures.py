"""Captures: the prepared executable of each rung, and what runs steps that no rung holds.

On a CPU a capture is the rung's static buffers, and kernels stop at the real number of tokens; on a GPU it is CUDA
graphs over these buffers, which compute their padding (`shared.engine.graphs`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from shared.engine.buffers import StepBuffers
from shared.engine.compute import StepComputer
from shared.engine.graphs import GraphCapture, Recorder
from shared.engine.padding import with_padding
from shared.engine.step import BeforeCompute, StepRow, do_nothing


class Capture(Protocol):
    """Runs the steps of one rung. Its first run prepares it, whatever the rows."""

    def run(self, rows: Sequence[StepRow], before_compute: BeforeCompute = do_nothing) -> torch.Tensor:
        """As `StepComputer.compute`, for rows of no more tokens than the rung."""

    def logits_of(self, first: int, end: int) -> torch.Tensor:
        """As `StepComputer.logits_of`, of the step that was run last."""


@dataclass(frozen=True)
class BufferCapture:
    """Static buffers, as on a CPU: tokens past the real ones cost nothing."""

    computer: StepComputer
    buffers: StepBuffers
    computes_padding: bool
    """Whether steps are filled up to the rung, as on a GPU. Costs time; results are the same."""

    def run(self, rows: Sequence[StepRow], before_compute: BeforeCompute = do_nothing) -> torch.Tensor:
        """As `Capture.run`."""
        filled = with_padding(rows, self.buffers.num_tokens) if self.computes_padding else rows
        return self.computer.compute(self.buffers, filled, before_compute)

    def logits_of(self, first: int, end: int) -> torch.Tensor:
        """As `Capture.logits_of`."""
        return self.computer.logits_of(self.buffers, first, end)


class Captures:
    """The captures of all rungs of a runner. All lie in the memory of the largest: one step runs at a time."""

    def __init__(
        self,
        computer: StepComputer,
        rungs: Iterable[int],
        max_num_rows: int,
        *,
        recorder: Recorder | None = None,
        compute_padding: bool = False,
    ) -> None:
        """Allocates the buffers of the largest rung.

        Args:
            computer: computes the steps.
            rungs: in any order.
            max_num_rows: most rows of a step, padding not counted.
            recorder: records graphs; None: captures are buffers alone.
            compute_padding: whether captures without graphs compute their padding.
        """
        rungs = sorted(set(rungs))
        self._computer = computer
        self._max_num_rows = max_num_rows
        self._computes_padding = compute_padding or recorder is not None
        self.buffers = self._allocate(rungs[-1]) if rungs else None
        self._captures: dict[int, Capture] = {}
        if self.buffers is not None:
            self._captures = {rung: self._capture(self.buffers.first(rung), recorder) for rung in rungs}

    def of_rung(self, rung: int) -> Capture:
        """The capture of a rung."""
        return self._captures[rung]

    def unpadded(self, num_tokens: int) -> Capture:
        """What runs a step of `num_tokens` as it is: in the buffers there are, or else in its own, for this once."""
        fits = self.buffers is not None and num_tokens <= self.buffers.num_tokens
        buffers = self.buffers if fits else self._allocate(num_tokens)
        assert buffers is not None
        return BufferCapture(self._computer, buffers, computes_padding=False)

    def _capture(self, buffers: StepBuffers, recorder: Recorder | None) -> Capture:
        if recorder is None:
            return BufferCapture(self._computer, buffers, self._computes_padding)
        return GraphCapture(self._computer, buffers, recorder)

    def _allocate(self, num_tokens: int) -> StepBuffers:
        # Each token of padding is a row of its own.
        num_rows = num_tokens if self._computes_padding else min(num_tokens, self._max_num_rows)
        return self._computer.allocate(num_tokens, num_rows)
