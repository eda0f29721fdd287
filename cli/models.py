"""`baton model import` and `baton model list`."""

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from cli.failures import plain_failures
from shared.engine.models.registry import ImportProgress, import_model, list_models


def import_with_progress(name_or_gguf: str, name: str | None) -> None:
    """Imports a model with a progress bar, and prints where it lies; a model that is there already shows no bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with plain_failures(), Progress(*columns, console=Console(stderr=True)) as progress:
        bar = _StageBar(progress)
        path = import_model(name_or_gguf, name, bar.show)
        bar.finish()
    typer.echo(path)


class _StageBar:
    """One bar a stage, so that the stages that are done stay in sight."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._stage: str | None = None
        self._task: TaskID | None = None

    def show(self, report: ImportProgress) -> None:
        """Moves the bar of the report's stage, a new one if the stage is."""
        if self._task is None or report.stage != self._stage:
            self.finish()
            self._stage = report.stage
            self._task = self._progress.add_task(report.stage, total=None)
        if report.fraction is not None:
            self._progress.update(self._task, total=1.0, completed=report.fraction)

    def finish(self) -> None:
        """Fills the bar of the stage that has ended."""
        if self._task is not None:
            self._progress.update(self._task, total=1.0, completed=1.0)


def print_models() -> None:
    """Prints a table of the models that can be named."""
    table = Table("model", "size", "where")
    for entry in list_models():
        if entry.path is None:
            table.add_row(entry.name, "", "not imported yet")
        else:
            table.add_row(entry.name, f"{entry.num_bytes / 1e6:,.0f} MB", str(entry.path))
    Console().print(table)
