"""Random walks under random JSON Schemas, with the default model's tokenizer, end in JSON that the schemas accept."""

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from shared.constraints.compiler import ConstraintCompiler
from shared.constraints.constraint import Constraint, ConstraintKind
from shared.constraints.matcher import ConstraintMatcher
from shared.text.tokenizer import Tokenizer
from tests.schemas import random_schemas

MAX_STEPS = 1000
"""Random walks like escapes and take short tokens: far more than a model needs."""
SCHEMAS = random_schemas(seed=5, count=200)


@pytest.fixture(scope="module")
def tokenizer(smollm2_dir: Path) -> Tokenizer:
    return Tokenizer.from_directory(smollm2_dir)


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> ConstraintCompiler:
    return ConstraintCompiler(tokenizer, tokenizer.vocab_size)


def walk(matcher: ConstraintMatcher, eos_token_id: int, generator: random.Random) -> list[int]:
    """Token ids of a completion; each one is drawn from all that are allowed, EOS every other time that it is."""
    token_ids: list[int] = []
    for _ in range(MAX_STEPS):
        allowed = matcher.allowed()
        may_end, allowed[eos_token_id] = bool(allowed[eos_token_id]), False
        others = np.flatnonzero(allowed)
        if may_end and (not len(others) or generator.random() < 0.5):
            return token_ids
        token_ids.append(int(generator.choice(others)))
        matcher.advance(token_ids[-1])
    raise AssertionError(f"no end after {MAX_STEPS} tokens")


@pytest.mark.parametrize("part", range(4))
def test_whatever_is_drawn_is_json_that_the_schema_accepts(
    tokenizer: Tokenizer, compiler: ConstraintCompiler, part: int
) -> None:
    (eos_token_id,) = tokenizer.eos_token_ids
    for number, schema in list(enumerate(SCHEMAS))[part::4]:
        matcher = compiler.matcher(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)))
        for start in range(3):
            text = tokenizer.decode(walk(matcher.copy(), eos_token_id, random.Random(3 * number + start)), False)
            value: Any = json.loads(text)
            jsonschema.validate(value, schema)


def test_the_same_seed_walks_the_same_way(tokenizer: Tokenizer, compiler: ConstraintCompiler) -> None:
    (eos_token_id,) = tokenizer.eos_token_ids
    constraint = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(SCHEMAS[0]))
    fresh = ConstraintCompiler(tokenizer, tokenizer.vocab_size)
    walks = [walk(each.matcher(constraint), eos_token_id, random.Random(1)) for each in (compiler, compiler, fresh)]
    assert walks[0] == walks[1] == walks[2]


def test_what_json_dumps_writes_is_allowed(tokenizer: Tokenizer, compiler: ConstraintCompiler) -> None:
    value = {"name": "Köln", "tags": ["a", "b"], "size": {"km2": 405.0, "since": None}}
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "size": {"type": "object", "properties": {"km2": {"type": "number"}, "since": {"type": "null"}}},
        },
    }
    matcher = compiler.matcher(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)))
    for token_id in tokenizer.encode(json.dumps(value, ensure_ascii=False)):
        matcher.advance(token_id)
    assert matcher.allowed()[tokenizer.eos_token_ids[0]]
