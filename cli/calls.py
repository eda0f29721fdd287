"""A client for a command, and what is printed of a call that failed."""

import typer

from baton_client import BatonClient, BatonClientError, InvalidArgument, Unavailable
from cli.failures import print_error


def open_client(target: str, timeout: float) -> BatonClient:
    """A client for `target`; `timeout` in seconds a call.

    Raises:
        typer.BadParameter: `target` or `timeout` cannot be meant.
    """
    try:
        return BatonClient(target, timeout=timeout)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--target") from error
    except InvalidArgument as error:
        raise typer.BadParameter(error.message, param_hint="--timeout") from error


def print_failure(error: BatonClientError, target: str, has_begun: bool) -> None:
    """Prints what is known of a failed call to standard error; `has_begun`: whether anything had arrived before."""
    reason = f" ({error.reason})" if error.reason else ""
    print_error(f"{error.status.name}{reason}: {error.message}")
    for key, value in sorted(error.metadata.items()):
        typer.echo(f"  {key}: {value}", err=True)
    if error.retry_after is not None:
        typer.echo(f"  try again after {error.retry_after:g} s", err=True)
    if isinstance(error, Unavailable) and not error.reason and not has_begun:  # not a service's words
        typer.echo(f"  is a decode service running at {target}? `baton up` starts both services", err=True)
