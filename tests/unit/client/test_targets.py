import itertools
import math
from pathlib import Path

import grpc
import pytest

from baton_client import BatonClientError, InvalidArgument
from baton_client.targets import Attempts, channel_options, check_timeout, parse_targets, turns

UNAVAILABLE = BatonClientError("no", status=grpc.StatusCode.UNAVAILABLE)


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        ("a:1", ("a:1",)),
        (" a:1, b:2,", ("a:1", "b:2")),
        (["a:1", "ipv4:1.2.3.4:5,6.7.8.9:5"], ("a:1", "ipv4:1.2.3.4:5,6.7.8.9:5")),
        (
            "10.0.0.1:65535,[::1]:1,[fe80::1%eth0]:2,a_b.c-d:3",
            ("10.0.0.1:65535", "[::1]:1", "[fe80::1%eth0]:2", "a_b.c-d:3"),
        ),
        ("unix:/run/baton,dns:///decode:50051", ("unix:/run/baton", "dns:///decode:50051")),
    ],
)
def test_targets_are_a_string_with_commas_or_a_sequence(given: str | list[str], parsed: tuple[str, ...]) -> None:
    assert parse_targets(given) == parsed


@pytest.mark.parametrize(
    "given",
    ["foo", "a:1,foo", ["foo"], "foo:", ":1", "foo:bar", "foo:0", "foo:65536", "http://foo:1", "::1:1", "a b:1"],
)
def test_a_target_that_is_none_is_refused(given: str | list[str]) -> None:
    with pytest.raises(ValueError, match=r"target '.*' needs host:port"):
        parse_targets(given)


@pytest.mark.parametrize("given", ["", " , ", []])
def test_no_target_is_refused(given: str | list[str]) -> None:
    with pytest.raises(ValueError, match="host:port"):
        parse_targets(given)


def test_turns_start_anywhere_and_take_every_target() -> None:
    starts = set()
    for _ in range(200):
        first, second, third = (turn % 3 for turn in itertools.islice(turns(3), 3))
        assert (second, third) == ((first + 1) % 3, (first + 2) % 3)
        starts.add(first)
    assert starts == {0, 1, 2}


def test_grpc_knows_every_option() -> None:
    """An option with a name that gRPC does not know is ignored in silence."""
    (library,) = (Path(grpc.__file__).parent / "_cython").glob("cygrpc*.so")
    core = library.read_bytes()
    for name, _ in channel_options("localhost:1"):
        assert name.encode() in core, name


def test_a_ping_is_waited_for_as_long_as_a_keepalive() -> None:
    """gRPC goes by the ping time-out, which is 60 s unless it is set: a peer that hangs was noticed so much later."""
    options = dict(channel_options("localhost:1"))
    assert options["grpc.http2.ping_timeout_ms"] == options["grpc.keepalive_timeout_ms"] == 10_000


@pytest.mark.parametrize("target", ["localhost:1", "127.0.0.1:1", "[::1]:1"])
def test_no_proxy_for_the_machine_itself(target: str) -> None:
    assert ("grpc.enable_http_proxy", 0) in channel_options(target)
    assert "grpc.enable_http_proxy" not in dict(channel_options("example.org:1"))


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _longest(_low: float, high: float) -> float:
    return high


@pytest.mark.parametrize("timeout", [math.inf, math.nan, 0, -1, 1.1e9])
def test_a_time_that_no_call_can_have_is_refused(timeout: float) -> None:
    with pytest.raises(InvalidArgument, match="needs seconds > 0") as raised:
        Attempts(["a"], first=0, timeout=timeout)
    assert raised.value.status is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.metadata == {"field": "timeout", "value": repr(timeout)}
    assert check_timeout(0.001) == 0.001


def test_each_target_is_tried_once_with_growing_delays() -> None:
    attempts = Attempts(["a", "b", "c"], first=4, timeout=10, clock=_Clock(), uniform=_longest)
    tried, delays = [attempts.target], []
    for _ in range(2):
        delays.append(attempts.next_delay(UNAVAILABLE))
        tried.append(attempts.target)
    assert tried == ["b", "c", "a"]
    assert delays == [0.05, 0.1]
    with pytest.raises(BatonClientError) as raised:
        attempts.next_delay(UNAVAILABLE)
    assert raised.value is UNAVAILABLE


def test_delays_are_bounded() -> None:
    attempts = Attempts(["t"] * 20, first=0, timeout=100, clock=_Clock(), uniform=_longest)
    assert max(attempts.next_delay(UNAVAILABLE) for _ in range(19)) == 1.0


def test_a_delay_that_the_deadline_cuts_off_is_not_waited() -> None:
    clock = _Clock()
    attempts = Attempts(["a", "b"], first=0, timeout=10, clock=clock, uniform=_longest)
    clock.now = 109.96
    assert attempts.remaining == pytest.approx(0.04)
    with pytest.raises(BatonClientError):
        attempts.next_delay(UNAVAILABLE)
    clock.now = 111.0
    assert attempts.remaining == 0.0


def test_only_unavailable_is_tried_again() -> None:
    attempts = Attempts(["a", "b"], first=0, timeout=10, clock=_Clock(), uniform=_longest)
    exhausted = BatonClientError("full", status=grpc.StatusCode.RESOURCE_EXHAUSTED)
    with pytest.raises(BatonClientError, match="full"):
        attempts.next_delay(exhausted)
