"""Bounds of the sampling parameters."""

from typing import Any

import pytest

from shared.errors import InvalidRequestError, Reason
from shared.sampling.params import SamplingParams


@pytest.mark.parametrize(
    "accepted",
    [
        {},
        {"temperature": 0},
        {"temperature": 5e-324},
        {"temperature": 100},
        {"top_k": 10**6},
        {"top_p": 1.0},
        {"top_p": 5e-324},
        {"min_p": 0.0},
        {"min_p": 1.0},
        {"repetition_penalty": 5e-324},
        {"repetition_penalty": 100.0},
        {"frequency_penalty": -2.0, "presence_penalty": 2.0},
        {"frequency_penalty": 2.0, "presence_penalty": -2.0},
        {"logit_bias": ((0, -100.0), (1, 0.0), (7, 100.0))},
        {"logit_bias": tuple((token_id, 1.0) for token_id in range(1024))},
        {"n": 1},
        {"n": 1024},
        {"seed": 2**64 - 1},
    ],
)
def test_values_at_their_bounds_are_accepted(accepted: dict[str, Any]) -> None:
    SamplingParams(**accepted)


@pytest.mark.parametrize(
    ("field", "value", "bounds"),
    [
        ("temperature", -0.1, "[0, 100]"),
        ("temperature", 100.5, "[0, 100]"),
        ("temperature", float("nan"), "[0, 100]"),
        ("temperature", float("inf"), "[0, 100]"),
        ("top_k", -1, "[0, inf)"),
        ("top_k", float("nan"), "[0, inf)"),
        ("top_k", float("inf"), "[0, inf)"),
        ("top_p", 0.0, "(0, 1]"),
        ("top_p", 1.0000001, "(0, 1]"),
        ("top_p", float("nan"), "(0, 1]"),
        ("min_p", -1e-9, "[0, 1]"),
        ("min_p", 1.1, "[0, 1]"),
        ("min_p", float("nan"), "[0, 1]"),
        ("min_p", float("-inf"), "[0, 1]"),
        ("repetition_penalty", 0.0, "(0, 100]"),
        ("repetition_penalty", -1.0, "(0, 100]"),
        ("repetition_penalty", 100.1, "(0, 100]"),
        ("repetition_penalty", float("nan"), "(0, 100]"),
        ("repetition_penalty", float("inf"), "(0, 100]"),
        ("frequency_penalty", -2.001, "[-2, 2]"),
        ("frequency_penalty", 2.001, "[-2, 2]"),
        ("frequency_penalty", float("nan"), "[-2, 2]"),
        ("presence_penalty", -2.001, "[-2, 2]"),
        ("presence_penalty", float("inf"), "[-2, 2]"),
        ("presence_penalty", float("nan"), "[-2, 2]"),
        ("n", 0, "[1, 1024]"),
        ("n", 1025, "[1, 1024]"),
        ("seed", -1, "[0, 2**64)"),
        ("seed", 2**64, "[0, 2**64)"),
    ],
)
def test_values_outside_their_bounds_are_refused_by_name(field: str, value: float, bounds: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]  # wrong values are the point
    assert caught.value.reason is Reason.SAMPLING_INVALID
    assert caught.value.metadata == {"field": f"sampling.{field}", "value": str(value), "bounds": bounds}


@pytest.mark.parametrize("bias", [-100.001, 100.001, float("nan"), float("inf"), float("-inf")])
def test_a_bias_outside_its_bounds_is_refused_by_token(bias: float) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(logit_bias=((3, 1.0), (5, bias)))
    assert caught.value.reason is Reason.SAMPLING_INVALID
    assert caught.value.metadata == {"field": "sampling.logit_bias[5]", "value": str(bias), "bounds": "[-100, 100]"}


def test_too_many_biases_are_refused() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(logit_bias=tuple((token_id, 1.0) for token_id in range(1025)))
    assert caught.value.metadata == {"field": "sampling.logit_bias", "value": "1025", "bounds": "[0, 1024] tokens"}


@pytest.mark.parametrize("token_ids", [(2, 1), (1, 1), (-1, 0)])
def test_biases_that_are_no_ascending_ids_are_a_mistake(token_ids: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        SamplingParams(logit_bias=tuple((token_id, 1.0) for token_id in token_ids))


@pytest.mark.parametrize(
    ("params", "has_penalties"),
    [
        (SamplingParams(logit_bias=((0, 1.0),)), False),
        (SamplingParams(repetition_penalty=0.9), True),
        (SamplingParams(frequency_penalty=-0.1), True),
        (SamplingParams(presence_penalty=0.1), True),
    ],
)
def test_a_penalty_that_changes_logits_is_one(params: SamplingParams, has_penalties: bool) -> None:
    assert params.has_penalties is has_penalties


def test_only_temperature_zero_is_greedy() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert not SamplingParams(temperature=0.01).is_greedy
