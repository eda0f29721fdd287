"""Turns validation errors into sentences: the key's path, what was found, what would do."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from shared.config.schema import AT_MOST_MAX, MAX_INTEGER, REFUSAL, Needs, StrictModel, describe

KeyPath = tuple[str, ...]

_MAX_KEY_LEN = 60


@dataclass(frozen=True)
class Refusal:
    """Why one key is refused.

    Attributes:
        path: keys from the top of the file; empty: the file as a whole.
        reason: "found …; needs …".
    """

    path: KeyPath
    reason: str


def explain(model: type[StrictModel], error: ValidationError) -> list[Refusal]:
    """All refusals of one validation, in the order of the model's keys."""
    return [refusal for details in error.errors(include_url=False) for refusal in _explain_one(model, details)]


def dotted(path: KeyPath) -> str:
    """A path as users write it; a key that would not show as itself is put in quotes."""
    return ".".join(key if key.isprintable() and 0 < len(key) <= _MAX_KEY_LEN else describe(key) for key in path)


def _explain_one(model: type[StrictModel], details: ErrorDetails) -> Iterator[Refusal]:
    keys = tuple(str(key) for key in details["loc"])
    path = _named_path(details["loc"])
    value = details["input"]
    match details["type"]:
        case "extra_forbidden":
            yield from _unknown_key(model, path, value)
        case "invalid_key":
            key = describe(value)
            yield Refusal((*keys[:-1], key), f"found the key {key}; needs a string as the key")
        case kind if kind == REFUSAL:
            context = details["ctx"]
            inner = tuple(context["path"].split(".")) if context["path"] else ()
            yield Refusal(path + inner, f"found {context['found']}; needs {context['needs']}")
        case "less_than_equal" if details["ctx"]["le"] == MAX_INTEGER:
            yield Refusal(path, f"found {describe(value)}; needs {AT_MOST_MAX}")
        case _:
            yield Refusal(path, f"found {describe(value)}; needs {_needs(_annotation_at(model, keys))}")
            yield from _old_spellings_in(model, path, value)


def _named_path(location: tuple[int | str, ...]) -> KeyPath:
    """Keys of a location; a place in a list is written behind its key: `transports[0]`."""
    path: list[str] = []
    for key in location:
        if isinstance(key, int) and path:
            path[-1] += f"[{key}]"
        else:
            path.append(str(key))
    return tuple(path)


def _unknown_key(model: type[StrictModel], path: KeyPath, value: object) -> Iterator[Refusal]:
    if reason := _known_mistake(model, path):
        yield Refusal(path, reason)
    elif isinstance(value, Mapping) and value and path[-1] in _old_heads(model) and path[-1] not in path[:-1]:
        for key, inner in value.items():
            yield from _unknown_key(model, (*path, str(key)), inner)
    else:
        yield Refusal(path, _unknown_key_reason(model, path))
        yield from _old_spellings_in(model, path, value)


def _old_spellings_in(model: type[StrictModel], path: KeyPath, value: object) -> Iterator[Refusal]:
    """Refusals of old spellings right below a key that is wrong itself."""
    for head in _old_heads(model):
        if isinstance(value, Mapping) and head in value and head not in path:  # a mapping may hold itself
            yield from _unknown_key(model, (*path, head), value[head])


def _old_heads(model: type[StrictModel]) -> list[str]:
    """The first key of each old spelling."""
    return [old.partition(".")[0] for old in model.old_spellings]


def _known_mistake(model: type[StrictModel], path: KeyPath) -> str | None:
    name = ".".join(path)
    if name in model.known_mistakes:
        return model.known_mistakes[name]
    return next((told for old, told in model.old_spellings.items() if f".{name}".endswith(f".{old}")), None)


def _unknown_key_reason(model: type[StrictModel], path: KeyPath) -> str:
    *outer, key = path
    parent = _annotation_at(model, tuple(outer))
    if not _is_model(parent):
        return "found an unknown key; needs to be left out"
    if "." in key and _annotation_at(parent, tuple(key.split("."))) is not None:
        return (
            f"found one key with dots in it; needs a key in a key, {key.replace('.', ': {')}: …{'}' * key.count('.')}"
        )
    known = list(parent.model_fields)
    if len(known) == 1:
        return f"found an unknown {parent.key_noun}; needs {known[0]}"
    close = get_close_matches(key.lower(), known, n=1)
    hint = f" (did you mean `{close[0]}`?)" if close else ""
    return f"found an unknown {parent.key_noun}; needs one of {', '.join(known)}{hint}"


def _annotation_at(model: type[StrictModel], path: KeyPath) -> object:
    """The declared type of a key; None where there is no such key."""
    annotation: object = model
    for key in path:
        annotation = _plain(annotation)
        if _is_model(annotation):
            annotation = get_type_hints(annotation, include_extras=True).get(key)
        elif get_origin(annotation) is tuple:
            annotation = get_args(annotation)[0]
        else:
            return None
    return annotation if get_origin(annotation) is Annotated and _words(annotation) else _plain(annotation)


def _plain(annotation: object) -> object:
    """A type without its annotations."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _words(annotation: object) -> str | None:
    return next((item.words for item in get_args(annotation)[1:] if isinstance(item, Needs)), None)


def _is_model(annotation: object) -> TypeGuard[type[StrictModel]]:
    return isinstance(annotation, type) and issubclass(annotation, StrictModel)


def _needs(annotation: object) -> str:
    """What a value of a declared type must be, in words."""
    if get_origin(annotation) is Annotated and (words := _words(annotation)):
        return words
    annotation = _plain(annotation)
    if annotation is NoneType:
        return "null"
    if _is_model(annotation):
        keys = list(annotation.model_fields)
        return f"a mapping with the key{'s' if len(keys) > 1 else ''} {', '.join(keys)}"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " or ".join(_needs(argument) for argument in arguments)
    if origin is Literal:
        return f"one of {', '.join(arguments)}"
    if origin is tuple:
        return f"a list of {_needs(arguments[0])}"
    return f"a {getattr(annotation, '__name__', annotation)}"
