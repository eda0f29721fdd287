"""Types that the config models are built from; each refusal says in plain words what would do."""

import json
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

MAX_INTEGER = 2**31 - 1
"""Largest integer of any key: more than a node can hold, and small enough for all that computes with it."""
AT_MOST_MAX = f"an integer ≤ {MAX_INTEGER}"

REFUSAL = "refusal"
"""Error type of refusals that hold `found` and `needs` in words, and `path` where the error's own path is too short."""


class StrictModel(BaseModel):
    """Frozen; unknown keys are refused; nothing is converted ("32" and true are no integers).

    Attributes:
        key_noun: what a key of this mapping is called in messages.
        known_mistakes: dotted path, from this model, of a key that does not exist → what the user is told.
        old_spellings: the same, for a path that may stand below any key that is unknown or has another kind of value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    key_noun: ClassVar[str] = "key"
    known_mistakes: ClassVar[dict[str, str]] = {}
    old_spellings: ClassVar[dict[str, str]] = {}


@dataclass(frozen=True)
class Needs:
    """Annotation: what a value must be, in words, for messages."""

    words: str


_MAX_DESCRIPTION = 60
_WRITABLE = (dict, list, tuple, str, int, float, NoneType)
_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)


def refuse(found: str, needs: str, path: str = "") -> PydanticCustomError:
    """The error for a value described as `found` where the key needs `needs`."""
    return PydanticCustomError(REFUSAL, "found {found}; needs {needs}", {"found": found, "needs": needs, "path": path})


def describe(value: object) -> str:
    """A value as it would stand in the file, in printable characters, shortened."""
    if not isinstance(value, _WRITABLE):
        return _printable(f"the {type(value).__name__} {value}")
    text = ""
    try:
        for part in _ENCODER.iterencode(value):  # part by part: aliases can make a value far longer than its file
            text += part
            if len(text) > _MAX_DESCRIPTION:
                break
    except (TypeError, ValueError, RecursionError):  # odd keys, a list that holds itself, a number of 5,000 digits
        text = "a mapping" if isinstance(value, dict) else f"a value of type {type(value).__name__}"
    return _printable(text)


def _printable(text: str) -> str:
    shown = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
    return shown if len(shown) <= _MAX_DESCRIPTION else f"{shown[: _MAX_DESCRIPTION - 3]}..."


def is_integer(value: object) -> bool:
    """Whether a value is an integer; a bool is not one."""
    return isinstance(value, int) and not isinstance(value, bool)


def _list_as_tuple(value: Any) -> Any:  # noqa: ANN401 - whatever stands in the file
    return tuple(value) if isinstance(value, list) else value


def _check_rungs(value: object) -> tuple[int, ...]:
    needs = "a list of ascending integers ≥ 1"
    if not isinstance(value, list | tuple):
        raise refuse(describe(value), needs)
    if not value:
        raise refuse("an empty list", needs)
    below = 0
    for position, rung in enumerate(value, start=1):
        if not is_integer(rung) or rung < 1:
            raise refuse(f"{describe(rung)} at position {position}", needs)
        if rung > MAX_INTEGER:
            raise refuse(f"{describe(rung)} at position {position}", f"{needs}, each {AT_MOST_MAX}")
        if rung <= below:
            raise refuse(f"{rung} twice" if rung == below else f"{rung} after {below}", needs)
        below = rung
    return tuple(value)


def _check_distinct(value: tuple[str, ...]) -> tuple[str, ...]:
    for item in value:
        if value.count(item) > 1:
            raise refuse(f"{describe(item)} twice", "different values")
    return value


def _check_target(value: str) -> str:
    host, _, port = value.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535
    if not host or not is_port or any(character.isspace() for character in value):
        raise refuse(describe(value), "host:port with a port from 1 to 65535")
    return value


AtLeastOne = Annotated[int, Field(ge=1, le=MAX_INTEGER), Needs("an integer ≥ 1")]
AtLeastTwo = Annotated[int, Field(ge=2, le=MAX_INTEGER), Needs("an integer ≥ 2")]
AtLeastZero = Annotated[int, Field(ge=0, le=MAX_INTEGER), Needs("an integer ≥ 0")]
Port = Annotated[int, Field(ge=0, le=65535), Needs("a port from 0 (any free one) to 65535")]
Text = Annotated[str, Field(min_length=1), Needs("a string that is not empty")]
Seconds = Annotated[float, Field(ge=0), Needs("seconds ≥ 0")]
PositiveSeconds = Annotated[float, Field(gt=0), Needs("seconds > 0")]
Rungs = Annotated[tuple[int, ...] | None, BeforeValidator(_check_rungs), Needs("a list of ascending integers ≥ 1")]
"""None only where the key is left out."""
Target = Annotated[str, AfterValidator(_check_target), Needs("host:port")]
ListOf = BeforeValidator(_list_as_tuple)
Distinct = AfterValidator(_check_distinct)
