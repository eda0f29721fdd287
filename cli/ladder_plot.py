"""Draws padding against number of rungs."""

from pathlib import Path

from matplotlib.figure import Figure

from cli.ladder_compare import SUGGESTED, Comparison

_SIZE_INCHES = (8.0, 5.0)
_DOTS_PER_INCH = 150


def draw(comparison: Comparison, title: str, path: Path) -> None:
    """Writes the picture, in the format of the path's suffix.

    Raises:
        OSError: it cannot be written.
    """
    figure = Figure(figsize=_SIZE_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    axes = figure.add_subplot()
    num_rungs = [len(cost.rungs) for cost in comparison.curve]
    ratios = [cost.padding_ratio for cost in comparison.curve]
    axes.plot(num_rungs, ratios, marker=".", color="0.4", label="best ladder of so many rungs")
    for marker, (name, cost) in zip(("o", "s", "^"), comparison.ladders.items(), strict=True):
        label = f"{name}: {cost.padding_ratio:.4f} with {len(cost.rungs)}"
        axes.plot([len(cost.rungs)], [cost.padding_ratio], marker=marker, markersize=8, linestyle="none", label=label)
    if min(ratios) > 0:
        axes.set_yscale("log")
    axes.set_xlabel("rungs")
    axes.set_ylabel("padding tokens for each real one")
    axes.set_title(title)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.axvline(len(comparison.ladders[SUGGESTED].rungs), color="0.8", zorder=0)
    axes.legend()
    figure.savefig(path)
