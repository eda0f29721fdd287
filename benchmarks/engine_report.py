"""What `benchmarks.engine` measured, beside the bounds of the machine: a table for people, JSON for programs."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from benchmarks.bounds import Ceilings, Least, ModelFacts, step_least
from benchmarks.required import MULTIPLY_SHARE, READ_SHARE, required_share, rows_of


@dataclass(frozen=True)
class Figures:
    """Tokens a second of one number of threads, and the ceilings before and after."""

    decode: Mapping[str, float]
    prefill: Mapping[str, float]
    before: Ceilings
    after: Ceilings

    @property
    def ceilings(self) -> Ceilings:
        """Means of both."""
        return Ceilings(
            read_gb_s=(self.before.read_gb_s + self.after.read_gb_s) / 2,
            gemm_gflop_s=(self.before.gemm_gflop_s + self.after.gemm_gflop_s) / 2,
        )


@dataclass(frozen=True)
class Judged:
    """One figure beside its bound.

    Attributes:
        walk: "decode" or "prefill".
        required_share: of its bound; None where nothing is required.
    """

    walk: str
    name: str
    tokens_a_second: float
    seconds: float
    least: Least
    required_share: float | None

    @property
    def share(self) -> float:
        """Of the bound that is reached: of the longer of reading and multiplying."""
        return self.least.bound_seconds / self.seconds

    @property
    def serial_share(self) -> float:
        """Of what reading and then multiplying takes; above 1 where the step does both at once."""
        return self.least.serial_seconds / self.seconds

    @property
    def holds(self) -> bool | None:
        """Whether the required share is reached."""
        return None if self.required_share is None else self.share >= self.required_share


def judged(model: ModelFacts, num_threads: int, figures: Figures) -> Iterator[Judged]:
    """All figures of one number of threads."""
    for walk, rates in (("decode", figures.decode), ("prefill", figures.prefill)):
        for name, rate in rates.items():
            rows = rows_of(walk, name)
            yield Judged(
                walk=walk,
                name=name,
                tokens_a_second=rate,
                seconds=sum(length for _, length in rows) / rate,
                least=step_least(model, figures.ceilings, rows),
                required_share=required_share(model, num_threads, walk, name),
            )


def report(model: ModelFacts, figures: Mapping[int, Figures]) -> str:
    """A table for people."""
    lines = [f"{model.title}, {model.weight_bytes / 1e9:.3f} GB of weights a decode step"]
    for num_threads, found in figures.items():
        reads = f"{found.before.read_gb_s:.1f}, then {found.after.read_gb_s:.1f} GB/s"
        products = f"{found.before.gemm_gflop_s:.0f}, then {found.after.gemm_gflop_s:.0f} GFLOP/s"
        read_share = found.decode["1x128"] * model.weight_bytes / 1e9 / found.ceilings.read_gb_s
        multiply_share = found.prefill["1x512"] * 2 * model.layer_weights / 1e9 / found.ceilings.gemm_gflop_s
        lines += [
            "",
            f"{num_threads} threads: reads at {reads}; 2048³ products at {products}",
            f"{'':16}{'tokens/s':>9}{'ms':>9}  of its bound, required   of reading then multiplying",
            *map(_line, judged(model, num_threads, found)),
            f"  decode 1x128 reads weights at {read_share:.0%} of the ceiling, required {READ_SHARE:.0%}",
            f"  prefill 1x512 multiplies weights at {multiply_share:.0%} of the ceiling, required {MULTIPLY_SHARE:.0%}",
        ]
    return "\n".join(lines)


def _line(row: Judged) -> str:
    longer = "reading" if row.least.read_seconds > row.least.multiply_seconds else "products"
    required = "" if row.required_share is None else f"≥ {row.required_share:.0%} {'yes' if row.holds else 'NO'}"
    return (
        f"  {row.walk:<8}{row.name:<6}{row.tokens_a_second:9.1f}{row.seconds * 1e3:9.2f}"
        f"{row.share:6.0%} {longer:<9}{required:<12}{row.serial_share:6.0%}"
    )


def as_json(model: ModelFacts, figures: Mapping[int, Figures]) -> str:
    """`ceilings` are those measured before, with the most threads; `ceilings_after` and each number's own beside."""
    most = figures[max(figures)]
    return json.dumps(
        {
            "ceilings": asdict(most.before),
            "ceilings_after": asdict(most.after),
            "threads": {
                str(number): {"decode": dict(found.decode), "prefill": dict(found.prefill)}
                for number, found in figures.items()
            },
            "ceilings_by_threads": {str(number): asdict(found.before) for number, found in figures.items()},
            "bounds": {str(number): _bounds(model, number, found) for number, found in figures.items()},
            "model": asdict(model),
        }
    )


def _bounds(model: ModelFacts, num_threads: int, figures: Figures) -> dict[str, dict[str, dict[str, object]]]:
    bounds: dict[str, dict[str, dict[str, object]]] = {"decode": {}, "prefill": {}}
    for row in judged(model, num_threads, figures):
        bounds[row.walk][row.name] = {
            "seconds": row.seconds,
            **asdict(row.least),
            "share": row.share,
            "serial_share": row.serial_share,
            "required_share": row.required_share,
            "holds": row.holds,
        }
    return bounds
