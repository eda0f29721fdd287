"""What the text of an option means: token ids, biases, constraints, texts that may stand in a file."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import typer

from baton_client import Choices, Grammar, JsonSchema, Regex
from baton_client.values import Constraint

_PAIR = re.compile(r"\s*([0-9]+)\s*=(.*)", re.DOTALL)
_TOKEN_ID = re.compile(r"-?[0-9]+")
_Value = TypeVar("_Value")


def parse_token_ids(text: str) -> list[int]:
    """Token ids parted by commas or white space, in brackets or without.

    Raises:
        ValueError: there is something else among them.
    """
    parts = re.split(r"[\s,]+", re.sub(r"\A\s*\[(.*)\]\s*\Z", r"\1", text, flags=re.DOTALL).strip())
    for part in parts:
        if part and not _TOKEN_ID.fullmatch(part):
            raise ValueError(f"{part!r} is no token id")
    return [int(part) for part in parts if part]


def parse_logit_bias(texts: Sequence[str]) -> dict[int, float]:
    """Token id → what is added to its logit, of `ID=VALUE` texts.

    Raises:
        typer.BadParameter: one is none, or an id comes twice.
    """
    return _parse_pairs(texts, float, "--logit-bias", "ID=VALUE, such as 42=-1.5")


def parse_resumptions(texts: Sequence[str]) -> dict[int, list[int]]:
    """Index → the tokens that its completion begins with, of `INDEX=IDS` texts.

    Raises:
        typer.BadParameter: one is none, or an index comes twice.
    """
    return _parse_pairs(texts, parse_token_ids, "--resume-from", "INDEX=IDS, such as 0=504,28")


def _parse_pairs(
    texts: Sequence[str], parse_value: Callable[[str], _Value], option: str, form: str
) -> dict[int, _Value]:
    pairs: dict[int, _Value] = {}
    for text in texts:
        try:
            key, value = _parse_pair(text, parse_value)
        except ValueError as error:
            raise typer.BadParameter(f"{text!r} needs {form}", param_hint=option) from error
        if key in pairs:
            raise typer.BadParameter(f"{key} comes twice", param_hint=option)
        pairs[key] = value
    return pairs


def _parse_pair(text: str, parse_value: Callable[[str], _Value]) -> tuple[int, _Value]:
    match = _PAIR.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return int(match[1]), parse_value(match[2])


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
