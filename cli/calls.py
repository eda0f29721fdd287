"""A client for a command, and what is printed of a call that failed."""

from dataclasses import dataclass

import typer

from baton_client import BatonClient, BatonClientError, InvalidArgument, Unavailable
from cli.failures import print_error


@dataclass(frozen=True, slots=True)
class Target:
    """Where calls go, and what becomes of one that loses its server.

    Attributes:
        address: "host:port", several of them joined by commas.
        timeout: seconds a call.
        resumes: whether another server, or the same when it is back, goes on with it.
    """

    address: str
    timeout: float
    resumes: bool

    def open(self) -> BatonClient:
        """A client.

        Raises:
            typer.BadParameter: the address or the timeout cannot be meant.
        """
        try:
            return BatonClient(self.address, timeout=self.timeout)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--target") from error
        except InvalidArgument as error:
            raise typer.BadParameter(error.message, param_hint="--timeout") from error


def print_failure(error: BatonClientError, target: Target, has_begun: bool) -> None:
    """Prints what is known of a failed call to standard error; `has_begun`: whether anything had arrived before."""
    reason = f" ({error.reason})" if error.reason else ""
    print_error(f"{error.status.name}{reason}: {error.message}")
    for key, value in sorted(error.metadata.items()):
        if "\n" not in value or value not in error.message:
            typer.echo(f"  {key}: {value}", err=True)
    for violation in error.field_violations:
        if violation.field != error.metadata.get("field"):
            typer.echo(f"  {violation.field}: {violation.description}", err=True)
    if error.retry_after is not None:
        typer.echo(f"  try again after {error.retry_after:g} s", err=True)
    if isinstance(error, Unavailable) and not error.reason and not has_begun:  # not a service's words
        typer.echo(f"  is a decode service running at {target.address}? `baton up` starts both services", err=True)
