import itertools
from pathlib import Path

import grpc
import pytest

from baton_client import BatonClientError
from baton_client.targets import Attempts, channel_options, parse_targets, turns

UNAVAILABLE = BatonClientError("no", status=grpc.StatusCode.UNAVAILABLE)


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        ("a:1", ("a:1",)),
        (" a:1, b:2,", ("a:1", "b:2")),
        (["a:1", "ipv4:1.2.3.4:5,6.7.8.9:5"], ("a:1", "ipv4:1.2.3.4:5,6.7.8.9:5")),
    ],
)
def test_targets_are_a_string_with_commas_or_a_sequence(given: str | list[str], parsed: tuple[str, ...]) -> None:
    assert parse_targets(given) == parsed


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
