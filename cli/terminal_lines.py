"""Lines that a user types, or that come through a pipe."""

import contextlib
import io
import sys
from collections.abc import Iterator


class TerminalLines:
    """The lines of standard input, with a prompt and line editing where a person types them.

    Bytes that are not UTF-8 become surrogates, which a request cannot hold.

    Attributes:
        is_typed: whether they come from a terminal.

    Raises (from iteration):
        KeyboardInterrupt: Ctrl-C was typed.
    """

    def __init__(self) -> None:
        self.is_typed = sys.stdin.isatty()
        self._has_prompt = self.is_typed and sys.stdout.isatty()
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
        if self._has_prompt:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 (`input` edits lines when it is there)

    def __iter__(self) -> Iterator[str]:
        while (line := self._typed() if self._has_prompt else self._read()) is not None:
            yield line

    def _typed(self) -> str | None:
        try:
            return input("> ")
        except EOFError:
            sys.stdout.write("\n")
            return None
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            raise

    def _read(self) -> str | None:
        line = sys.stdin.readline()
        return line.removesuffix("\n") if line else None
