"""A bar for the reading of a long trace."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from shared.ladder.trace import source_name

_PATIENCE_S = 1.0


class ReadingBar:
    """Shows on a terminal how much of a file has been read, once it takes more than a second; vanishes at the end."""

    def __init__(
        self, path: Path, console: Console | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._console = console or Console(stderr=True)
        columns = (TextColumn("reading {task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, transient=True)
        total = path.stat().st_size if path.is_file() else None
        self._bar = self._progress.add_task(source_name(Path(path.name)), total=total)
        self._clock = clock
        self._is_shown = False
        self._show_at = clock() + _PATIENCE_S

    def move(self, num_bytes: int) -> None:
        """Tells that so many bytes have been read."""
        if not self._console.is_terminal or self._clock() < self._show_at:
            return
        self._is_shown = True
        self._progress.start()
        self._progress.update(self._bar, completed=num_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            self._progress.stop()
