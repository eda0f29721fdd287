"""The report of `benchmarks.services`: rows from results, a table for people, JSON for programs."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from rich.table import Table

from benchmarks.services_results import Decoding, FirstToken, Results
from benchmarks.services_rows import (
    MAX_TTFT_RATIO,
    MIN_RATE_RATIO,
    EngineFigure,
    Row,
    gap_row,
    hand_over_row,
    rate_row,
    ratio_row,
    ttft_row,
)

MAX_GAP_RATIO = 1.5
MAX_FRONT_CORES = 0.15
MAX_INTERFERENCE_RATIO = 0.25
MIN_THROUGHPUT_RATIO = 0.80

MAX_OTHERS_CORES = 0.25
"""Of the whole machine's, that may go to processes which are not part of the run before a figure is doubted."""

_DECODE_REQUIRED = {1: 120.0, 8: 600.0}
_TTFT_REQUIRED = {512: 340.0, 2048: 1700.0}
_HAND_OVER_REQUIRED = {64: 4.0, 512: 6.0, 2048: 12.0}
_ENGINE_DECODE = {1: {1: 120.0, 8: 680.0}, 2: {1: 140.0, 8: 900.0}}
_ENGINE_PREFILL = {1: {512: 1600.0, 2048: 1250.0}, 2: {512: 3200.0, 2048: 2500.0}}
"""What is required of the engine, by threads and then rows or prompt length."""
_ONE_PROCESS_DECODE = {1: 150.0, 8: 850.0}
_ONE_PROCESS_TTFT = {512: 170.0, 2048: 850.0}
_UNDER_LOAD = {"p50": 15.0, "p99": 25.0, "decode": 550.0, "prefill": 1400.0}


def rows_of(results: Results) -> list[Row]:
    """Every measured value that has a bound."""
    one = results.one_process
    return [
        *_decoding_rows("split", results.decoding, _DECODE_REQUIRED, _ENGINE_DECODE[1]),
        *_ttft_rows("split", results.first_token, _TTFT_REQUIRED, _ENGINE_PREFILL[1]),
        *_hand_over_rows(results.first_token),
        *_interference_rows(results),
        *_decoding_rows("one process", one.decoding, _ONE_PROCESS_DECODE, _ENGINE_DECODE[2]),
        *_ttft_rows("one process", one.first_token, _ONE_PROCESS_TTFT, _ENGINE_PREFILL[2]),
    ]


def table_of(rows: list[Row]) -> Table:
    """For people."""
    table = Table(title="measured beside its bound")
    for header in ("", "measured", "", "bound here", "holds", "required figure", "holds"):
        table.add_column(header, justify="left" if header in {"", "holds"} else "right")
    for row in rows:
        sign = "≥" if row.sense == "at least" else "≤"
        required = "" if row.required is None else f"{sign} {row.required:g}"
        table.add_row(
            row.name, _number(row.value), row.unit, f"{sign} {_number(row.bound)}", _word(row.holds), required,
            _word(row.holds_as_required),
        )  # fmt: skip
    return table


def lines_of(results: Results) -> Iterator[str]:
    """What has no bound, for people."""
    found, after = results.ceilings, results.ceilings_after
    yield f"{results.model.title}; one thread each unless it says otherwise"
    yield f"ceilings before: reads {found.read_gb_s:.1f} GB/s, 2048³ products {found.gemm_gflop_s:.0f} GFLOP/s"
    if after is not None:
        yield f"ceilings after:  reads {after.read_gb_s:.1f} GB/s, 2048³ products {after.gemm_gflop_s:.0f} GFLOP/s"
    if results.settings:
        yield "set: " + ", ".join(f"{name}={value}" for name, value in sorted(results.settings.items()))
    for name, sections in (("split", results.decoding), ("one process", results.one_process.decoding)):
        for count, decoding in sections.items():
            gap, spread, cores = decoding.gap_ms, decoding.spread_ms, decoding.cores
            yield (
                f"{name}, {count} streams: {decoding.tokens_a_second:.1f} tokens/s, engine {count}x{decoding.context} "
                f"{decoding.engine_tokens_a_second:.1f}; gaps p50 {gap.p50:.2f} p99 {gap.p99:.2f} max {gap.max:.2f} ms "
                f"({gap.count}); spread of a step p50 {spread.p50:.2f} p99 {spread.p99:.2f} ms; cores: compute "
                f"{cores.compute:.2f}, front {cores.front:.3f}, client {cores.client:.3f}, others {cores.others:.2f}"
            )
    for name, firsts in (("split", results.first_token), ("one process", results.one_process.first_token)):
        for length, first in firsts.items():
            yield (
                f"{name}, prompt of {length}: first token p50 {first.ttft_ms.p50:.1f} max {first.ttft_ms.max:.1f} ms "
                f"({first.ttft_ms.count}), engine {first.engine_ms:.1f}; hand-over p50 {first.hand_over_ms.p50:.2f} "
                f"max {first.hand_over_ms.max:.2f} ms, step {first.step_ms:.2f}, copy of {first.last_chunk_len} "
                f"tokens' KV {first.copy_ms:.2f} ms"
            )
    for name, load in results.interference.items():
        yield (
            f"under load, {name}: gaps p50 {load.gap_ms.p50:.1f} p99 {load.gap_ms.p99:.1f} max {load.gap_ms.max:.1f} "
            f"ms ({load.gap_ms.count}); {load.decode_tokens_a_second:.1f} + {load.prefill_tokens_a_second:.1f} "
            f"tokens/s; cores: compute {load.cores.compute:.2f}, front {load.cores.front:.3f}, prefill "
            f"{load.cores.prefill:.2f}, client {load.cores.client:.3f}, others {load.cores.others:.2f}"
        )
    if disturbed := disturbed_in(results):
        yield f"DISTURBED by other processes: {', '.join(disturbed)}"


def disturbed_in(results: Results) -> list[str]:
    """Where other processes used so much of the machine that the figures mean little."""
    one = results.one_process.decoding
    sections = {
        **{f"split, {count} streams": found.cores for count, found in results.decoding.items()},
        **{f"one process, {count} streams": found.cores for count, found in one.items()},
        **{f"under load, {name}": found.cores for name, found in results.interference.items()},
    }
    return [f"{name} ({cores.others:.2f} cores)" for name, cores in sections.items() if cores.others > MAX_OTHERS_CORES]


def json_of(results: Results) -> dict[str, object]:
    """For programs."""
    rows = rows_of(results)
    return {
        **asdict(results),
        "rows": [{**asdict(row), "holds": row.holds, "holds_as_required": row.holds_as_required} for row in rows],
    }


def _decoding_rows(
    where: str, found: Mapping[int, Decoding], required: Mapping[int, float], engine: Mapping[int, float]
) -> Iterator[Row]:
    for count, decoding in found.items():
        what = f"{where}, {count} stream{'s' if count > 1 else ''}"
        if count in required:
            figure = EngineFigure(decoding.engine_tokens_a_second, engine[count])
            yield rate_row(what, decoding.tokens_a_second, required[count], figure)
        if where == "split":
            yield ratio_row(f"{what}: ÷ engine", decoding.ratio, "at least", MIN_RATE_RATIO)
            yield ratio_row(f"{what}: gap p99 ÷ median", decoding.gap_p99_to_median, "at most", MAX_GAP_RATIO)
        if count == 64:
            yield Row(f"{what}: front", "cores", decoding.cores.front, "at most", MAX_FRONT_CORES, MAX_FRONT_CORES)


def _ttft_rows(
    where: str, found: Mapping[int, FirstToken], required: Mapping[int, float], engine: Mapping[int, float]
) -> Iterator[Row]:
    for length, first in found.items():
        what = f"{where}, first token of {length}"
        if length in required:
            figure = EngineFigure(length / first.engine_ms * 1e3, engine[length])
            yield ttft_row(what, first.ttft_ms.p50, required[length], length, figure)
    if where == "split" and (longest := found.get(2048)) is not None:
        yield ratio_row(f"{where}, first token of 2048: ÷ engine", longest.ratio, "at most", MAX_TTFT_RATIO)


def _hand_over_rows(found: Mapping[int, FirstToken]) -> Iterator[Row]:
    for length, first in found.items():
        if length in _HAND_OVER_REQUIRED:
            required = _HAND_OVER_REQUIRED[length]
            yield hand_over_row(f"split, hand-over of {length}", first.hand_over_ms.p50, required, first.bound_ms)


def _interference_rows(results: Results) -> Iterator[Row]:
    split = results.interference.get("split")
    if split is None:
        return
    step = EngineFigure(results.engine["decode 8x128"], _ENGINE_DECODE[1][8])
    prompt = EngineFigure(results.engine["prefill 1x2048"], _ENGINE_PREFILL[1][2048])
    yield gap_row("under load, gap p50", split.gap_ms.p50, _UNDER_LOAD["p50"], step)
    yield gap_row("under load, gap p99", split.gap_ms.p99, _UNDER_LOAD["p99"], step)
    yield rate_row("under load, decode", split.decode_tokens_a_second, _UNDER_LOAD["decode"], step)
    yield rate_row("under load, prefill", split.prefill_tokens_a_second, _UNDER_LOAD["prefill"], prompt)
    single = {int(name): load for name, load in results.interference.items() if name != "split"}
    for budget, load in single.items():
        what = "default" if budget == results.default_budget else "other"
        versus = f"split ÷ one process of two threads, {what} budget {budget}"
        ratio = split.gap_ms.p99 / load.gap_ms.p99
        yield ratio_row(f"{versus}: gap p99", ratio, "at most", MAX_INTERFERENCE_RATIO)
        throughput = split.tokens_a_second / load.tokens_a_second
        yield ratio_row(f"{versus}: tokens/s", throughput, "at least", MIN_THROUGHPUT_RATIO)


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _word(holds: bool | None) -> str:
    return "" if holds is None else "yes" if holds else "NO"
