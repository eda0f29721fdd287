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
        ("seed", -1, "[0, 2**64)"),
        ("seed", 2**64, "[0, 2**64)"),
    ],
)
def test_values_outside_their_bounds_are_refused_by_name(field: str, value: float, bounds: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]  # wrong values are the point
    assert caught.value.reason is Reason.SAMPLING_INVALID
    assert caught.value.metadata == {"field": f"sampling.{field}", "value": str(value), "bounds": bounds}


def test_only_temperature_zero_is_greedy() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert not SamplingParams(temperature=0.01).is_greedy
