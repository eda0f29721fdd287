"""The `baton` command. Only names and options stand here: what a command needs is imported when it runs.

Exit codes: 0 done, 1 failed, 2 bad usage or config, 130 interrupted.
"""

import math
import sys
from pathlib import Path
from typing import Annotated

from cli.chat_command import chat
from cli.config_options import DecodeOption, PrefillOption, ServingOption, config_files
from cli.exit_codes import EXIT_INTERRUPTED
from cli.generate_command import generate
from cli.ladder import ladder
from cli.start import interrupts_exit, quiet_grpc

with interrupts_exit():
    import typer

app = typer.Typer(
    name="baton",
    help="Serves language models as two gRPC services that scale separately: prefill and decode.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
models = typer.Typer(help="Models on this machine.", no_args_is_help=True)
app.add_typer(models, name="model")
app.add_typer(ladder, name="ladder")


def main() -> None:
    """Entry point; leaves with an exit code."""
    quiet_grpc()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        typer.echo(version("baton"))
        raise typer.Exit


@app.callback()
def _baton(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


app.command()(generate)
app.command()(chat)


@app.command()
def up(
    prefill: Annotated[int, typer.Option(min=0, help="Prefill replicas.")] = 1,
    decode: Annotated[int, typer.Option(min=0, help="Decode replicas.")] = 1,
    serving: ServingOption = None,
    prefill_config: PrefillOption = None,
    decode_config: DecodeOption = None,
    ready_timeout: Annotated[float, typer.Option(help="Seconds until all have to be ready, more than 0.")] = 300.0,
) -> None:
    """Run both services on this machine.

    Replica i listens on the configured ports + i. Ctrl-C lets running requests finish; a second one kills.

    A process that dies is not started again: the rest goes on without it, until none of its kind is left.
    """
    with interrupts_exit():
        from cli.up import run

    if not 0 < ready_timeout < math.inf:
        raise typer.BadParameter("needs seconds > 0", param_hint="--ready-timeout")
    if prefill + decode == 0:
        raise typer.BadParameter("nothing to start: --prefill and --decode are both 0")
    files = config_files(serving, prefill_config, decode_config)
    raise typer.Exit(run(prefill, decode, files, ready_timeout))


@app.command()
def batch(
    source: Annotated[str, typer.Argument(metavar="IN.JSONL", help="A request a line; '-' reads standard input.")],
    output: Annotated[Path, typer.Argument(metavar="OUT.JSONL", help="An answer a line, in the same order.")],
    serving: Annotated[
        Path | None, typer.Option(help="Model, budgets and ladders.", show_default="configs/serving.yaml")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="num_kv_blocks, threads and default_max_tokens.", show_default="configs/decode.yaml"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Drop the answers that OUT has.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Answer a file of requests in this process, without services.

    A line is a GenerateRequest of the wire contract as JSON, such as {"request_id": "a", "text": "Once upon",
    "stopping": {"max_tokens": 8}}; token_ids and chat may be plain lists, embeddings a list of vectors.

    A bad line gets an error for an answer and is reported; the others go on. An interrupted run goes on where it was
    when the same command is given again.
    """
    with interrupts_exit():
        from cli.batch import BatchJob, run
        from cli.layout import ConfigFiles

    default = ConfigFiles()
    job = BatchJob(source, output, serving or default.serving, config or default.decode, overwrite, quiet)
    raise typer.Exit(run(job))


@models.command("import")
def import_model(
    name_or_gguf: Annotated[str, typer.Argument(help="Name of a built-in model, or a GGUF file.")],
    name: Annotated[str | None, typer.Option(help="Name for the model of a GGUF file.")] = None,
) -> None:
    """Convert a model once, and keep it in the cache."""
    with interrupts_exit():
        from cli.models import import_with_progress

    import_with_progress(name_or_gguf, name)


@models.command("list")
def list_models() -> None:
    """Show the built-in models and those in the cache."""
    with interrupts_exit():
        from cli.models import print_models

    print_models()


if __name__ == "__main__":
    main()
