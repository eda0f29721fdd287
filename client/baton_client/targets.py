"""The servers that calls can go to, and the channels to them."""

import itertools
import random
import re
from collections.abc import Iterator, Sequence

from baton_client.errors import invalid_argument

DEFAULT_TARGET = "localhost:50051"
DEFAULT_TIMEOUT_S = 600.0

MAX_EMBEDDINGS_BYTES = 64 << 20
"""Most data of an embeddings prompt that a server takes."""

MAX_MESSAGE_BYTES = MAX_EMBEDDINGS_BYTES + (1 << 20)
"""Enough for such a prompt, or the log-probabilities of a long one; a peer cannot make the client hold more."""

MAX_TIMEOUT_S = 1e9
"""gRPC counts deadlines in nanoseconds since 1970 in 64 bits; one far beyond has passed at once, as infinity has."""

_KEEPALIVE_TIMEOUT_MS = 10_000

_LOOPBACK_HOSTS = ("localhost:", "127.", "[::1]:")
_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:", "xds:", "google-c2p:")
"""Of gRPC's name resolvers, which read the rest of a target in their own ways."""

_HOST_AND_PORT = re.compile(r"(?:[^\s:/\[\]]+|\[[0-9A-Fa-f:.%\w]+\]):([0-9]{1,5})")


def parse_targets(targets: str | Sequence[str]) -> tuple[str, ...]:
    """The targets in `"host:a,host:b"`, or in a sequence of gRPC targets.

    Raises:
        ValueError: there is none, or one is neither host:port nor begins with a scheme of gRPC's, such as `dns:`.
    """
    parts = targets.split(",") if isinstance(targets, str) else targets
    parsed = tuple(part.strip() for part in parts if part.strip())
    if not parsed:
        raise ValueError(f"no target in {targets!r}; a target is host:port")
    for target in parsed:
        if not target.startswith(_SCHEMES) and not _is_host_and_port(target):
            raise ValueError(f"target {target!r} needs host:port, with a port from 1 to 65535")
    return parsed


def _is_host_and_port(target: str) -> bool:
    match = _HOST_AND_PORT.fullmatch(target)
    return match is not None and 1 <= int(match[1]) <= 65535


def check_timeout(timeout: float) -> float:
    """`timeout`, if a call can have it.

    Raises:
        InvalidArgument: it is not in (0, MAX_TIMEOUT_S].
    """
    if not isinstance(timeout, int | float) or not 0 < timeout <= MAX_TIMEOUT_S:
        message = f"timeout {timeout!r} needs seconds > 0 and ≤ {MAX_TIMEOUT_S:.0f}"
        raise invalid_argument(message, "timeout", timeout)
    return timeout


def turns(num_targets: int) -> Iterator[int]:
    """Indices of the targets that calls begin with, to be taken modulo `num_targets`.

    They start anywhere, so that programs of one call each do not all go to the first target.
    """
    return itertools.count(random.randrange(num_targets))  # noqa: S311 (nothing secret)


def channel_options(target: str) -> list[tuple[str, int]]:
    """Options of a channel to `target`.

    A peer that hangs is noticed within 40 s by keepalive pings, which the server has to permit with
    `grpc.http2.min_ping_interval_without_data_ms`; they go on however long a call is silent. The answer to a ping is
    waited for as long as `grpc.http2.ping_timeout_ms` says, a minute by default: in grpcio 1.85 the documented
    `grpc.keepalive_timeout_ms` does not shorten that. Connecting gives up after 5 s and is tried again at most 2 s
    later, so that a replica that is back is used. A web proxy named in the environment is not asked for the machine's
    own addresses.
    """
    options = [
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
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
