"""Physical bounds and their judgement, computed by hand."""

import pytest

from benchmarks.bounds import Ceilings, Least, ModelFacts
from benchmarks.growth_curves import (
    Curve,
    Point,
    chunks_of,
    decode_least,
    lengths_of,
    prefill_least,
    worst_growth,
)
from benchmarks.growth_soak import slope, slope_after_warm_up

MODEL = ModelFacts(
    kernels="none",
    weights="bfloat16",
    dtype="bfloat16",
    weight_bytes=1_000_000,
    layer_weights=400_000,
    head_weights=100_000,
    kv_bytes_a_token=1_000.0,
    attention_flops_a_pair=2_000,
    max_model_len=1024,
    vocab_size=256,
)
SLOW_MEMORY = Ceilings(read_gb_s=0.001, gemm_gflop_s=1e9)
SLOW_PRODUCTS = Ceilings(read_gb_s=1e9, gemm_gflop_s=0.001)


def test_a_decode_step_reads_weights_once_and_every_row_s_kv() -> None:
    # 1,000,000 + 3 × 50 × 1,000 bytes at 1,000,000 a second
    assert decode_least(MODEL, SLOW_MEMORY, 3, 50).read_seconds == pytest.approx(1.15)


def test_a_decode_step_multiplies_every_row_with_all_weights_and_its_context() -> None:
    # 3 × (2 × 500,000 + 50 × 2,000) operations at 1,000,000 a second
    assert decode_least(MODEL, SLOW_PRODUCTS, 3, 50).multiply_seconds == pytest.approx(3.3)


def test_a_prompt_needs_the_head_once_and_each_pair_of_tokens() -> None:
    # 2 × (10 × 400,000 + 100,000) + 55 × 2,000
    assert prefill_least(MODEL, SLOW_PRODUCTS, 10).multiply_seconds == pytest.approx(8.31)


def test_a_later_chunk_also_pairs_with_the_tokens_before_it() -> None:
    # 10 × 20 + 55 pairs, and the KV of 30 tokens
    assert prefill_least(MODEL, SLOW_PRODUCTS, 10, start=20).multiply_seconds == pytest.approx(8.2 + 255 * 0.002)
    assert prefill_least(MODEL, SLOW_MEMORY, 10, start=20).read_seconds == pytest.approx(1.03)


@pytest.mark.parametrize(
    ("length", "chunks"),
    [(128, [(0, 128)]), (2048, [(0, 2048)]), (5000, [(0, 2048), (2048, 2048), (4096, 904)])],
)
def test_prompts_are_cut_as_the_services_cut_them(length: int, chunks: list[tuple[int, int]]) -> None:
    assert chunks_of(length) == chunks


def test_curves_end_where_the_model_s_context_does() -> None:
    assert lengths_of(MODEL) == [128, 256, 512, 1024]


@pytest.mark.parametrize(
    ("ratios", "growth"),
    [([2.0], 1.0), ([3.0, 2.0, 1.0], 1.0), ([2.0, 1.0, 1.5], 1.5), ([1.0, 4.0, 2.0], 4.0)],
)
def test_growth_is_against_the_best_ratio_before(ratios: list[float], growth: float) -> None:
    assert worst_growth(ratios) == growth


def test_a_time_is_bound_by_the_longer_of_reading_and_multiplying() -> None:
    point = Point(4, 6.0, Least(read_seconds=3.0, multiply_seconds=1.0))
    assert point.bound_seconds == 3.0
    assert point.ratio == 2.0
    assert point.serial_ratio == 1.5


def test_a_curve_is_judged_by_its_ratios_and_not_by_its_times() -> None:
    first = Point(1, 2.0, Least(0.75, 0.25))
    linear = Curve("", "", "", SLOW_MEMORY, (first, Point(8, 24.0, Least(6.0, 2.0))))
    assert linear.growth == 1.5
    assert linear.is_linear
    surprise = Curve("", "", "", SLOW_MEMORY, (first, Point(8, 24.8, Least(6.0, 2.0))))
    assert not surprise.is_linear


def test_reading_and_then_multiplying_is_no_growth() -> None:
    # From where reading takes all the time to where both take the same: twice the bound, once the sum.
    curve = Curve("", "", "", SLOW_MEMORY, (Point(1, 1.0, Least(1.0, 0.0)), Point(8, 2.0, Least(1.0, 1.0))))
    assert curve.points[1].ratio == 2.0
    assert curve.growth == 1.0


def test_a_slope_is_the_least_squares_line_s() -> None:
    assert slope([0.0, 1.0, 2.0], [5.0, 7.0, 9.0]) == pytest.approx(2.0)
    # Hand: mean time 1, mean value 4; (-1 × -4 + 0 × 2 + 1 × 2) ÷ 2
    assert slope([0.0, 1.0, 2.0], [0.0, 6.0, 6.0]) == pytest.approx(3.0)
    assert slope([0.0], [5.0]) == 0.0


def test_what_grows_during_warm_up_does_not_count() -> None:
    times = [float(minute) for minute in range(10)]
    assert slope_after_warm_up(times, [0.0, 100.0, 200.0, *[300.0] * 7]) == 0.0
