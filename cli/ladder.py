"""`baton ladder`: names and options alone, as in `cli.main`; what a command needs is imported when it runs."""

from pathlib import Path
from typing import Annotated, Literal

from cli.config_options import DecodeOption, PrefillOption, ServingOption, config_files
from cli.start import interrupts_exit

with interrupts_exit():
    import typer

ladder = typer.Typer(help="Ladders and budgets: check them, see them resolved, fit them.", no_args_is_help=True)

_LARGEST = 2**31 - 1


@ladder.command()
def check(
    file: Annotated[
        Path | None,
        typer.Argument(help="A config that both services share.", show_default="configs/serving.yaml"),
    ] = None,
) -> None:
    """Validate a shared config, and nothing else.

    Exit code 0: services would take it. 2: they would not; a line for each key says what was found and what would do.

    Cautions are for settings that work, but not as one may expect; with them, too, the exit code is 0.

    BATON_SERVING__… variables count, as they do when a service starts.
    """
    with interrupts_exit():
        from cli.ladder_check import run

    run(file)


@ladder.command()
def show(
    serving: ServingOption = None,
    prefill_config: PrefillOption = None,
    decode_config: DecodeOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with exact bytes.")] = False,
) -> None:
    """Print what a config resolves to: budgets, rungs kept and dropped, bytes.

    Bytes are of step buffers, for each walk alone and for all walks of a node, which share them, and of the KV pool.

    They need the model on this machine; nothing is downloaded.
    """
    with interrupts_exit():
        from cli.ladder_show import run

    run(config_files(serving, prefill_config, decode_config), as_json)


@ladder.command()
def suggest(
    trace: Annotated[
        Path, typer.Option(help="CSV or JSON Lines of prompt lengths, one prompt a row; '-' is standard input.")
    ],
    rungs: Annotated[int, typer.Option(min=1, help="Most rungs of the ladder.")],
    budget: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_LARGEST,
            help="Most tokens of a step; prompts are cut there.",
            show_default="the walk's, or the longest prompt where that is null",
        ),
    ] = None,
    align: Annotated[int, typer.Option(min=1, max=_LARGEST, help="Rungs are multiples of this.")] = 1,
    column: Annotated[
        str | None,
        typer.Option(
            help="Column or key of the lengths.", show_default="ContextTokens, input_length or the only column"
        ),
    ] = None,
    node: Annotated[
        Literal["prefill", "decode"] | None,
        typer.Option(help="Whose ladder.", show_default="the node of the walk"),
    ] = None,
    walk: Annotated[
        Literal["prefill_text", "mixed"] | None,
        typer.Option(help="Which ladder.", show_default="prefill_text; mixed on decode"),
    ] = None,
    serving: ServingOption = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw padding against number of rungs: a .png, .svg or .pdf file.")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write the rungs into the shared config; its comments stay.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find the ladder with the least padding for a trace of prompt lengths.

    Each prompt is cut at the budget; each piece is a step of its own, and runs at the smallest rung that holds it.

    No other ladder of so many rungs pads less. It is shown beside today's ladder and powers of two.
    """
    with interrupts_exit():
        from cli.ladder_suggest import Request, run
        from cli.layout import ConfigFiles

    chosen_node = node or ("decode" if walk == "mixed" else "prefill")
    chosen_walk = walk or ("mixed" if node == "decode" else "prefill_text")
    if (chosen_node, chosen_walk) == ("prefill", "mixed"):
        raise typer.BadParameter("the prefill node has no walk mixed", param_hint="--walk")
    run(
        Request(
            serving=serving or ConfigFiles().serving,
            trace=trace,
            column=column,
            node=chosen_node,
            walk=chosen_walk,
            budget=budget,
            max_num_rungs=rungs,
            alignment=align,
        ),
        as_json=as_json,
        plot=plot,
        writes=write,
    )
