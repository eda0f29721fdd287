"""The pictures of `benchmarks.growth`, SVG files."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from benchmarks.growth_curves import Curve
from benchmarks.growth_soak import Soak

_SIZE = (6.4, 4.0)


def plot_curve(curve: Curve, threads: int, directory: Path) -> Path:
    """Times and bound on logarithmic axes; returns the file."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    sizes = [point.size for point in curve.points]
    axes.plot(sizes, [point.seconds * 1e3 for point in curve.points], "o-", label="measured")
    bound = f"bound: {curve.ceilings.read_gb_s:.0f} GB/s, {curve.ceilings.gemm_gflop_s:.0f} GFLOP/s"
    axes.plot(sizes, [point.bound_seconds * 1e3 for point in curve.points], "--", label=bound)
    axes.plot(sizes, [point.serial_seconds * 1e3 for point in curve.points], ":", label="reading + multiplying")
    axes.set(xscale="log", yscale="log", xlabel=curve.unit, ylabel="ms")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_title(f"{curve.title}, {threads} thread{'s' if threads > 1 else ''}")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    return _save(figure, directory / f"growth-{curve.name}.svg")


def plot_soak(result: Soak, directory: Path) -> Path:
    """Memory over time; returns the file."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    for kind, memory in result.memory.items():
        axes.plot(memory.minutes, memory.mib, label=f"{kind}: {memory.slope_mib_a_minute:+.2f} MiB/min")
    axes.set(xlabel="minutes", ylabel="MiB resident", title="memory under mixed load")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    return _save(figure, directory / "growth-memory.svg")


def _save(figure: Figure, path: Path) -> Path:
    """Text stays text, and equal figures give equal files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "baton"}):
        figure.savefig(path, metadata={"Date": None})
    return path
