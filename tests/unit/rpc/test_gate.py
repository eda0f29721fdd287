import pytest

from shared.errors import Reason, UnavailableError
from shared.rpc.gate import ReadyGate


def refusal(gate: ReadyGate[str]) -> UnavailableError:
    with pytest.raises(UnavailableError) as caught:
        gate.enter()
    return caught.value


def test_closed_until_opened() -> None:
    gate = ReadyGate[str]("decode")
    error = refusal(gate)
    assert (error.reason, error.message) == (Reason.NOT_READY, "the decode service is loading its model")
    assert not gate.is_open
    with pytest.raises(UnavailableError, match="is loading its model"):
        gate.value()


def test_open() -> None:
    gate = ReadyGate[str]("decode")
    gate.open("core")
    assert gate.is_open
    assert not gate.is_draining
    assert (gate.enter(), gate.value()) == ("core", "core")


def test_draining_takes_nothing_new_and_serves_what_was_begun() -> None:
    gate = ReadyGate[str]("decode")
    gate.open("core")
    gate.begin_drain()
    error = refusal(gate)
    assert (error.reason, error.message) == (Reason.DRAINING, "the decode service is draining")
    assert gate.is_draining
    assert gate.value() == "core"


def test_a_failed_engine_serves_nothing_at_all() -> None:
    gate = ReadyGate[str]("prefill")
    gate.open("core")
    gate.fail("out of memory")
    error = refusal(gate)
    assert error.reason is Reason.ENGINE_FAILED
    assert error.message == "the prefill service's engine has failed: out of memory"
    with pytest.raises(UnavailableError, match="out of memory"):
        gate.value()
