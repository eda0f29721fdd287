"""Which target a call goes to next, when, and whether at all."""

import math
import random
import time
from collections.abc import Callable, Sequence

import grpc

from baton_client.errors import BatonClientError
from baton_client.targets import check_timeout

DEFAULT_RESUME_TIMEOUT_S = 30.0

_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 1.0

# A peer that is killed, closes the connection or stops with calls running is UNAVAILABLE to grpcio; KV that is lost on
# the way between services, DATA_LOSS; a call that a proxy or the server's transport ends, CANCELLED.
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DATA_LOSS, grpc.StatusCode.CANCELLED)

# What gRPC's transports say where a stream or connection broke and the server itself gave no status.
_BROKEN_TRANSPORT = {
    grpc.StatusCode.UNKNOWN: ("Stream removed",),
    grpc.StatusCode.INTERNAL: ("RST_STREAM", "GOAWAY"),
}


def is_lost(error: BatonClientError) -> bool:
    """Whether a call failed for a reason that lies in the server or the way to it, and not in the request."""
    if error.status in _LOST:
        return True
    signs = () if error.reason else _BROKEN_TRANSPORT.get(error.status, ())
    return any(sign in error.message for sign in signs)


class Attempts:
    """The attempts of one call: each target once at most, beginning with `first`, all within `timeout` seconds.

    Once something has arrived there is none but the running one.

    Raises:
        InvalidArgument: `timeout` is none that a call can have.
    """

    def __init__(
        self,
        targets: Sequence[str],
        first: int,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._targets = targets
        self._turn = first
        self._num_failed = 0
        self._has_arrived = False
        self._clock = clock
        self._uniform = uniform
        self._deadline = clock() + check_timeout(timeout)

    @property
    def target(self) -> str:
        """The target to try now."""
        return self._targets[self._turn % len(self._targets)]

    @property
    def remaining(self) -> float:
        """Seconds until the deadline, 0 when it has passed."""
        return max(0.0, self._deadline - self._clock())

    def note_arrival(self) -> None:
        """Something new has arrived for the caller."""
        self._has_arrived = True

    def next_delay(self, error: BatonClientError) -> float:
        """Moves on to the next target after `error`; returns the seconds to wait before it is tried.

        Raises:
            BatonClientError: `error` itself, where another target would not help or no target or time is left.
        """
        self._turn += 1
        self._num_failed += 1
        if not self._may_help(error):
            raise error
        delay = self._delay(error)
        if delay >= self.remaining:
            raise error
        return delay

    def _may_help(self, error: BatonClientError) -> bool:
        is_unavailable = error.status is grpc.StatusCode.UNAVAILABLE
        return is_unavailable and not self._has_arrived and self._num_failed < len(self._targets)

    def _delay(self, error: BatonClientError) -> float:
        del error
        return self._backoff()

    def _backoff(self) -> float:
        longest = min(math.ldexp(_FIRST_DELAY_S, min(self._num_failed - 1, 10)), _LONGEST_DELAY_S)
        return longest * self._uniform(0.5, 1.0)


class PatientAttempts(Attempts):
    """Attempts on one target after another, over and over, until nothing new has arrived for `patience` seconds.

    These count from the first failure after the last arrival: a server may take long for an answer. One whose queue is
    full is tried again when it said.

    Raises:
        InvalidArgument: `timeout` or `patience` is no time that a call can have.
    """

    def __init__(
        self,
        targets: Sequence[str],
        first: int,
        timeout: float,
        patience: float = DEFAULT_RESUME_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        super().__init__(targets, first, timeout, clock, uniform)
        self._patience = check_timeout(patience)
        self._failing_since: float | None = None

    def note_arrival(self) -> None:
        """See `Attempts`."""
        self._num_failed = 0
        self._failing_since = None

    def next_delay(self, error: BatonClientError) -> float:
        """See `Attempts`."""
        if self._failing_since is None:
            self._failing_since = self._clock()
        delay = super().next_delay(error)
        if self._clock() + delay >= self._failing_since + self._patience:
            raise error
        return delay

    def _may_help(self, error: BatonClientError) -> bool:
        return is_lost(error) or _has_no_room_yet(error)

    def _delay(self, error: BatonClientError) -> float:
        return max(self._backoff(), error.retry_after or 0.0)


def _has_no_room_yet(error: BatonClientError) -> bool:
    return error.status is grpc.StatusCode.RESOURCE_EXHAUSTED and error.retry_after is not None
