"""What a failed command prints, and its exit code."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from shared.errors import BatonError, ConfigError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@contextmanager
def plain_failures() -> Iterator[None]:
    """Turns Baton's own errors into a line on standard error and an exit code: 2 for the config, 1 for the rest."""
    try:
        yield
    except ConfigError as error:
        print_error(error.message)
        raise typer.Exit(EXIT_USAGE) from error
    except BatonError as error:
        print_error(error.message)
        raise typer.Exit(EXIT_FAILED) from error


def print_error(message: str) -> None:
    """Prints `error: message` to standard error."""
    typer.echo(f"error: {message}", err=True)
