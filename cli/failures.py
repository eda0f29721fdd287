"""What a failed command prints, and its exit code."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from cli.exit_codes import EXIT_FAILED, EXIT_USAGE
from shared.errors import BatonError, ConfigError


@contextmanager
def plain_failures() -> Iterator[None]:
    """Turns Baton's own errors into lines on standard error and an exit code: 2 for the config, else 1."""
    try:
        yield
    except ConfigError as error:
        print_error(error.message)
        raise typer.Exit(EXIT_USAGE) from error
    except BatonError as error:
        print_error(error.message)
        raise typer.Exit(EXIT_FAILED) from error


def print_error(message: str) -> None:
    """Prints `error: message` to standard error, for each line of the message."""
    for line in message.splitlines() or [""]:
        typer.echo(f"error: {line}", err=True)


def discard_output() -> None:
    """Lets what is still to be written to standard output get lost, where its reader has left."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
