"""`baton ladder suggest`: reads a trace, compares ladders, prints, draws, writes."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from cli.exit_codes import EXIT_FAILED
from cli.failures import plain_failures, print_error
from cli.ladder_bytes import ModelSizes, sizes_or_reason
from cli.ladder_compare import Comparison, Request, compare
from cli.ladder_progress import ReadingBar
from cli.ladder_text import columns, human_bytes, integer_list
from shared.config.load import load_serving
from shared.config.notice import cautions
from shared.config.resolve import ResolvedServing, resolve
from shared.config.write import overriding_variables, write_rungs
from shared.ladder import Ladder
from shared.ladder.suggest import LadderCost
from shared.ladder.trace import Trace, read_trace, source_name

__all__ = ["Request", "run"]

_PLOT_SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Answer:
    """A comparison, and what it was made from.

    Attributes:
        buffer_bytes: ladder's name → bytes of its step buffers, were it the node's only one; empty if not known.
        notes: what a reader should know, in sentences.
    """

    request: Request
    trace: Trace
    comparison: Comparison
    buffer_bytes: Mapping[str, int]
    notes: tuple[str, ...]


def run(request: Request, *, as_json: bool, plot: Path | None, writes: bool) -> None:
    """Does all that the command does."""
    if plot is not None:
        _check_plot(plot)
    with plain_failures():
        answer = _answer(request)
        if not as_json:
            _print(answer)
        if plot is not None:
            _draw(answer, plot)
        notes = _write(answer) if writes else []
    if as_json:
        written = request.serving if writes else None
        typer.echo(json.dumps(_as_json(answer, notes, plot, written), indent=2, ensure_ascii=False))
        return
    for note in notes:
        typer.echo(f"note: {note}", err=True)


def _check_plot(plot: Path) -> None:
    if plot.suffix.lower() not in _PLOT_SUFFIXES:
        raise typer.BadParameter(f"needs a name that ends in {', '.join(_PLOT_SUFFIXES)}", param_hint="--plot")
    if not plot.parent.is_dir():
        raise typer.BadParameter(f"{plot.parent} is no directory", param_hint="--plot")


def _answer(request: Request) -> Answer:
    serving = load_serving(request.serving)
    resolved = resolve(serving)
    variables = overriding_variables(request.key)
    with ReadingBar(request.trace) as bar:
        trace = read_trace(request.trace, request.column, bar.move)
    comparison = compare(request, resolved, trace)
    sizes = sizes_or_reason(serving)
    notes = [*comparison.notes, *(f"{name} sets today's ladder, not {request.serving}" for name in variables)]
    if isinstance(sizes, str):
        return Answer(request, trace, comparison, {}, (*notes, f"no bytes of buffers: {sizes}"))
    return Answer(request, trace, comparison, _buffer_bytes(request, resolved, comparison, sizes), tuple(notes))


def _buffer_bytes(
    request: Request, resolved: ResolvedServing, comparison: Comparison, sizes: ModelSizes
) -> dict[str, int]:
    walk, num_rows = resolved.walk(request.node, request.walk), resolved.max_num_seqs(request.node)
    return {
        name: sizes.step_buffers([replace(walk, ladder=Ladder(cost.rungs))], num_rows).total
        for name, cost in comparison.ladders.items()
    }


def _print(answer: Answer) -> None:
    for line in _lines(answer):
        typer.echo(line)
    for note in answer.notes:
        typer.echo(f"note: {note}", err=True)


def _lines(answer: Answer) -> Iterator[str]:
    comparison, trace = answer.comparison, answer.trace
    column = "" if trace.column is None else f", column {trace.column}"
    source = source_name(answer.request.trace)
    yield f"{source}{column}: {trace.num_prompts} prompts, {comparison.steps.num_tokens} tokens"
    yield f"cut at {comparison.budget}: {comparison.steps.num_steps} steps"
    yield ""
    yield from columns(
        ("ladder", "rungs", "padding/real", "steps unpadded", "buffers"),
        [_cells(name, cost, answer.buffer_bytes.get(name)) for name, cost in comparison.ladders.items()],
        left=("ladder",),
    )
    yield ""
    for name, cost in comparison.ladders.items():
        yield f"{name}: {integer_list(cost.rungs)}"
    yield ""
    yield from _yaml(answer.request.key, comparison.suggested.rungs)


def _cells(name: str, cost: LadderCost, num_bytes: int | None) -> tuple[str, ...]:
    return (
        name,
        str(len(cost.rungs)),
        f"{cost.padding_ratio:.4f}",
        f"{cost.unpadded_share:.1%}",
        human_bytes(num_bytes),
    )


def _yaml(key: tuple[str, ...], rungs: tuple[int, ...]) -> Iterator[str]:
    *outer, walk = key
    for depth, name in enumerate(outer):
        yield f"{'  ' * depth}{name}:"
    yield f"{'  ' * len(outer)}{walk}: {integer_list(rungs)}"


def _draw(answer: Answer, plot: Path) -> None:
    from cli.ladder_plot import draw

    request = answer.request
    source, budget = source_name(Path(request.trace.name)), answer.comparison.budget
    title = f"{request.node}.{request.walk} over {source}, steps of at most {budget}"
    with _writing(plot):
        draw(answer.comparison, title, plot)
    typer.echo(f"plot: {plot}", err=True)


def _write(answer: Answer) -> list[str]:
    """Writes the suggested rungs into the config; what to know about it afterwards."""
    request, rungs = answer.request, answer.comparison.suggested.rungs
    with _writing(request.serving):
        written = resolve(write_rungs(request.serving, request.key, rungs))
    name = f"{request.node}.{request.walk}"
    notes = [f"{request.serving} now has these rungs; services that run keep theirs until they start again"]
    if dropped := written.walk(request.node, request.walk).ladder.dropped:
        notes.append(f"of {name} {integer_list(dropped)} will be dropped, above its budget in {request.serving}")
    return [*notes, *cautions(written)]


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns an error of the file system into a line and exit code 1."""
    try:
        yield
    except OSError as error:
        print_error(f"{path}: cannot be written ({error.strerror or error})")
        raise typer.Exit(EXIT_FAILED) from error


def _as_json(answer: Answer, notes: list[str], plot: Path | None, written: Path | None) -> dict[str, object]:
    request, trace, comparison = answer.request, answer.trace, answer.comparison
    return {
        "serving": str(request.serving),
        "node": request.node,
        "walk": request.walk,
        "budget": comparison.budget,
        "alignment": request.alignment,
        "max_num_rungs": request.max_num_rungs,
        "trace": {
            "file": str(request.trace),
            "column": trace.column,
            "num_prompts": trace.num_prompts,
            "num_empty_rows": trace.num_empty_rows,
        },
        "num_steps": comparison.steps.num_steps,
        "num_tokens": comparison.steps.num_tokens,
        "ladders": {
            name: {**_cost_json(cost), "buffer_bytes": answer.buffer_bytes.get(name)}
            for name, cost in comparison.ladders.items()
        },
        "padding_ratio_by_num_rungs": {len(cost.rungs): cost.padding_ratio for cost in comparison.curve},
        "notes": [*answer.notes, *notes],
        "plot": None if plot is None else str(plot),
        "written": None if written is None else str(written),
    }


def _cost_json(cost: LadderCost) -> dict[str, object]:
    return {
        "rungs": cost.rungs,
        "padding_ratio": cost.padding_ratio,
        "num_padding_tokens": cost.num_padding_tokens,
        "unpadded_share": cost.unpadded_share,
        "num_steps_above": cost.num_steps_above,
    }
