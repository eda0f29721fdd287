import math

import grpc
import pytest

from baton_client import BatonClientError, InvalidArgument
from baton_client.attempts import Attempts, PatientAttempts
from baton_client.targets import check_timeout

UNAVAILABLE = BatonClientError("no", status=grpc.StatusCode.UNAVAILABLE)


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


def test_nothing_is_tried_again_once_something_has_arrived() -> None:
    attempts = Attempts(["a", "b"], first=0, timeout=10, clock=_Clock(), uniform=_longest)
    attempts.note_arrival()
    with pytest.raises(BatonClientError, match="no"):
        attempts.next_delay(UNAVAILABLE)


def _patient(clock: _Clock, timeout: float = 100, patience: float = 3) -> PatientAttempts:
    return PatientAttempts(["a", "b"], 0, timeout, patience, clock=clock, uniform=_longest)


def test_patience_goes_round_the_targets_and_begins_anew_with_each_arrival() -> None:
    clock = _Clock()
    attempts = _patient(clock)
    tried, delays = [attempts.target], []
    for _ in range(5):
        delays.append(attempts.next_delay(UNAVAILABLE))
        tried.append(attempts.target)
    assert tried == ["a", "b", "a", "b", "a", "b"]
    assert delays == [0.05, 0.1, 0.2, 0.4, 0.8]
    attempts.note_arrival()
    clock.now += 50
    assert (attempts.next_delay(UNAVAILABLE), attempts.target) == (0.05, "a")


def test_patience_counts_from_the_first_failure() -> None:
    clock = _Clock()
    attempts = _patient(clock)
    clock.now = 150.0
    assert attempts.next_delay(UNAVAILABLE) == 0.05
    clock.now = 152.0
    assert attempts.next_delay(UNAVAILABLE) == 0.1
    clock.now = 152.8
    with pytest.raises(BatonClientError) as raised:
        attempts.next_delay(UNAVAILABLE)  # the delay of 0.2 s ends at the third second
    assert raised.value is UNAVAILABLE


def test_patience_ends_with_the_deadline_and_delays_stay_bounded() -> None:
    clock = _Clock()
    attempts = _patient(clock, timeout=10, patience=1e6)
    assert [attempts.next_delay(UNAVAILABLE) for _ in range(2000)][-1] == 1.0
    clock.now = 109.5
    with pytest.raises(BatonClientError):
        attempts.next_delay(UNAVAILABLE)


def test_a_full_queue_is_waited_for_as_long_as_it_said() -> None:
    attempts = _patient(_Clock())
    full = BatonClientError("full", status=grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after=2.5)
    assert attempts.next_delay(full) == 2.5
    too_large = BatonClientError("message too large", status=grpc.StatusCode.RESOURCE_EXHAUSTED)
    with pytest.raises(BatonClientError, match="too large"):
        attempts.next_delay(too_large)


@pytest.mark.parametrize(
    ("status", "message", "reason"),
    [
        ("UNAVAILABLE", "Stream removed (Socket closed)", ""),
        ("UNAVAILABLE", "the engine failed", "ENGINE_FAILED"),
        ("CANCELLED", "RST_STREAM", ""),
        ("DATA_LOSS", "KV did not arrive", "KV_TRANSFER_FAILED"),
        ("UNKNOWN", "Stream removed", ""),
        ("INTERNAL", "Received RST_STREAM with error code 2", ""),
    ],
)
def test_a_lost_server_is_worth_another_try(status: str, message: str, reason: str) -> None:
    error = BatonClientError(message, status=grpc.StatusCode[status], reason=reason)
    assert _patient(_Clock()).next_delay(error) == 0.05


@pytest.mark.parametrize("status", ["INVALID_ARGUMENT", "UNKNOWN", "INTERNAL", "DEADLINE_EXCEEDED", "ALREADY_EXISTS"])
def test_other_failures_are_not(status: str) -> None:
    with pytest.raises(BatonClientError):
        _patient(_Clock()).next_delay(BatonClientError("no", status=grpc.StatusCode[status]))
