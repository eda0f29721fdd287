"""One step after another: plan, run, sample, and say what happened. Knows no thread, no queue, no blocks."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import structlog
import torch

from shared.constraints.matcher import ConstraintError
from shared.engine.step import BeforeCompute, StepRow, do_nothing
from shared.planning import plan_step
from shared.sampling.logprobs import TokenLogprobs
from shared.text.stopping import Finish, token_finish
from shared.worker.drawing import Draw, Draws, draw
from shared.worker.scoring import Head, Scores, score_prompts
from shared.worker.sequence import Sequence
from shared.worker.walks import WalkChoice

log = structlog.get_logger()


@dataclass(frozen=True)
class ChunkLanded:
    """The KV of a request's first `num_computed_tokens` tokens is in the pool.

    Attributes:
        prompt_logprobs: where they are wanted, of the prompt's tokens that follow those of the chunk.
    """

    request_id: str
    num_computed_tokens: int
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class TokenSampled:
    """A token was sampled for completion `index`; `finish` is set if it is the last one."""

    request_id: str
    token_id: int
    finish: Finish | None
    index: int = 0
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True)
class Retired:
    """No later step touches the request's blocks.

    Attributes:
        error: why, if it failed.
        num_computed_tokens: tokens whose KV is in the pool.
        is_constraint: whether the error is that the request's own constraint cannot go on, as it could not elsewhere.
    """

    request_id: str
    error: str | None = None
    num_computed_tokens: int = 0
    is_constraint: bool = False


SequenceEvent = ChunkLanded | TokenSampled | Retired


class StepRunner(Head, Protocol):
    """What steps need of `shared.engine.runner.Runner`."""

    def run(self, walk: str, rows: list[StepRow], before_compute: BeforeCompute) -> torch.Tensor:
        """Runs one packed step; float32 logits [rows that want them, vocab], valid until the next call of either."""


class Stepper:
    """Sequences that are computed together. Not for use by two threads at once.

    Args:
        runner: runs packed steps.
        walks: the node's walks and limits.
        on_logits: called with each sequence whose last token was in a step, and its logits [vocab], which are valid
            during the call.
    """

    def __init__(
        self,
        runner: StepRunner,
        walks: WalkChoice,
        on_logits: Callable[[Sequence, torch.Tensor], None] | None = None,
    ) -> None:
        self._runner = runner
        self._walks = walks
        self._on_logits = on_logits
        self._sequences: list[Sequence] = []

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not self._sequences

    def add(self, sequence: Sequence) -> None:
        """Takes a sequence; it is the stepper's until it is retired."""
        self._sequences.append(sequence)

    def drop(self, request_id: str) -> list[Retired]:
        """Retires a sequence before its next step; nothing to do where it is retired already."""
        dropped = [sequence for sequence in self._sequences if sequence.request_id == request_id]
        self._sequences = [sequence for sequence in self._sequences if sequence.request_id != request_id]
        return [Retired(request_id, num_computed_tokens=sequence.num_computed_tokens) for sequence in dropped]

    def step(self, before_compute: BeforeCompute = do_nothing) -> list[SequenceEvent]:
        """Computes one step of the sequences, of which there must be some; returns what it did.

        `before_compute` is called once all is ready for it, unless the step fails before.

        A step that fails retires its own sequences and no others; so does a row whose logits are no numbers.
        """
        walk, planned = self._plan()
        rows = [sequence.step_row(num_tokens) for sequence, num_tokens in planned]
        started = time.perf_counter()
        finals = [sequence for (sequence, _), row in zip(planned, rows, strict=True) if row.wants_logits]
        try:
            drawn = self._draw(finals, self._runner.run(walk, rows, before_compute))
            scores = score_prompts(self._runner, planned)
        except RuntimeError as failure:
            log.exception("step_failed", walk=walk, num_rows=len(rows))
            return [self._fail(sequence, str(failure)) for sequence, _ in planned]
        events = [
            event
            for sequence, count in planned
            for event in self._land(
                sequence, count, drawn.get(sequence.request_id), scores.get(sequence.request_id, ())
            )
        ]
        log.debug(
            "step",
            walk=walk,
            num_rows=len(rows),
            num_tokens=sum(len(row.token_ids) for row in rows),
            seconds=round(time.perf_counter() - started, 6),
        )
        return events

    def _plan(self) -> tuple[str, list[tuple[Sequence, int]]]:
        """Chooses the walk, and how many tokens of which sequences; reorders them so that cut ones rotate."""
        walk, sequences = self._walks.token_walk(self._sequences), self._sequences
        if walk is None:
            assert self._walks.decode is not None
            return self._walks.decode, [(sequence, 1) for sequence in sequences]
        waiting: list[Sequence] = []
        if walk is not self._walks.mixed and self._walks.decode is not None:
            waiting = [sequence for sequence in sequences if sequence.is_decoding]
            sequences = [sequence for sequence in sequences if not sequence.is_decoding]
        plan = plan_step([sequence.plan_row() for sequence in sequences], walk.limits)
        self._sequences = [*waiting, *(sequences[index] for index in plan.next_order)]
        return walk.name, [(sequences[row.row_index], row.num_tokens) for row in plan.slices]

    def _draw(self, finals: list[Sequence], logits: torch.Tensor) -> dict[str, Draws]:
        if self._on_logits is not None:
            for sequence, row in zip(finals, logits, strict=True):
                self._on_logits(sequence, row)
        return draw(finals, logits)

    def _land(
        self, sequence: Sequence, num_tokens: int, draws: Draws | None, scores: Scores
    ) -> Iterator[SequenceEvent]:
        """What became of one row of a step: its KV, the scores of its prompt's tokens, and its next tokens."""
        if isinstance(draws, Exception) or isinstance(scores, Exception):
            yield self._fail_row(sequence, draws if isinstance(draws, Exception) else scores)
            return
        was_chunk = not sequence.is_decoding
        sequence.num_computed_tokens += num_tokens
        if was_chunk:
            sequence.is_partial = True
            yield ChunkLanded(sequence.request_id, sequence.num_computed_tokens, scores)
        if draws is None:
            return
        # The sequence's next token, or the last thing it does.
        name, num_generated, room = sequence.request_id, sequence.num_generated + 1, sequence.room - 1
        is_last = len(draws) > 1
        for index, drawn in zip(sequence.indices, draws, strict=True):
            finish = token_finish(sequence.stopping, sequence.eos_token_ids, drawn.token_id, num_generated, room)
            is_last = is_last or finish is not None
            yield TokenSampled(name, drawn.token_id, finish, index, drawn.logprobs)
        if is_last:
            yield from self.drop(name)
        elif (failure := _append(sequence, draws[0])) is not None:
            yield self._fail_row(sequence, failure)

    def _fail_row(self, sequence: Sequence, failure: object) -> Retired:
        log.warning("row_failed", request_id=sequence.request_id, error=str(failure))
        return self._fail(sequence, str(failure), is_constraint=isinstance(failure, ConstraintError))

    def _fail(self, sequence: Sequence, message: str, is_constraint: bool = False) -> Retired:
        self.drop(sequence.request_id)
        return Retired(sequence.request_id, message, is_constraint=is_constraint)


def _append(sequence: Sequence, drawn: Draw) -> ConstraintError | None:
    try:
        sequence.append(drawn.token_id)
    except ConstraintError as error:
        return error
    return None
