"""`baton model import` and `baton model list`."""

from typing import Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from cli.failures import plain_failures
from shared.engine.models.registry import ImportProgress, import_model, list_models


def import_with_progress(name_or_gguf: str, name: str | None) -> None:
    """Imports a model with a progress bar, and prints where it lies; a model that is there already shows no bar."""
    with plain_failures(), StageBars() as bars:
        path = import_model(name_or_gguf, name, bars.show)
    typer.echo(path)


class StageBars:
    """A progress bar for each stage of an import, on standard error; none before the first report."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._stage: str | None = None
        self._bar: TaskID | None = None

    def show(self, report: ImportProgress) -> None:
        """Moves the bar of the report's stage; a new stage fills the bar of the one before."""
        if self._bar is None or report.stage != self._stage:
            self._fill()
            self._progress.start()
            self._stage = report.stage
            self._bar = self._progress.add_task(report.stage, total=None)
        if report.fraction is not None:
            self._progress.update(self._bar, total=1.0, completed=report.fraction)

    def _fill(self) -> None:
        if self._bar is not None:
            self._progress.update(self._bar, total=1.0, completed=1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if exc_type is None:
            self._fill()
        if self._bar is not None:
            self._progress.stop()


def print_models() -> None:
    """Prints a table of the models that can be named."""
    table = Table("model", "size", Column("where", overflow="fold"))
    for entry in list_models():
        if entry.path is None:
            table.add_row(entry.name, "", "not imported yet")
        else:
            table.add_row(entry.name, f"{entry.num_bytes / 1e6:,.0f} MB", str(entry.path))
    Console().print(table)
