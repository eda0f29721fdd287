"""The `baton` command. Only names and options stand here: what a command needs is imported when it runs.

Exit codes: 0 done, 1 failed, 2 bad usage or config, 130 interrupted.
"""

import math
import sys
from pathlib import Path
from typing import Annotated

from cli.config_options import DecodeOption, PrefillOption, ServingOption, config_files
from cli.exit_codes import EXIT_INTERRUPTED
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


_SAMPLING, _STOPPING, _REQUEST = "Sampling", "Stopping", "Request"


@app.command()
def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(help="What to continue or, with --chat, to answer; '-' reads it from standard input."),
    ] = None,
    target: Annotated[
        str, typer.Option(envvar="BATON_TARGET", help="host:port of a decode service; several, joined by commas.")
    ] = "localhost:50051",
    chat: Annotated[bool, typer.Option("--chat", help="Send the prompt as a user's message.")] = False,
    system: Annotated[str | None, typer.Option(help="With --chat: the system message before it.")] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="Print each message as one line of JSON.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Print usage and timings to standard error.")] = False,
    token_ids: Annotated[bool, typer.Option("--token-ids", help="With --json: token ids beside the text.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds for the whole call, more than 0.")] = 600.0,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.", rich_help_panel=_SAMPLING)] = None,
    top_k: Annotated[int | None, typer.Option(min=0, help="0 keeps all.", rich_help_panel=_SAMPLING)] = None,
    top_p: Annotated[float | None, typer.Option(help="In (0, 1].", rich_help_panel=_SAMPLING)] = None,
    min_p: Annotated[float | None, typer.Option(help="In [0, 1].", rich_help_panel=_SAMPLING)] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Same seed, same output.", rich_help_panel=_SAMPLING)] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=0, help="Most tokens to generate.", rich_help_panel=_STOPPING)
    ] = None,
    min_tokens: Annotated[
        int | None, typer.Option(min=0, help="No stop before so many tokens.", rich_help_panel=_STOPPING)
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End where this text appears; may be repeated.", rich_help_panel=_STOPPING)
    ] = None,
    stop_token_id: Annotated[
        list[int] | None, typer.Option(min=0, help="End at this token; may be repeated.", rich_help_panel=_STOPPING)
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the end of sequence.", rich_help_panel=_STOPPING)
    ] = False,
    include_stop: Annotated[
        bool, typer.Option("--include-stop", help="Leave the matched stop in the text.", rich_help_panel=_STOPPING)
    ] = False,
    request_id: Annotated[
        str | None, typer.Option(help="Made by the server if not given.", rich_help_panel=_REQUEST)
    ] = None,
    model: Annotated[str | None, typer.Option(help="Refuse any other model.", rich_help_panel=_REQUEST)] = None,
    cache_salt: Annotated[
        str | None, typer.Option(help="Share cached prefixes with this salt only.", rich_help_panel=_REQUEST)
    ] = None,
    priority: Annotated[int | None, typer.Option(help="Higher goes first.", rich_help_panel=_REQUEST)] = None,
) -> None:
    """Generate text, printed as it arrives.

    Without PROMPT, standard input is read if it is not a terminal; one line end at its end is dropped.
    """
    with interrupts_exit():
        from baton_client import Options, Output, Sampling, Stopping
        from cli.generate import Display, read_prompt, run

    if system is not None and not chat:
        raise typer.BadParameter("--system needs --chat")
    if token_ids and not json_lines:
        raise typer.BadParameter("--token-ids needs --json")
    options = Options(
        sampling=Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed),
        stopping=Stopping(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop=tuple(stop or ()),
            stop_token_ids=tuple(stop_token_id or ()),
            ignore_eos=ignore_eos,
            include_stop=include_stop,
        ),
        output=Output(token_ids=token_ids),
        request_id=request_id or "",
        model=model or "",
        cache_salt=cache_salt or "",
    )
    if priority is not None:
        options["priority"] = priority
    run(target, read_prompt(prompt, chat, system), options, timeout, Display(json_lines, stats))


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
