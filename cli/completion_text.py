"""The texts of one request's completions, one after another, though they arrive side by side."""

import sys
from collections import defaultdict
from collections.abc import Callable

import typer

from cli.exit_codes import EXIT_FAILED
from cli.failures import discard_output, print_error


def write(text: str) -> None:
    """Writes to standard output, at once; nowhere if it was closed from the beginning.

    Raises:
        typer.Exit: it takes no more, as a full disk does; that is said on standard error.
        BrokenPipeError: its reader has left.
    """
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output()
        print_error(f"cannot write to standard output: {error.strerror}")
        raise typer.Exit(EXIT_FAILED) from error


class CompletionText:
    """Writes the first completion that has not ended as it arrives, and keeps the others until it is their turn.

    Args:
        has_headings: whether a line with its index stands before each completion.
        write: takes the next piece of what is shown.
    """

    def __init__(self, has_headings: bool, write: Callable[[str], None] = write) -> None:
        self._has_headings = has_headings
        self._write = write
        self._kept: defaultdict[int, str] = defaultdict(str)
        self._ended: set[int] = set()
        self._current = 0
        self._is_open = False
        self._last = ""

    def add(self, index: int, text: str) -> None:
        """Takes the next piece of completion `index`."""
        if index == self._current:
            self._show(text)
        elif text:
            self._kept[index] += text

    def end(self, index: int) -> None:
        """Takes note that completion `index` has ended."""
        self._ended.add(index)
        while self._current in self._ended:
            self._open()
            self._move_to(self._current + 1)

    def flush(self) -> None:
        """Writes what is kept, of completions that may never end."""
        for index in sorted(self._kept):
            self._move_to(index)
        self._close()

    def _move_to(self, index: int) -> None:
        self._close()
        self._current = index
        self._show(self._kept.pop(index, ""))

    def _show(self, text: str) -> None:
        if text:
            self._open()
            self._last = text  # before it is written: Ctrl-C may come at once, and the line is ended all the same
            self._write(text)

    def _open(self) -> None:
        if self._has_headings and not self._is_open:
            self._write(f"--- completion {self._current} ---\n")
        self._is_open = True

    def _close(self) -> None:
        self._is_open = False
        last, self._last = self._last, ""
        if last and not last.endswith("\n"):
            self._write("\n")
