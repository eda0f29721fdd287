"""How times and memory grow: the bare engine's steps against batch, context and length, each beside a physical bound.

    python -m benchmarks.growth [--json] [--only NAME ...] [--plots DIR] [--threads N] [--soak MINUTES]

Curves: decode-batch (1 to 64 rows of 128 tokens), decode-context (8 rows of 128 to 8,192 tokens), prefill (128 to 8,192
tokens); all as far as the model's context goes. --soak keeps a split pair of services busy and samples their memory.
What grows faster than its bound is named; docs/benchmarks.md says how that is judged.
"""

from cli.start import interrupts_exit, quiet_grpc

quiet_grpc()

with interrupts_exit():
    import argparse
    import asyncio
    import json
    import sys
    from collections.abc import Iterator, Sequence
    from dataclasses import asdict, dataclass
    from pathlib import Path

    from benchmarks.bounds import ModelFacts
    from benchmarks.command import end_on_sigterm, progress, run_to_end
    from benchmarks.engine_process import running_engine
    from benchmarks.growth_curves import BATCHES, CONTEXT, CURVES, MAX_GROWTH, NUM_ROWS, Curve, Point, lengths_of
    from benchmarks.growth_soak import MAX_SLOPE_MIB_A_MINUTE, Soak, soak

_LONGEST = 8192


@dataclass(frozen=True)
class Growth:
    """What was measured.

    Attributes:
        soak: None where it was not asked for.
    """

    model: ModelFacts
    threads: int
    curves: tuple[Curve, ...]
    soak: Soak | None

    @property
    def is_well(self) -> bool:
        """Whether there is no surprise."""
        memory = self.soak.memory.values() if self.soak is not None else ()
        return all(curve.is_linear for curve in self.curves) and all(held.is_flat for held in memory)


async def measure(names: Sequence[str], threads: int, minutes: float) -> Growth:
    """The curves named, and a soak of so many minutes.

    Raises:
        BenchmarkError: a process or a call failed.
    """
    progress("starting the engine")
    curves = []
    async with running_engine([(max(BATCHES), CONTEXT), (NUM_ROWS, _LONGEST)]) as engine:
        model = await engine.model()
        for name in names:
            progress(name)
            curves.append(await CURVES[name](engine, model, threads))
    result = None
    if minutes > 0:
        progress(f"soak of {minutes:g} minutes")
        result = await soak(model.vocab_size, minutes)
    return Growth(model, threads, tuple(curves), result)


def lines_of(found: Growth) -> Iterator[str]:
    """For people."""
    model = found.model
    yield f"{model.title}, {found.threads} thread(s); context up to {model.max_model_len}"
    if lengths_of(model)[-1] < _LONGEST:
        yield f"the model's context ends before {_LONGEST} tokens"
    for curve in found.curves:
        read, gemm = curve.ceilings.read_gb_s, curve.ceilings.gemm_gflop_s
        yield f"\n{curve.title} (ceilings: reads {read:.1f} GB/s, products {gemm:.0f} GFLOP/s)"
        for point in curve.points:
            times = f"{point.seconds * 1e3:10.2f} ms, bound {point.bound_seconds * 1e3:10.2f} ms"
            ratios = f"{point.ratio:.2f} × the bound, {point.serial_ratio:.2f} × reading + multiplying"
            yield f"{point.size:>8} {curve.unit}: {times}, {ratios}"
        verdict = "no super-linear surprise" if curve.is_linear else "SUPER-LINEAR"
        yield f"the last ratio grows by at most {curve.growth:.2f} × (≤ {MAX_GROWTH}): {verdict}"
    if found.soak is not None:
        answered, left = found.soak.num_requests, found.soak.num_left
        yield f"\n{found.soak.minutes:g} minutes of mixed load: {answered} requests answered, {left} left early"
        for kind, memory in found.soak.memory.items():
            verdict = "flat" if memory.is_flat else "GROWS"
            yield (
                f"  {kind:<8}{memory.mib[-1]:8.0f} MiB at the end, {memory.slope_mib_a_minute:+.2f} MiB/min after "
                f"warm-up (≤ {MAX_SLOPE_MIB_A_MINUTE:g}): {verdict}"
            )


def json_of(found: Growth) -> dict[str, object]:
    """For programs."""
    return {
        "model": asdict(found.model),
        "threads": found.threads,
        "curves": {
            curve.name: {
                "unit": curve.unit,
                "ceilings": asdict(curve.ceilings),
                "points": [_point_json(point) for point in curve.points],
                "growth": curve.growth,
                "is_linear": curve.is_linear,
            }
            for curve in found.curves
        },
        "soak": None if found.soak is None else asdict(found.soak),
        "is_well": found.is_well,
    }


def _point_json(point: Point) -> dict[str, object]:
    ratios = {"ratio": point.ratio, "serial_ratio": point.serial_ratio}
    return {"size": point.size, "seconds": point.seconds, "bound_seconds": point.bound_seconds, **ratios}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", nargs="*", choices=tuple(CURVES), default=list(CURVES), help="(default: all)")
    parser.add_argument("--threads", type=int, default=1, help="of the engine (default: 1)")
    parser.add_argument("--soak", type=float, default=0.0, metavar="MINUTES", help="(default: 0, none)")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw the curves into files there")
    options = parser.parse_args(arguments)

    def run() -> int:
        found = asyncio.run(measure(options.only, options.threads, options.soak))
        if options.plots is not None:
            _draw(found, options.plots)
        text = json.dumps(json_of(found)) if options.json else "\n".join(lines_of(found))
        sys.stdout.write(text + "\n")
        return 0

    end_on_sigterm()
    return run_to_end(run)


def _draw(found: Growth, directory: Path) -> None:
    from benchmarks.growth_plots import plot_curve, plot_soak  # brings matplotlib, which is slow to import

    for curve in found.curves:
        progress(f"drew {plot_curve(curve, found.threads, directory)}")
    if found.soak is not None:
        progress(f"drew {plot_soak(found.soak, directory)}")


if __name__ == "__main__":
    sys.exit(main())
