import pytest

from shared.errors import HandshakeError
from shared.kv.transports.negotiate import negotiate


def test_the_best_wanted_one_that_both_have() -> None:
    assert negotiate(["local", "shm", "grpc"], ["grpc", "shm"], lambda _: True) == "shm"


def test_one_that_cannot_be_proved_is_passed_over_and_nothing_is_tried_after_a_success() -> None:
    tried: list[str] = []

    def prove(name: str) -> bool:
        tried.append(name)
        return name == "grpc"

    assert negotiate(["shm", "grpc", "local"], ["local", "grpc", "shm"], prove) == "grpc"
    assert tried == ["shm", "grpc"]


@pytest.mark.parametrize("offered", [[], ["local"], ["shm"]])
def test_none_names_both_lists(offered: list[str]) -> None:
    with pytest.raises(HandshakeError) as caught:
        negotiate(["shm", "grpc"], offered, lambda _: False)
    assert caught.value.metadata == {"field": "transports", "ours": "shm,grpc", "theirs": ",".join(offered)}
