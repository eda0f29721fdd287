"""Captures as graphs: calls that only a rung decides are recorded once and replayed, the others run between them.

The rope and the attention of plain torch have shapes that depend on a step's rows, so they cannot be recorded. What
lies between them (norms, linears, the MLP) has the rung's shapes alone: for L layers that makes L + 1 graphs with L
eager parts between them. This is the scheme that vLLM calls piecewise CUDA graphs
(https://docs.vllm.ai/en/latest/design/cuda_graphs/). Where to cut is found by running the layers once with kernels that
note the calls instead of computing them, so it holds for every model that is made of `Kernels`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Protocol

import torch

from shared.engine.buffers import LoadedStep, StepBuffers
from shared.engine.compute import StepComputer
from shared.engine.ops import HeadBuffers, HeadNorms, Kernels, PackedStep, Weight
from shared.engine.padding import with_padding
from shared.engine.step import BeforeCompute, StepRow, do_nothing

Work = Callable[[], None]


class Recorder(Protocol):
    """Turns work on static memory into something that does the same again at less cost."""

    def warm_up(self, work: Work) -> None:
        """Does `work` where it would be recorded, so that nothing is left to be initialized then."""

    def record(self, work: Work) -> Work:
        """What does `work` again on the same memory. Whether `work` is done now is up to the recorder."""


class GraphCapture:
    """Graphs over a rung's static buffers, which compute every token of the rung."""

    def __init__(self, computer: StepComputer, buffers: StepBuffers, recorder: Recorder) -> None:
        self._computer = computer
        self._buffers = buffers
        self._recorder = recorder
        self._parts: Sequence[Work] = ()

    @torch.inference_mode()
    def run(self, rows: Sequence[StepRow], before_compute: BeforeCompute = do_nothing) -> torch.Tensor:
        """As `Capture.run`."""
        rows = with_padding(rows, self._buffers.num_tokens)
        if not self._parts:
            self._begin(rows)
            self._parts = self._record()
        step = self._begin(rows)
        before_compute()
        for part in self._parts:
            part()
        return self._computer.logits(self._buffers, step)

    def logits_of(self, first: int, end: int) -> torch.Tensor:
        """As `Capture.logits_of`."""
        return self._computer.logits_of(self._buffers, first, end)

    def _begin(self, rows: Sequence[StepRow]) -> LoadedStep:
        step = self._computer.begin(self._buffers, rows)
        self._computer.embed(self._buffers, step)
        return step

    def _record(self) -> list[Work]:
        """Records the layers; a step must be loaded, for what is not recorded to run in the warm-up."""
        self._recorder.warm_up(partial(self._computer.run_layers, self._buffers, self._buffers.kernels))
        notes = _NotingKernels(self._buffers.kernels)
        self._computer.run_layers(self._buffers, notes)
        parts: list[Work] = []
        for is_static, calls in groupby(notes.calls, lambda call: call.is_static):
            work = partial(_do_all, [call.work for call in calls])
            parts.append(self._recorder.record(work) if is_static else work)
        return parts


@dataclass(frozen=True)
class _Call:
    work: Work
    is_static: bool
    """Whether all that it depends on is the same in every step of the rung, but for values in static memory."""


class _NotingKernels:
    """`Kernels` that note what they are asked to do instead of doing it."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self.calls: list[_Call] = []

    def program(self, layers: Callable[[Kernels], None]) -> None:  # noqa: ARG002  as `Kernels` has it
        raise AssertionError("a program is made when buffers are, not in a step")

    def begin_step(self, step: PackedStep) -> None:  # noqa: ARG002  as `Kernels` has it
        raise AssertionError("a step begins before its layers run")

    def embed(self, token_ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:  # noqa: ARG002  as above
        raise AssertionError("a step begins before its layers run")

    def head(
        self,
        hidden: torch.Tensor,  # noqa: ARG002  as above
        logit_tokens: torch.Tensor,  # noqa: ARG002  as above
        norm: torch.Tensor,  # noqa: ARG002  as above
        eps: float,  # noqa: ARG002  as above
        lm_head: Weight,  # noqa: ARG002  as above
        buffers: HeadBuffers,  # noqa: ARG002  as above
    ) -> None:
        raise AssertionError("logits come after the layers")

    def rmsnorm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
        self._note(partial(self._kernels.rmsnorm, x, weight, eps, out), is_static=True)

    def linear(self, x: torch.Tensor, weight: Weight, out: torch.Tensor) -> None:
        self._note(partial(self._kernels.linear, x, weight, out), is_static=True)

    def linear_add(self, x: torch.Tensor, weight: Weight, residual: torch.Tensor) -> None:
        self._note(partial(self._kernels.linear_add, x, weight, residual), is_static=True)

    def linear_silu(self, x: torch.Tensor, weight: Weight, out: torch.Tensor) -> None:
        self._note(partial(self._kernels.linear_silu, x, weight, out), is_static=True)

    def rope_and_write(self, qkv: torch.Tensor, layer: int, norms: HeadNorms | None) -> None:
        self._note(partial(self._kernels.rope_and_write, qkv, layer, norms), is_static=False)

    def attention(self, qkv: torch.Tensor, layer: int, out: torch.Tensor) -> None:
        self._note(partial(self._kernels.attention, qkv, layer, out), is_static=False)

    def _note(self, work: Work, *, is_static: bool) -> None:
        self.calls.append(_Call(work, is_static))


def _do_all(works: Sequence[Work]) -> None:
    for work in works:
        work()
