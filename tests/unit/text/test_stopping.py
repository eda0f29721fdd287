"""Bounds of the stopping parameters, and the rules by token id."""

from typing import Any

import pytest

from shared.errors import InvalidRequestError, Reason
from shared.text.stopping import Finish, FinishReason, StoppingParams, banned_token_ids, token_finish

EOS = (2, 7)
LENGTH = Finish(FinishReason.LENGTH)


def stop(token_id: int) -> Finish:
    return Finish(FinishReason.STOP, matched_token_id=token_id)


class TestParams:
    @pytest.mark.parametrize(
        "accepted",
        [
            {"max_tokens": 1},
            {"max_tokens": 5, "min_tokens": 5},
            {"max_tokens": 1, "stop": ("x" * 256,) * 16},
            {"max_tokens": 1, "stop": ("👍" * 256,)},
            {"max_tokens": 1, "stop_token_ids": tuple(range(64))},
        ],
    )
    def test_values_at_their_bounds_are_accepted(self, accepted: dict[str, Any]) -> None:
        StoppingParams(**accepted)

    @pytest.mark.parametrize(
        ("refused", "field", "value", "bounds"),
        [
            ({"max_tokens": 0}, "max_tokens", "0", "[1, inf)"),
            ({"min_tokens": -1}, "min_tokens", "-1", "[0, 8]"),
            ({"min_tokens": 9}, "min_tokens", "9", "[0, 8]"),
            ({"stop": ("x",) * 17}, "stop", "17", "[0, 16] strings"),
            ({"stop": ("x", "")}, "stop[1]", "0", "[1, 256] characters"),
            ({"stop": ("x" * 257,)}, "stop[0]", "257", "[1, 256] characters"),
            ({"stop_token_ids": tuple(range(65))}, "stop_token_ids", "65", "[0, 64] ids"),
            ({"stop_token_ids": (3, -1)}, "stop_token_ids[1]", "-1", "[0, vocab_size)"),
        ],
    )
    def test_values_outside_their_bounds_are_refused_by_name(
        self, refused: dict[str, Any], field: str, value: str, bounds: str
    ) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            StoppingParams(**{"max_tokens": 8, **refused})
        assert caught.value.reason is Reason.STOPPING_INVALID
        assert caught.value.metadata == {"field": f"stopping.{field}", "value": value, "bounds": bounds}

    def test_stop_tokens_must_be_in_the_vocabulary(self) -> None:
        params = StoppingParams(max_tokens=1, stop_token_ids=(0, 99, 100))
        params.check_vocabulary(101)
        with pytest.raises(InvalidRequestError) as caught:
            params.check_vocabulary(100)
        assert caught.value.reason is Reason.TOKEN_ID_OUT_OF_RANGE
        assert caught.value.metadata == {"field": "stopping.stop_token_ids[2]", "value": "100", "bounds": "[0, 100)"}


class TestTokenFinish:
    @pytest.mark.parametrize(
        ("params", "token_id", "num_generated", "room", "expected"),
        [
            ({}, 5, 1, 100, None),
            ({}, 2, 1, 100, stop(2)),
            ({}, 7, 3, 100, stop(7)),
            ({"ignore_eos": True}, 2, 1, 100, None),
            ({"stop_token_ids": (5,)}, 5, 1, 100, stop(5)),
            ({"stop_token_ids": (5,), "ignore_eos": True}, 5, 1, 100, stop(5)),
            ({"stop_token_ids": (2,), "ignore_eos": True}, 2, 1, 100, stop(2)),
            ({}, 5, 10, 100, LENGTH),
            ({}, 5, 11, 100, LENGTH),
            ({}, 2, 10, 100, stop(2)),
            ({}, 5, 3, 1, None),
            ({}, 5, 3, 0, LENGTH),
            ({}, 2, 3, 0, stop(2)),
            ({"max_tokens": 1}, 5, 1, 100, LENGTH),
            ({"min_tokens": 3}, 2, 3, 100, None),
            ({"min_tokens": 3}, 2, 4, 100, stop(2)),
        ],
    )
    def test_rule(
        self, params: dict[str, Any], token_id: int, num_generated: int, room: int, expected: Finish | None
    ) -> None:
        stopping = StoppingParams(**{"max_tokens": 10, **params})
        assert token_finish(stopping, EOS, token_id, num_generated, room) == expected


class TestBannedTokenIds:
    @pytest.mark.parametrize(
        ("params", "num_generated", "expected"),
        [
            ({}, 0, ()),
            ({"min_tokens": 2}, 0, (2, 7)),
            ({"min_tokens": 2}, 1, (2, 7)),
            ({"min_tokens": 2}, 2, ()),
            ({"min_tokens": 2, "stop_token_ids": (5, 2)}, 1, (2, 5, 7)),
            ({"min_tokens": 2, "stop_token_ids": (5,), "ignore_eos": True}, 1, (5,)),
            ({"min_tokens": 2, "ignore_eos": True}, 1, ()),
        ],
    )
    def test_rule(self, params: dict[str, Any], num_generated: int, expected: tuple[int, ...]) -> None:
        assert banned_token_ids(StoppingParams(**{"max_tokens": 10, **params}), EOS, num_generated) == expected

    def test_a_token_that_ends_the_text_is_banned_exactly_while_it_would_not(self) -> None:
        params = StoppingParams(max_tokens=10, min_tokens=4)
        for num_generated in range(8):
            is_banned = 2 in banned_token_ids(params, EOS, num_generated)
            ends = token_finish(params, EOS, 2, num_generated + 1, room=100) is not None
            assert is_banned != ends


class TestConstrained:
    """Nothing can follow an end of sequence that a constraint allows."""

    @pytest.mark.parametrize("options", [{"ignore_eos": True}, {"min_tokens": 8}, {}])
    def test_an_end_of_sequence_ends_the_text(self, options: dict[str, Any]) -> None:
        params = StoppingParams(max_tokens=8, is_constrained=True, **options)
        assert token_finish(params, EOS, token_id=7, num_generated=3, room=9) == stop(7)
        assert token_finish(params, EOS, token_id=5, num_generated=3, room=9) is None

    def test_it_is_held_off_as_long_as_it_is_to_be_ignored(self) -> None:
        assert banned_token_ids(StoppingParams(8, ignore_eos=True, is_constrained=True), EOS, 5) == EOS
        assert banned_token_ids(StoppingParams(8, ignore_eos=True), EOS, 5) == ()
        assert banned_token_ids(StoppingParams(8, is_constrained=True), EOS, 5) == ()
        params = StoppingParams(8, min_tokens=6, stop_token_ids=(4,), ignore_eos=True, is_constrained=True)
        assert banned_token_ids(params, EOS, 5) == (2, 4, 7)
