"""The engine's figures beside their bounds, computed by hand, and the JSON that is promised."""

import json
from dataclasses import replace

import pytest

from benchmarks.bounds import Ceilings, Least, step_least
from benchmarks.engine_report import Figures, Judged, as_json, judged, report
from benchmarks.required import MODEL, required_share, rows_of

RATES = {"1x128": 100.0, "8x128": 400.0, "32x128": 800.0, "8x1024": 300.0}
PROMPT_RATES = {"1x512": 1000.0, "1x2048": 900.0, "8x256": 1100.0}
FIGURES = Figures(RATES, PROMPT_RATES, before=Ceilings(30.0, 200.0), after=Ceilings(50.0, 300.0))


def test_rows_of_a_case() -> None:
    assert rows_of("decode", "8x1024") == [(1024, 1)] * 8
    assert rows_of("prefill", "8x256") == [(0, 256)] * 8


def test_a_step_reads_weights_once_and_multiplies_for_each_row() -> None:
    model = replace(
        MODEL, weight_bytes=1000, layer_weights=400, head_weights=100, kv_bytes_a_token=10.0, attention_flops_a_pair=2
    )
    least = step_least(model, Ceilings(1e-9, 1e-9), [(4, 1), (0, 3)])
    assert least.read_seconds == pytest.approx(1000 + 10 * (5 + 3))
    assert least.multiply_seconds == pytest.approx(2 * (4 * 400 + 2 * 100) + 2 * (5 + 6))


def test_shares_are_of_the_longer_time_and_of_both() -> None:
    row = Judged("decode", "1x128", 10.0, seconds=4.0, least=Least(3.0, 2.0), required_share=0.75)
    assert (row.share, row.serial_share, row.holds) == (0.75, 1.25, True)
    assert replace(row, required_share=0.76).holds is False
    assert replace(row, required_share=None).holds is None


@pytest.mark.parametrize(
    ("walk", "name", "seconds_at_least", "seconds_required"),
    [
        # (weights + 129 tokens of KV) / 67 GB/s
        ("decode", "1x128", (268_959_744 + 129 * 23_040) / 67e9, 1 / 140),
        # 32 × (two operations for each weight, and 129 pairs) / 890 GFLOP/s
        ("decode", "32x128", 32 * (2 * 134_479_872 + 129 * 69_120) / 890e9, 32 / 1700),
        # 512 tokens through the layers, one through the head, 512 × 513 / 2 pairs
        ("prefill", "1x512", (512 * 2 * 106_168_320 + 2 * 28_311_552 + 131_328 * 69_120) / 890e9, 512 / 3200),
    ],
)
def test_what_is_required_at_two_threads(
    walk: str, name: str, seconds_at_least: float, seconds_required: float
) -> None:
    assert required_share(MODEL, 2, walk, name) == pytest.approx(seconds_at_least / seconds_required)


def test_nothing_is_required_of_other_models_weights_and_threads() -> None:
    assert required_share(MODEL, 1, "decode", "1x128") is not None
    assert required_share(MODEL, 3, "decode", "1x128") is None
    assert required_share(replace(MODEL, weights="int8"), 2, "decode", "1x128") is None
    assert required_share(replace(MODEL, layer_weights=1), 2, "decode", "1x128") is None


def test_ceilings_of_a_run_are_the_means_of_before_and_after() -> None:
    row = next(judged(MODEL, 2, FIGURES))
    assert (row.name, row.seconds) == ("1x128", 0.01)
    assert row.least.read_seconds == pytest.approx((268_959_744 + 129 * 23_040) / 40e9)


def test_every_row_stands_beside_its_bound() -> None:
    rows = [line.split() for line in report(MODEL, {1: FIGURES, 2: FIGURES}).splitlines() if "≥" in line]
    assert [row[1] for row in rows] == [*RATES, *PROMPT_RATES] * 2
    assert rows[7:9] == [
        ["decode", "1x128", "100.0", "10.00", "68%", "reading", "≥", "57%", "yes", "79%"],
        ["decode", "8x128", "400.0", "20.00", "44%", "products", "≥", "49%", "NO", "81%"],
    ]
    assert "decode 1x128 reads weights at 67% of the ceiling, required 75%" in report(MODEL, {2: FIGURES})
    assert "≥" not in report(replace(MODEL, weights="int8"), {2: FIGURES})


def test_json_keeps_its_keys() -> None:
    found = json.loads(as_json(MODEL, {1: replace(FIGURES, before=Ceilings(20.0, 100.0)), 2: FIGURES}))
    assert found["ceilings"] == {"read_gb_s": 30.0, "gemm_gflop_s": 200.0}
    assert found["ceilings_after"] == {"read_gb_s": 50.0, "gemm_gflop_s": 300.0}
    assert found["ceilings_by_threads"]["1"] == {"read_gb_s": 20.0, "gemm_gflop_s": 100.0}
    assert found["threads"] == {number: {"decode": RATES, "prefill": PROMPT_RATES} for number in ("1", "2")}
    assert found["bounds"]["2"]["decode"]["1x128"]["share"] == pytest.approx(0.6798, abs=1e-4)
    assert found["bounds"]["2"]["prefill"].keys() == PROMPT_RATES.keys()
