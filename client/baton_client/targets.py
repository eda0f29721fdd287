"""Which server a call goes to, for how long, and how often it is tried."""

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence

import grpc

from baton_client.errors import BatonClientError

DEFAULT_TARGET = "localhost:50051"
DEFAULT_TIMEOUT_S = 600.0

MAX_MESSAGE_BYTES = 64 << 20
"""Enough for the log-probabilities of a long prompt; a peer cannot make the client hold more."""

_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 1.0
_LOOPBACK_HOSTS = ("localhost:", "127.", "[::1]:")


def parse_targets(targets: str | Sequence[str]) -> tuple[str, ...]:
    """The targets in `"host:a,host:b"`, or in a sequence of gRPC targets.

    Raises:
        ValueError: there is none.
    """
    parts = targets.split(",") if isinstance(targets, str) else targets
    parsed = tuple(part.strip() for part in parts if part.strip())
    if not parsed:
        raise ValueError(f"no target in {targets!r}; a target is host:port")
    return parsed


def turns(num_targets: int) -> Iterator[int]:
    """Indices of the targets that calls begin with, to be taken modulo `num_targets`.

    They start anywhere, so that programs of one call each do not all go to the first target.
    """
    return itertools.count(random.randrange(num_targets))  # noqa: S311 (nothing secret)


def channel_options(target: str) -> list[tuple[str, int]]:
    """Options of a channel to `target`.

    A peer that hangs is noticed within 40 s by keepalive pings, which the server has to permit with
    `grpc.http2.min_ping_interval_without_data_ms`; they go on however long a call is silent. Connecting gives up after
    5 s and is tried again at most 2 s later, so that a replica that is back is used. A web proxy named in the
    environment is not asked for the machine's own addresses.
    """
    options = [
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ]
    if target.startswith(_LOOPBACK_HOSTS):
        options.append(("grpc.enable_http_proxy", 0))
    return options


class Attempts:
    """The attempts of one call: each target once at most, beginning with `first`, all within `timeout` seconds."""

    def __init__(
        self,
        targets: Sequence[str],
        first: int,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._targets = targets
        self._first = first
        self._num_failed = 0
        self._clock = clock
        self._uniform = uniform
        self._deadline = clock() + timeout

    @property
    def target(self) -> str:
        """The target to try now."""
        return self._targets[(self._first + self._num_failed) % len(self._targets)]

    @property
    def remaining(self) -> float:
        """Seconds until the deadline, 0 when it has passed."""
        return max(0.0, self._deadline - self._clock())

    def next_delay(self, error: BatonClientError) -> float:
        """Moves on to the next target after `error`; returns the seconds to wait before it is tried.

        Raises:
            BatonClientError: `error` itself, where another target would not help or no target or time is left.
        """
        self._num_failed += 1
        if error.status is not grpc.StatusCode.UNAVAILABLE or self._num_failed == len(self._targets):
            raise error
        longest = min(math.ldexp(_FIRST_DELAY_S, self._num_failed - 1), _LONGEST_DELAY_S)
        delay = longest * self._uniform(0.5, 1.0)
        if delay >= self.remaining:
            raise error
        return delay
