"""Random JSON Schemas, all of which bound what they let through.

No value is longer than about 200 tokens of a usual tokenizer: strings have at most 12 characters (of which a control
character takes 6 as an escape), integers at most 4 digits, numbers a step of 0.25 below 100, arrays at most 3 items,
objects at most 3 properties and no others, and nothing is nested deeper than 2.
"""

import random
from collections.abc import Callable
from typing import Any

MAX_STRING_LEN, MAX_NUM_ITEMS, MAX_NUM_PROPERTIES, MAX_DEPTH = 12, 3, 3, 2
_NAMES = ("name", "id", "größe", "a b", "tags", 'q"q', "x", "parent")
_PATTERNS = ("^[a-z]{1,6}$", "^[0-9]{2}-[0-9]{2}$", "^(red|green|blue)$", "^[A-Z][a-z]{0,4}( [A-Z][a-z]{0,4})?$")
_VALUES: tuple[Any, ...] = (None, True, 0, -17, 2.5, "", "yes", "no", "zwölf", 'a "b" \\', [], [1, 2], {"k": "v"})


def random_schemas(seed: int, count: int) -> list[dict[str, Any]]:
    """Return bounded schemas; the same seed gives the same ones."""
    generator = random.Random(seed)
    return [_schema(generator, MAX_DEPTH) for _ in range(count)]


def _schema(generator: random.Random, depth: int) -> dict[str, Any]:
    makers = _COMPOSITES * 2 + _SIMPLE if depth else _SIMPLE
    return generator.choice(makers)(generator, depth)


def _enum(generator: random.Random, _depth: int) -> dict[str, Any]:
    return {"enum": generator.sample(_VALUES, generator.randint(1, 4))}


def _const(generator: random.Random, _depth: int) -> dict[str, Any]:
    return {"const": generator.choice(_VALUES)}


def _integer(generator: random.Random, _depth: int) -> dict[str, Any]:
    lowest = generator.randint(-999, 999)
    highest = lowest + generator.randint(0, 2000)
    lower = {"minimum": lowest} if generator.random() < 0.5 else {"exclusiveMinimum": lowest - 1}
    return {"type": "integer", **lower, "maximum": highest}


def _number(generator: random.Random, _depth: int) -> dict[str, Any]:
    lowest = generator.randint(0, 50)
    return {"type": "number", "minimum": lowest, "maximum": lowest + generator.randint(1, 49), "multipleOf": 0.25}


def _boolean(_generator: random.Random, _depth: int) -> dict[str, Any]:
    return {"type": "boolean"}


def _null(_generator: random.Random, _depth: int) -> dict[str, Any]:
    return {"type": "null"}


def _string(generator: random.Random, _depth: int) -> dict[str, Any]:
    if generator.random() < 0.5:
        return {"type": "string", "pattern": generator.choice(_PATTERNS)}
    longest = generator.randint(0, MAX_STRING_LEN)
    return {"type": "string", "minLength": generator.randint(0, longest), "maxLength": longest}


def _array(generator: random.Random, depth: int) -> dict[str, Any]:
    most = generator.randint(0, MAX_NUM_ITEMS)
    least = generator.randint(0, most)
    return {"type": "array", "items": _schema(generator, depth - 1), "minItems": least, "maxItems": most}


def _object(generator: random.Random, depth: int) -> dict[str, Any]:
    names = generator.sample(_NAMES, generator.randint(1, MAX_NUM_PROPERTIES))
    return {
        "type": "object",
        "properties": {name: _schema(generator, depth - 1) for name in names},
        "required": [name for name in names if generator.random() < 0.6],
        "additionalProperties": False,
    }


def _any_of(generator: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_schema(generator, depth - 1) for _ in range(generator.randint(2, 3))]}


_Maker = Callable[[random.Random, int], dict[str, Any]]
_SIMPLE: tuple[_Maker, ...] = (_enum, _const, _integer, _number, _boolean, _null, _string, _string)
_COMPOSITES: tuple[_Maker, ...] = (_array, _object, _object, _any_of)
