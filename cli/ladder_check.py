"""`baton ladder check`: a shared config is right, or what is wrong with it. Imports no model code."""

from pathlib import Path

import typer

from cli.failures import plain_failures
from cli.layout import ConfigFiles
from shared.config.load import load_serving
from shared.config.notice import cautions
from shared.config.resolve import resolve
from shared.config.write import overriding_variables


def run(file: Path | None) -> None:
    """Prints `FILE: ok`, with cautions on standard error; leaves with exit code 2 where the file is refused."""
    path = file or ConfigFiles().serving
    with plain_failures():
        resolved = resolve(load_serving(path))
        variables = overriding_variables(())
    for sentence in cautions(resolved):
        typer.echo(f"caution: {sentence}", err=True)
    for variable in variables:
        typer.echo(f"note: {variable} overrides what the file says", err=True)
    typer.echo(f"{path}: ok")
