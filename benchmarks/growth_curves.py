"""How the bare engine's times grow with batch, context and length, and what physics alone would have them do.

A step cannot take less than the longer of two times: reading the weights and the KV once at the measured read ceiling,
and the multiplications, attention included, at the measured ceiling of matrix products. That is its bound. Where both
are about the same, a step that does one after the other takes twice as long, which is no growth: so growth is judged by
the sum of both.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.bounds import Ceilings, Least, ModelFacts, step_least
from benchmarks.engine_process import EngineProcess

CONTEXT = 128
NUM_ROWS = 8
CHUNK_LEN = 2048
MAX_GROWTH = 1.5
"""How much further from the sum of reading and multiplying a time may be than one before it on the curve."""

BATCHES = (1, 2, 4, 8, 16, 32, 64)
_LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class Point:
    """A measured time beside its bound, in seconds.

    Attributes:
        size: rows or tokens.
    """

    size: int
    seconds: float
    least: Least

    @property
    def bound_seconds(self) -> float:
        """What it takes at least."""
        return self.least.bound_seconds

    @property
    def serial_seconds(self) -> float:
        """What reading and then multiplying takes at least."""
        return self.least.serial_seconds

    @property
    def ratio(self) -> float:
        """How many times the bound it takes."""
        return self.seconds / self.bound_seconds

    @property
    def serial_ratio(self) -> float:
        """How many times reading and then multiplying it takes."""
        return self.seconds / self.serial_seconds


@dataclass(frozen=True)
class Curve:
    """Times along one size.

    Attributes:
        name: such as "decode-batch".
        title: what is measured.
        unit: what a size counts.
        ceilings: measured just before.
    """

    name: str
    title: str
    unit: str
    ceilings: Ceilings
    points: tuple[Point, ...]

    @property
    def growth(self) -> float:
        """The most that a point's `serial_ratio` exceeds an earlier point's, as a factor."""
        return worst_growth([point.serial_ratio for point in self.points])

    @property
    def is_linear(self) -> bool:
        """Whether there is no super-linear surprise."""
        return self.growth <= MAX_GROWTH


def worst_growth(ratios: Sequence[float]) -> float:
    """The largest quotient of a ratio and one at or before it; 1 where they never grow."""
    lowest, worst = ratios[0], 1.0
    for ratio in ratios:
        lowest = min(lowest, ratio)
        worst = max(worst, ratio / lowest)
    return worst


def decode_least(model: ModelFacts, ceilings: Ceilings, num_rows: int, context: int) -> Least:
    """Of a decode step of so many rows with so many tokens each, the new one included."""
    return step_least(model, ceilings, [(context - 1, 1)] * num_rows)


def prefill_least(model: ModelFacts, ceilings: Ceilings, length: int, start: int = 0) -> Least:
    """Of a step of a prompt's tokens `start` to `start + length`, with logits of the last one."""
    return step_least(model, ceilings, [(start, length)])


def chunks_of(length: int) -> list[tuple[int, int]]:
    """The steps of a prompt, as (start, tokens)."""
    return [(start, min(CHUNK_LEN, length - start)) for start in range(0, length, CHUNK_LEN)]


async def decode_batch(engine: EngineProcess, model: ModelFacts, threads: int) -> Curve:
    """Decode steps against their rows."""
    ceilings = await engine.ceilings(threads)
    points = [
        Point(
            rows,
            rows / await engine.decode(rows, CONTEXT, threads=threads),
            decode_least(model, ceilings, rows, CONTEXT),
        )
        for rows in BATCHES
    ]
    return Curve("decode-batch", f"decode step, context {CONTEXT}", "rows", ceilings, tuple(points))


async def decode_context(engine: EngineProcess, model: ModelFacts, threads: int) -> Curve:
    """Decode steps against the tokens that each row has, the new one included."""
    ceilings = await engine.ceilings(threads)
    points = [
        Point(
            context,
            NUM_ROWS / await engine.decode(NUM_ROWS, context - 1, threads=threads),
            decode_least(model, ceilings, NUM_ROWS, context),
        )
        for context in lengths_of(model)
    ]
    return Curve("decode-context", f"decode step, {NUM_ROWS} rows", "tokens of context", ceilings, tuple(points))


async def prefill(engine: EngineProcess, model: ModelFacts, threads: int) -> Curve:
    """Prompts against their tokens, in chunks as the services run them."""
    ceilings = await engine.ceilings(threads)
    points = [await _prefill_point(engine, model, ceilings, threads, length) for length in lengths_of(model)]
    return Curve("prefill", f"prefill of a prompt, chunks of {CHUNK_LEN}", "tokens", ceilings, tuple(points))


def lengths_of(model: ModelFacts) -> list[int]:
    """Lengths along a curve, as far as the model's context goes."""
    return [length for length in _LENGTHS if length <= model.max_model_len]


Measure = Callable[[EngineProcess, ModelFacts, int], Awaitable[Curve]]
"""Measures one curve with so many threads."""

CURVES: Mapping[str, Measure] = {"decode-batch": decode_batch, "decode-context": decode_context, "prefill": prefill}


async def _prefill_point(
    engine: EngineProcess, model: ModelFacts, ceilings: Ceilings, threads: int, length: int
) -> Point:
    seconds, least = 0.0, Least(0.0, 0.0)
    for start, chunk_len in chunks_of(length):
        seconds += chunk_len / await engine.prefill(1, chunk_len, threads=threads, repeats=1, start=start)
        least += prefill_least(model, ceilings, chunk_len, start)
    return Point(length, seconds, least)
