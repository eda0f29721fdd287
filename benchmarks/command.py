"""What the commands of this package share: how they end, and how they tell what they do."""

import signal
import sys
from collections.abc import Callable

from cli.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED


class BenchmarkError(Exception):
    """The measurement cannot go on, or would not mean what it says."""


def end_on_sigterm() -> None:
    """Makes SIGTERM end this program as Ctrl-C does: what it has started is ended first."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def run_to_end(run: Callable[[], int]) -> int:
    """Calls `run`; returns its exit code, or one for a failure or an interrupt, which are told in a line."""
    try:
        return run()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BenchmarkError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_FAILED


def progress(message: str) -> None:
    """Tells what is being done, on standard error."""
    sys.stderr.write(f"{message} …\n")
    sys.stderr.flush()
