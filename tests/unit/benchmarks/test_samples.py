"""Arithmetic on arrival times, with values computed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.samples import (
    Percentiles,
    Window,
    bursts_within,
    full_window,
    gaps_within,
    percentile,
    rate_within,
)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 10.0), (0.5, 30.0), (0.25, 20.0), (0.9, 46.0), (0.99, 49.6), (1.0, 50.0)]
)
def test_a_percentile_lies_between_two_samples(share: float, expected: float) -> None:
    assert percentile([50.0, 10.0, 40.0, 20.0, 30.0], share) == pytest.approx(expected)


def test_percentiles_of_a_single_sample_are_that_sample() -> None:
    assert Percentiles.of([7.0]) == Percentiles(1, 7.0, 7.0, 7.0, 7.0)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_is_within_the_samples_and_grows_with_its_share(samples: list[float], share: float) -> None:
    found = percentile(samples, share)
    assert min(samples) <= found <= max(samples)
    assert percentile(samples, share / 2) <= found or found == pytest.approx(percentile(samples, share / 2))


def test_all_streams_are_under_way_from_the_last_second_token_to_the_first_last_one() -> None:
    arrivals = [[0.0, 1.0, 2.0, 3.0, 9.0], [0.5, 1.5, 2.5, 4.0]]
    assert full_window(arrivals) == Window(1.5, 4.0)


def test_streams_that_never_overlap_have_no_window() -> None:
    with pytest.raises(AssertionError, match="never all under way"):
        full_window([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])


def test_gaps_count_where_both_tokens_are_within() -> None:
    arrivals = [[0.0, 1.0, 3.0, 6.0], [0.5, 2.0, 4.0]]
    assert gaps_within(arrivals, Window(1.0, 4.0)) == [2.0, 2.0]


def test_a_rate_leaves_out_the_token_at_the_start() -> None:
    arrivals = [[1.0, 2.0, 3.0], [1.5, 2.5, 3.5]]
    # 1.5, 2, 2.5 and 3, not the token at 1, in two seconds.
    assert rate_within(arrivals, Window(1.0, 3.0)) == 2.0


def test_the_spread_of_a_step_is_between_its_first_and_last_token() -> None:
    arrivals = [[1.00, 2.00, 3.00], [1.01, 2.03, 3.00], [1.02, 2.01, 3.04]]
    bursts = bursts_within(arrivals, Window(0.0, 9.0))
    # The widest gap among the first tokens is from 1.02 to 2.00, so that the step before it does not count.
    assert bursts.spreads_s == pytest.approx((0.03, 0.04))
    assert bursts.num_irregular == 0


def test_a_window_that_begins_within_a_step_begins_to_count_at_the_next() -> None:
    arrivals = [[1.00, 2.00, 3.00], [1.01, 2.03, 3.00], [1.02, 2.01, 3.04]]
    bursts = bursts_within(arrivals, Window(1.015, 9.0))
    assert bursts.spreads_s == pytest.approx((0.03, 0.04))


def test_a_stream_that_is_two_steps_ahead_makes_a_step_irregular() -> None:
    arrivals = [[1.0, 2.0, 2.1, 4.0], [1.1, 3.0, 3.1, 4.1]]
    bursts = bursts_within(arrivals, Window(0.0, 9.0))
    assert bursts.num_irregular == 2
    assert bursts.spreads_s == pytest.approx((0.1,))


def test_a_single_stream_has_no_spread() -> None:
    bursts = bursts_within([[1.0, 2.0, 3.0]], Window(0.0, 9.0))
    assert set(bursts.spreads_s) == {0.0}
    assert bursts.num_irregular == 0


@given(st.integers(1, 8), st.integers(3, 12), st.floats(0.0, 0.4))
def test_regular_steps_have_the_spread_that_they_were_made_with(
    num_streams: int, num_steps: int, spread: float
) -> None:
    offsets = [spread * index / max(1, num_streams - 1) for index in range(num_streams)]
    arrivals = [[step + offset for step in range(num_steps)] for offset in offsets]
    bursts = bursts_within(arrivals, Window(-1.0, num_steps + 1.0))
    assert bursts.num_irregular == 0
    assert bursts.spreads_s == pytest.approx([spread if num_streams > 1 else 0.0] * (num_steps - 1))
