"""What the text of an option means: biases, constraints, texts that may stand in a file."""

import re
from collections.abc import Sequence
from pathlib import Path

import typer

from baton_client import Choices, Grammar, JsonSchema, Regex
from baton_client.values import Constraint

_BIAS = re.compile(r"\s*([0-9]+)\s*=(.*)", re.DOTALL)


def parse_logit_bias(texts: Sequence[str]) -> dict[int, float]:
    """Token id → what is added to its logit, of `ID=VALUE` texts.

    Raises:
        typer.BadParameter: one is none, or an id comes twice.
    """
    bias: dict[int, float] = {}
    for text in texts:
        token_id, value = _parse_bias(text)
        if token_id in bias:
            raise typer.BadParameter(f"token {token_id} comes twice", param_hint="--logit-bias")
        bias[token_id] = value
    return bias


def _parse_bias(text: str) -> tuple[int, float]:
    match = _BIAS.fullmatch(text)
    try:
        if match is not None:
            return int(match[1]), float(match[2])
    except ValueError:
        pass
    raise typer.BadParameter(f"{text!r} needs ID=VALUE, such as 42=-1.5", param_hint="--logit-bias")


def parse_constraint(
    json_schema: str | None, regex: str | None, grammar: str | None, choices: Sequence[str]
) -> Constraint | None:
    """The one constraint that is given, or None.

    Raises:
        typer.BadParameter: several are given, or a file cannot be read.
    """
    options = {
        "--json-schema": json_schema,
        "--regex": regex,
        "--grammar": grammar,
        "--choice": choices or None,
    }
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)} cannot be met together: give one kind of constraint")
    if json_schema is not None:
        return JsonSchema(_text_or_file(json_schema, "--json-schema"))
    if grammar is not None:
        return Grammar(_text_or_file(grammar, "--grammar"))
    if regex is not None:
        return Regex(regex)
    return Choices(tuple(choices)) if choices else None


def _text_or_file(text: str, option: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"cannot read {text[1:]!r}: {error}", param_hint=option) from error
