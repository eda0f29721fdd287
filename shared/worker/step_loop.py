"""The step loop: sequences submitted, cancelled and stepped, on a thread of its own.

1. Take commands: sequences submitted, request ids cancelled.
2. Plan the step and load it (`shared.worker.stepper`).
3. Publish what the step before did, all of it together, to the event loop.
4. Compute, and sample.

So the event loop detokenizes, streams and admits while a step computes, which needs no interpreter, and not between two
steps, where both threads would want it. A step with none to follow is published at once.

A step that fails fails its own sequences and no others. Anything else that goes wrong ends the loop, is
published as `LoopStopped`, and ends the service: a restart is better than a half-broken engine.
"""

import contextvars
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog
import torch

from shared.errors import Reason, UnavailableError
from shared.worker.sequence import Sequence
from shared.worker.stepper import ChunkLanded, Retired, SequenceEvent, Stepper, StepRunner, TokenSampled
from shared.worker.walks import WalkChoice

__all__ = ["ChunkLanded", "LoopStopped", "Retired", "StepEvent", "StepLoop", "TokenSampled", "loop_stopped_error"]

log = structlog.get_logger()


@dataclass(frozen=True)
class LoopStopped:
    """The loop has ended; `error` is None where it was asked to."""

    error: str | None


StepEvent = SequenceEvent | LoopStopped


def loop_stopped_error(error: str) -> UnavailableError:
    """What a request gets that needs a step loop which has ended."""
    return UnavailableError(f"the engine has stopped: {error}", Reason.ENGINE_FAILED)


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
        self._stepper = Stepper(runner, walks)
        self._events: list[StepEvent] = []
        self._publish = publish
        self._num_threads = num_threads
        self._commands: queue.Queue[_Submit | _Cancel | None] = queue.Queue(3 * max_num_sequences + 1)
        # The context has what every log line of this process carries.
        main = partial(contextvars.copy_context().run, self._main)
        self._thread = threading.Thread(target=main, name="step-loop", daemon=True)

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
                events = self._stepper.step(self._publish_events)
                self._events.extend(events)
        except Exception as failure:  # the thread's last frame: report, never vanish
            log.exception("step_loop_failed")
            error = f"{type(failure).__name__}: {failure}"
        self._events.append(LoopStopped(error))
        self._publish_events()

    def _take_commands(self) -> bool:
        """Applies all waiting commands; blocks while there is nothing to run. False: stop."""
        while self._stepper.is_idle or not self._commands.empty():
            if self._stepper.is_idle and self._commands.empty():
                self._publish_events()
            match self._commands.get():
                case None:
                    return False
                case _Submit(sequence):
                    self._stepper.add(sequence)
                case _Cancel(request_id):
                    self._events += self._stepper.drop(request_id)
        return True

    def _publish_events(self) -> None:
        if self._events:
            self._publish(self._events)
            self._events = []
