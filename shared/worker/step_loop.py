"""The step loop: plan, run, publish, on a thread of its own.

1. Take commands: sequences submitted, request ids cancelled.
2. Plan: which sequences run how many tokens (pure, `shared.planning`).
3. Run the packed step; sample where a sequence's last token was in it.
4. Publish what happened, all of one step together, to the event loop.

A step that fails fails its own sequences and no others. Anything else that goes wrong ends the loop, is
published as `LoopStopped`, and ends the service: a restart is better than a half-broken engine.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import structlog
import torch

from shared.engine.step import StepRow
from shared.errors import Reason, UnavailableError
from shared.planning import StepLimits, plan_step
from shared.sampling.sampler import sample
from shared.text.stopping import Finish, token_finish
from shared.worker.sequence import Sequence

log = structlog.get_logger()


@dataclass(frozen=True)
class ChunkLanded:
    """The KV of a request's first `num_computed_tokens` tokens is in the pool."""

    request_id: str
    num_computed_tokens: int


@dataclass(frozen=True)
class TokenSampled:
    """A token was sampled; `finish` is set if it is the last one."""

    request_id: str
    token_id: int
    finish: Finish | None


@dataclass(frozen=True)
class Retired:
    """The loop no longer touches the request's blocks.

    Attributes:
        error: why, if it failed.
        num_computed_tokens: tokens whose KV is in the pool.
    """

    request_id: str
    error: str | None = None
    num_computed_tokens: int = 0


@dataclass(frozen=True)
class LoopStopped:
    """The loop has ended; `error` is None where it was asked to."""

    error: str | None


def loop_stopped_error(error: str) -> UnavailableError:
    """What a request gets that needs a step loop which has ended."""
    return UnavailableError(f"the engine has stopped: {error}", Reason.ENGINE_FAILED)


StepEvent = ChunkLanded | TokenSampled | Retired | LoopStopped


class StepRunner(Protocol):
    """What the loop needs of `shared.engine.runner.Runner`."""

    def run(self, walk: str, rows: list[StepRow]) -> torch.Tensor:
        """Runs one packed step; float32 logits [rows that want them, vocab]."""


@dataclass(frozen=True)
class WalkChoice:
    """The walks of a node.

    Attributes:
        chunk_walk: where prompt chunks run.
        decode_walk: where none does; None: chunks are all there is.
        max_new_tokens: tokens that a sequence gets before it is retired; None: as many as it asks for.
    """

    chunk_walk: str
    chunk_limits: StepLimits
    decode_walk: str | None
    max_new_tokens: int | None = None


@dataclass(frozen=True)
class _Submit:
    sequence: Sequence


@dataclass(frozen=True)
class _Cancel:
    request_id: str


class StepLoop:
    """Runs submitted sequences until each is finished or cancelled.

    Args:
        runner: runs packed steps.
        walks: the node's walks and limits.
        publish: called on the loop's thread with the events of one step.
        num_threads: threads that torch may use.
        max_num_sequences: most sequences submitted at a time. The command queue holds all that can be asked until the
            loop listens again: cancellations of those that the step retires, and both of as many that follow.
    """

    def __init__(
        self,
        runner: StepRunner,
        walks: WalkChoice,
        publish: Callable[[list[StepEvent]], None],
        num_threads: int,
        max_num_sequences: int,
    ) -> None:
        self._runner = runner
        self._walks = walks
        self._publish = publish
        self._num_threads = num_threads
        self._commands: queue.Queue[_Submit | _Cancel | None] = queue.Queue(3 * max_num_sequences + 1)
        self._sequences: list[Sequence] = []
        self._thread = threading.Thread(target=self._main, name="step-loop", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def submit(self, sequence: Sequence) -> None:
        """Hands a sequence over; it is the loop's until `Retired` is published for it."""
        self._commands.put_nowait(_Submit(sequence))

    def cancel(self, request_id: str) -> None:
        """Asks to retire a sequence before its next step."""
        self._commands.put_nowait(_Cancel(request_id))

    def stop(self) -> None:
        """Ends the loop after the current step and joins the thread; sequences left are dropped."""
        if self._thread.is_alive():
            self._commands.put(None)
            self._thread.join()

    def _main(self) -> None:
        torch.set_num_threads(self._num_threads)
        error = None
        try:
            while self._take_commands():
                self._step()
        except Exception as failure:  # the thread's last frame: report, never vanish
            log.exception("step_loop_failed")
            error = f"{type(failure).__name__}: {failure}"
        self._publish([LoopStopped(error)])

    def _take_commands(self) -> bool:
        """Applies all waiting commands; blocks while there is nothing to run. False: stop."""
        retired: list[StepEvent] = []
        while not self._sequences or not self._commands.empty():
            if retired and self._commands.empty():
                self._publish(retired)
                retired = []
            match self._commands.get():
                case None:
                    return False
                case _Submit(sequence):
                    self._sequences.append(sequence)
                case _Cancel(request_id):
                    retired += self._retire(request_id)
        if retired:
            self._publish(retired)
        return True

    def _retire(self, request_id: str) -> list[StepEvent]:
        """Drops a sequence; nothing to do where it had finished before the cancellation came."""
        dropped = [sequence for sequence in self._sequences if sequence.request_id == request_id]
        self._sequences = [sequence for sequence in self._sequences if sequence.request_id != request_id]
        return [Retired(request_id, num_computed_tokens=sequence.num_computed_tokens) for sequence in dropped]

    def _step(self) -> None:
        walk, planned = self._plan()
        rows = [sequence.step_row(num_tokens) for sequence, num_tokens in planned]
        started = time.perf_counter()
        try:
            logits = self._runner.run(walk, rows)
            finals = [sequence for (sequence, _), row in zip(planned, rows, strict=True) if row.wants_logits]
            token_ids = sample(logits, [sequence.sample_row() for sequence in finals]) if finals else []
        except (RuntimeError, FloatingPointError) as failure:
            log.exception("step_failed", walk=walk, num_rows=len(rows))
            self._publish(self._fail(planned, str(failure)))
            return
        sampled = dict(zip((sequence.request_id for sequence in finals), token_ids, strict=True))
        events = [event for sequence, count in planned for event in self._land(sequence, count, sampled)]
        log.debug(
            "step",
            walk=walk,
            num_rows=len(rows),
            num_tokens=sum(len(row.token_ids) for row in rows),
            seconds=round(time.perf_counter() - started, 6),
        )
        self._publish(events)

    def _plan(self) -> tuple[str, list[tuple[Sequence, int]]]:
        """Chooses the walk, and how many tokens of which sequences; reorders them so that cut ones rotate."""
        walks, sequences = self._walks, self._sequences
        if walks.decode_walk is not None and all(sequence.is_decoding for sequence in sequences):
            return walks.decode_walk, [(sequence, 1) for sequence in sequences]
        plan = plan_step([sequence.plan_row() for sequence in sequences], walks.chunk_limits)
        self._sequences = [sequences[index] for index in plan.next_order]
        return walks.chunk_walk, [(sequences[row.row_index], row.num_tokens) for row in plan.slices]

    def _land(self, sequence: Sequence, num_tokens: int, sampled: dict[str, int]) -> Iterable[StepEvent]:
        was_prompt = not sequence.is_decoding
        sequence.num_computed_tokens += num_tokens
        if was_prompt:
            sequence.is_partial = True
            yield ChunkLanded(sequence.request_id, sequence.num_computed_tokens)
        token_id = sampled.get(sequence.request_id)
        if token_id is None:
            return
        sequence.token_ids.append(token_id)
        finish = token_finish(
            sequence.stopping, sequence.eos_token_ids, token_id, sequence.num_generated, sequence.room
        )
        yield TokenSampled(sequence.request_id, token_id, finish)
        limit = self._walks.max_new_tokens
        if finish is not None or (limit is not None and sequence.num_generated >= limit):
            yield from self._retire(sequence.request_id)

    def _fail(self, planned: list[tuple[Sequence, int]], message: str) -> list[StepEvent]:
        failed = {sequence.request_id for sequence, _ in planned}
        self._sequences = [sequence for sequence in self._sequences if sequence.request_id not in failed]
        return [Retired(request_id, message) for request_id in failed]
