"""Options that name the config files of a deployment, for every command that has them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cli.start import interrupts_exit

with interrupts_exit():
    import typer

if TYPE_CHECKING:
    from cli.layout import ConfigFiles

ServingOption = Annotated[
    Path | None, typer.Option(help="The config that both share.", show_default="configs/serving.yaml")
]
PrefillOption = Annotated[
    Path | None, typer.Option(help="The prefill service's own config.", show_default="configs/prefill.yaml")
]
DecodeOption = Annotated[
    Path | None, typer.Option(help="The decode service's own config.", show_default="configs/decode.yaml")
]


def config_files(serving: Path | None, prefill: Path | None, decode: Path | None) -> "ConfigFiles":
    """The files that were given, and the default ones in place of the others."""
    with interrupts_exit():
        from cli.layout import ConfigFiles

    given = {"serving": serving, "prefill": prefill, "decode": decode}
    return ConfigFiles(**{name: path for name, path in given.items() if path is not None})
