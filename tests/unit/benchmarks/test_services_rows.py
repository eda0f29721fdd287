"""Bounds as they scale with the engine of a run, computed by hand."""

import pytest

from benchmarks.services_rows import EngineFigure, Row, gap_row, hand_over_row, rate_row, ratio_row, ttft_row
from benchmarks.services_sections import hand_over_bound_s, last_chunk_len


def test_a_rate_scales_with_the_engine_s() -> None:
    # 600 × 340 ÷ 680
    row = rate_row("", 299.0, 600.0, EngineFigure(340.0, 680.0))
    assert row.bound == 300.0
    assert not row.holds
    assert row.holds_as_required is False


def test_no_rate_above_nine_tenths_of_the_engine_is_asked_for() -> None:
    # 120 × 60 ÷ 120 would be all that the engine has.
    row = rate_row("", 54.0, 120.0, EngineFigure(60.0, 120.0))
    assert row.bound == 54.0
    assert row.holds


def test_a_time_to_first_token_scales_with_the_engine_s_time() -> None:
    # 2,048 tokens at 625 a second are half as fast as at 1,250: 1,700 ms become 3,400, less than 1.10 × 3,276.8.
    row = ttft_row("", 3500.0, 1700.0, 2048, EngineFigure(625.0, 1250.0))
    assert row.bound == pytest.approx(1.1 * 3276.8)
    # 512 tokens at 1,600: 400 ms are more than 1.10 × 320.
    assert ttft_row("", 0.0, 400.0, 512, EngineFigure(1600.0, 1600.0)).bound == 400.0


def test_a_gap_scales_with_the_engine_s_step() -> None:
    row = gap_row("", 40.0, 25.0, EngineFigure(340.0, 680.0))
    assert row.bound == 50.0
    assert row.holds
    assert row.holds_as_required is False


def test_the_bound_of_a_hand_over_is_measured() -> None:
    row = hand_over_row("", 5.0, 12.0, hand_over_bound_s(0.002) * 1e3)
    assert row.bound == pytest.approx(5.0)
    assert row.holds
    assert row.holds_as_required is True


@pytest.mark.parametrize(
    ("value", "sense", "holds"), [(0.9, "at least", True), (0.899, "at least", False), (0.901, "at most", False)]
)
def test_a_bound_itself_holds(value: float, sense: str, holds: bool) -> None:
    row = ratio_row("", value, "at least" if sense == "at least" else "at most", 0.9)
    assert row == Row("", "×", value, row.sense, None, 0.9)
    assert row.holds is holds
    assert row.holds_as_required is None


@pytest.mark.parametrize(
    ("prompt_len", "budget", "threshold", "expected"),
    [(2048, 2048, 0, 2048), (2049, 2048, 0, 1), (64, 2048, 0, 64), (1000, 512, 0, 488), (1000, 512, 300, 100),
     (1024, 512, 0, 512), (5000, None, 300, 5000)],
)  # fmt: skip
def test_the_last_chunk_is_what_whole_ones_leave(
    prompt_len: int, budget: int | None, threshold: int, expected: int
) -> None:
    assert last_chunk_len(prompt_len, budget, threshold) == expected
