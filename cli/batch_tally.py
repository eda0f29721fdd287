"""How far a batch is, and what went wrong in it."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from cli.batch_input import InputLine
from cli.batch_output import BatchOutput
from cli.exit_codes import EXIT_FAILED
from decode_service.offline import OfflineEngine, OfflineResult
from shared.errors import BatonError


class Tally:
    """Counts of a run, and its reports of bad lines.

    Args:
        console: where bad lines are reported.
        output: knows how many answers were kept of earlier runs.
    """

    def __init__(self, console: Console, output: BatchOutput) -> None:
        self._console = console
        self._output = output
        self._num_answered = self._num_failed = 0
        self._num_prompt_tokens = self._num_generated_tokens = 0
        self._began_s = 0.0

    def begin(self) -> None:
        """Starts the clock: the model is loaded."""
        self._began_s = time.monotonic()

    @property
    def num_done(self) -> int:
        """Lines that have a record, those of earlier runs included."""
        return self._output.num_kept + self._num_answered + self._num_failed

    @property
    def exit_code(self) -> int:
        """1 if any line failed."""
        return EXIT_FAILED if self._num_failed else 0

    def note_result(self, result: OfflineResult) -> None:
        """Counts an answered line."""
        self._num_answered += 1
        self._num_prompt_tokens += result.usage.prompt_len
        self._num_generated_tokens += result.usage.num_completion_tokens

    def note_failure(self, line: InputLine, error: BatonError) -> None:
        """Counts a line that failed, and says why."""
        self._num_failed += 1
        self._console.print(Text(f"line {line.number}: {error.reason}: {error.message}"), soft_wrap=True)

    def summary(self) -> str:
        """One line."""
        seconds = time.monotonic() - self._began_s
        parts = [f"{self.num_done} lines done"]
        if self._output.num_kept:
            parts.append(f"{self._output.num_kept} of them before")
        if self._num_failed:
            parts.append(f"{self._num_failed} failed")
        if self._num_generated_tokens:
            rate = self._num_generated_tokens / seconds
            parts.append(
                f"{self._num_prompt_tokens:,} prompt tokens, {self._num_generated_tokens:,} generated "
                f"({rate:,.1f} a second) in {seconds:.1f} s"
            )
        return ", ".join(parts)


class BatchBar:
    """The progress bar of a batch, on standard error; a context manager.

    Args:
        console: where it is drawn.
        num_lines: of the input; None if not known.
        tally: what it shows.
        hidden: whether it is not shown at all.
    """

    def __init__(self, console: Console, num_lines: int | None, tally: Tally, *, hidden: bool) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("lines"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._tally = tally
        self._progress = Progress(*columns, console=console, disable=hidden)
        self._task = self._progress.add_task("loading the model", total=num_lines, completed=tally.num_done)

    def show(self, engine: OfflineEngine) -> None:
        """Shows how far the engine is."""
        num_prompt_tokens, num_decoded = engine.num_tokens
        text = f"{num_prompt_tokens:,} prompt tokens, {num_decoded:,} decoded"
        self._progress.update(self._task, description=text, completed=self._tally.num_done)

    def close(self) -> None:
        """Leaves it as it is."""
        self._progress.stop()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
