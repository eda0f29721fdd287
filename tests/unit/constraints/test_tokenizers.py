"""Every kind of tokenizer: what is allowed is, token by token, what the text allows."""

import random
import re

import numpy as np
import pytest

from shared.constraints.compiler import ConstraintCompiler
from shared.constraints.constraint import Constraint, ConstraintKind
from shared.errors import InvalidRequestError
from shared.text.detokenizer import IncrementalDetokenizer
from shared.text.tokenizer import Tokenizer
from tests.unit.text.conftest import BACKENDS

EOS_TOKEN_ID = 2
CONSTRAINED = ("byte_level", "byte_level_with_added_tokens", "sentencepiece")


def made(name: str) -> tuple[Tokenizer, ConstraintCompiler]:
    tokenizer = Tokenizer(BACKENDS[name](), [EOS_TOKEN_ID])
    return tokenizer, ConstraintCompiler(tokenizer, tokenizer.vocab_size + 3)


def text_of(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    detokenizer = IncrementalDetokenizer(tokenizer)
    return detokenizer.push(token_ids) + detokenizer.flush()


@pytest.mark.parametrize("name", CONSTRAINED)
def test_a_first_token_is_allowed_if_its_text_is(name: str) -> None:
    """Of tokens that are whole characters; the constraint is any text of at most four small letters."""
    tokenizer, compiler = made(name)
    allowed = compiler.matcher(Constraint(ConstraintKind.REGEX, "[a-z]{1,4}")).allowed()
    expected = [
        token_id
        for token_id in range(tokenizer.vocab_size)
        if re.fullmatch("[a-z]{1,4}", text_of(tokenizer, [token_id]))
        # "▁the" reads as "the" at the beginning alone: it is not offered there.
        and not (tokenizer._backend.id_to_token(token_id) or "").startswith("▁")
    ]
    assert len(expected) >= 8
    assert np.flatnonzero(allowed).tolist() == expected


@pytest.mark.parametrize("name", CONSTRAINED)
@pytest.mark.parametrize("pattern", ["the dog", "[ -~]{0,9}", "(?s:.{0,6})", "(é|日本語|ä|<tool>| a){0,4}"])
def test_whatever_is_drawn_reads_as_the_constraint_says(name: str, pattern: str) -> None:
    tokenizer, compiler = made(name)
    for seed in range(60):
        generator, token_ids = random.Random(seed), list[int]()
        matcher = compiler.matcher(Constraint(ConstraintKind.REGEX, pattern))
        while (token_id := int(generator.choice(np.flatnonzero(matcher.allowed())))) != EOS_TOKEN_ID:
            token_ids.append(token_id)
            matcher.advance(token_id)
        assert re.fullmatch(pattern, text_of(tokenizer, token_ids)), token_ids


def test_a_text_that_must_begin_with_a_space_is_refused_where_the_tokenizer_drops_it() -> None:
    _, compiler = made("sentencepiece")
    with pytest.raises(InvalidRequestError, match=r"sampling\.regex cannot be satisfied"):
        compiler.matcher(Constraint(ConstraintKind.REGEX, " the"))


@pytest.mark.parametrize("name", ["metaspace", "spaced"])
def test_tokens_that_stand_for_no_bytes_cannot_be_constrained(name: str) -> None:
    _, compiler = made(name)
    with pytest.raises(InvalidRequestError, match="does not work with this model's tokenizer"):
        compiler.matcher(Constraint(ConstraintKind.REGEX, "a"))
