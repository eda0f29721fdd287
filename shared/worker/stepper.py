"""One step after another: plan, run, sample, and say what happened. Knows no thread, no queue, no blocks."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import structlog
import torch

from shared.constraints.matcher import ConstraintError
from shared.engine.step import BeforeCompute, StepRow, do_nothing
from shared.planning import plan_step
from shared.sampling.logprobs import TokenLogprobs, prompt_logprobs, token_logprobs
from shared.sampling.sampler import SampleRow, sample
from shared.text.stopping import Finish, token_finish
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
    """

    request_id: str
    error: str | None = None
    num_computed_tokens: int = 0


SequenceEvent = ChunkLanded | TokenSampled | Retired


class StepRunner(Protocol):
    """What steps need of `shared.engine.runner.Runner`."""

    def run(self, walk: str, rows: list[StepRow], before_compute: BeforeCompute) -> torch.Tensor:
        """Runs one packed step; float32 logits [rows that want them, vocab], valid until the next call of either."""

    def logits_of(self, first: int, end: int) -> torch.Tensor:
        """Float32 logits [end - first, vocab] of tokens [first, end) of the step just run, in its order.

        No more than `max_num_logits` tokens; valid until the next call.
        """

    @property
    def max_num_logits(self) -> int:
        """Most tokens that `logits_of` takes."""


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
        try:
            logits = self._runner.run(walk, rows, before_compute)
        except RuntimeError as failure:
            log.exception("step_failed", walk=walk, num_rows=len(rows))
            return [self._fail(sequence, str(failure)) for sequence, _ in planned]
        finals = [sequence for (sequence, _), row in zip(planned, rows, strict=True) if row.wants_logits]
        sampled = self._sample(finals, logits)
        logprobs = self._prompt_logprobs(planned)  # after the draws, whose logits it overwrites
        events = [event for sequence, count in planned for event in self._land(sequence, count, sampled, logprobs)]
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

    def _sample(self, finals: list[Sequence], logits: torch.Tensor) -> dict[str, "_Draws"]:
        """The next tokens of all completions of each sequence, or why there are none."""
        if self._on_logits is not None:
            for sequence, row in zip(finals, logits, strict=True):
                self._on_logits(sequence, row)
        draws = {sequence.request_id: _Draws() for sequence in finals}
        wanted: list[tuple[_Draws, SampleRow, int]] = []
        for place, sequence in enumerate(finals):
            try:
                wanted += [(draws[sequence.request_id], row, place) for row in sequence.sample_rows()]
            except ConstraintError as error:
                draws[sequence.request_id].error = error
        places = [place for _, _, place in wanted]
        rows = logits if places == list(range(len(finals))) else logits[places]
        for (drawn, row, _), token_id in zip(wanted, sample(rows, [row for _, row, _ in wanted]), strict=True):
            if isinstance(token_id, FloatingPointError):
                drawn.error = token_id
            else:
                drawn.tokens.append((row.index, token_id))
        for sequence, row in zip(finals, logits, strict=True):
            if sequence.logprobs is not None:
                draws[sequence.request_id].note_logprobs(row, sequence.logprobs)
        return draws

    def _prompt_logprobs(
        self, planned: list[tuple[Sequence, int]]
    ) -> dict[str, tuple[TokenLogprobs, ...] | FloatingPointError]:
        """Of each sequence that wants them, the log-probabilities of the prompt's tokens that follow its chunk's."""
        found: dict[str, tuple[TokenLogprobs, ...] | FloatingPointError] = {}
        first = 0
        for sequence, count in planned:
            if sequence.prompt_logprobs is not None:
                try:
                    found[sequence.request_id] = self._follow_chunk(sequence, first, count)
                except FloatingPointError as error:
                    found[sequence.request_id] = error
            first += count
        return found

    def _follow_chunk(self, sequence: Sequence, first: int, count: int) -> tuple[TokenLogprobs, ...]:
        #   prompt   t0 t1 t2 t3 t4      the chunk's logits at t2 and t3 are of what follows them: t3 and t4.
        #   chunk          t2 t3 t4      Those at t4 are of the first generated token.
        assert sequence.prompt_logprobs is not None
        start = sequence.num_computed_tokens + 1
        followers = sequence.token_ids[start : min(start + count, sequence.prompt_len)]
        logprobs: list[TokenLogprobs] = []
        for place in range(0, len(followers), self._runner.max_num_logits):
            piece = followers[place : place + self._runner.max_num_logits]
            logits = self._runner.logits_of(first + place, first + place + len(piece))
            logprobs += prompt_logprobs(logits.numpy(), piece, sequence.prompt_logprobs)
        return tuple(logprobs)

    def _land(
        self,
        sequence: Sequence,
        num_tokens: int,
        sampled: dict[str, "_Draws"],
        logprobs: dict[str, tuple[TokenLogprobs, ...] | FloatingPointError],
    ) -> Iterator[SequenceEvent]:
        name = sequence.request_id
        draws = sampled.get(name)
        followers = logprobs.get(name, ())
        error = followers if isinstance(followers, FloatingPointError) else draws.error if draws is not None else None
        if error is not None or isinstance(followers, FloatingPointError):
            log.warning("row_failed", request_id=name, error=str(error))
            yield self._fail(sequence, str(error))
            return
        was_chunk = not sequence.is_decoding
        sequence.num_computed_tokens += num_tokens
        if was_chunk:
            sequence.is_partial = True
            yield ChunkLanded(name, sequence.num_computed_tokens, followers)
        if draws is None:
            return
        yield from self._take(sequence, draws)

    def _take(self, sequence: Sequence, draws: "_Draws") -> Iterator[SequenceEvent]:
        """Goes on with what was drawn: the sequence's next token, or the last thing it does."""
        name, num_generated = sequence.request_id, sequence.num_generated + 1
        is_last = len(sequence.indices) > 1
        for index, token_id in draws.tokens:
            finish = token_finish(sequence.stopping, sequence.eos_token_ids, token_id, num_generated, sequence.room - 1)
            is_last = is_last or finish is not None
            yield TokenSampled(name, token_id, finish, index, draws.logprobs.get(token_id))
        if is_last:
            yield from self.drop(name)
            return
        try:
            sequence.append(draws.tokens[0][1])
        except ConstraintError as error:
            log.warning("row_failed", request_id=name, error=str(error))
            yield self._fail(sequence, str(error))

    def _fail(self, sequence: Sequence, message: str) -> Retired:
        self.drop(sequence.request_id)
        return Retired(sequence.request_id, message)


@dataclass
class _Draws:
    """What was drawn for one sequence: the token of each completion, with log-probabilities by token if wanted."""

    tokens: list[tuple[int, int]] = field(default_factory=list)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    error: FloatingPointError | ConstraintError | None = None

    def note_logprobs(self, logits: torch.Tensor, num_alternatives: int) -> None:
        """Adds the log-probabilities of the tokens drawn from these logits, [vocab_size]."""
        if self.error is None:
            values = logits.numpy()
            for _, token_id in self.tokens:
                self.logprobs[token_id] = token_logprobs(values, token_id, num_alternatives)
