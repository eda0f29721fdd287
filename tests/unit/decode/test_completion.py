"""A completion that is resumed goes on as if nothing had happened, and only what can have happened is resumed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from decode_service.completion import begin_completions
from decode_service.request import GenerationRequest
from shared.constraints.compiler import ConstraintCompiler
from shared.constraints.constraint import Constraint, ConstraintKind
from shared.errors import InvalidRequestError, Reason
from shared.sampling.params import SamplingParams
from shared.text.stopping import Finish, FinishReason, StoppingParams
from shared.text.tokenizer import Tokenizer
from tests.tiny_models import EOS_TOKEN_ID, VOCAB_SIZE
from tests.unit.decode.requests import generation_request

# A stop's beginnings, characters of two to four bytes and parts of them, and tokens that end it or are no text.
PIECES = [b"a", b" ", b"S", b"ST", b"STOP", b"OP", "é".encode(), "漢".encode(), "🙂".encode(), b"\xf0\x9f", b"\xff"]


def request_of(token_ids: tuple[int, ...] = (), n: int = 1, **stopping: object) -> GenerationRequest:
    """A request whose completion 0 has these tokens already."""
    params = StoppingParams(**{"max_tokens": 40, "stop": ("STOP",), **stopping})  # type: ignore[arg-type]  # by name
    request = generation_request(max_tokens=params.max_tokens, stopping=params)
    resumed = {0: token_ids} if token_ids else {}
    return replace(request, sampling=SamplingParams(temperature=0, n=n), resumed=resumed)


def run(
    request: GenerationRequest, tokenizer: Tokenizer, token_ids: tuple[int, ...]
) -> tuple[list[str], Finish | None, int]:
    """Texts of the deltas of the completion, to its end at most; how it ended, and its tokens."""
    completion = begin_completions(request, tokenizer)[0]
    texts: list[str] = []
    for token_id in token_ids:
        if completion.finish is not None:
            break
        delta = completion.push(token_id)
        assert (delta.token_ids, delta.index) == ((token_id,), 0)
        texts.append(delta.text)
    return texts, completion.finish, completion.num_generated


@example(pieces=[b"a", b"STO", b"a", b"STOP", b"a"], include_stop=False, min_tokens=0)
@example(pieces=["🙂".encode(), b"\xf0\x9f", b"a"], include_stop=False, min_tokens=0)
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=10),
    include_stop=st.booleans(),
    min_tokens=st.integers(0, 8),
)
def test_nothing_is_lost_or_told_twice_wherever_it_is_cut(
    tokenizer: Tokenizer, pieces: list[bytes], include_stop: bool, min_tokens: int
) -> None:
    token_ids = (*b"".join(pieces), EOS_TOKEN_ID)
    options: dict[str, Any] = {"include_stop": include_stop, "min_tokens": min_tokens}
    texts, finish, num_generated = run(request_of(**options), tokenizer, token_ids)
    for cut in range(num_generated + 1):
        rest, end, count = run(request_of(token_ids[:cut], **options), tokenizer, token_ids[cut:])
        assert texts[:cut] + rest == texts
        assert (end, count) == (finish, num_generated)


@pytest.mark.parametrize(
    ("text", "options", "finish"),
    [
        (b"abc", {"max_tokens": 3}, Finish(FinishReason.LENGTH)),
        (b"xSTOP", {}, Finish(FinishReason.STOP, matched_text="STOP")),
        (bytes([7]), {"stop_token_ids": (7,)}, Finish(FinishReason.STOP, matched_token_id=7)),
    ],
    ids=["max_tokens", "stop string", "stop token"],
)
def test_what_had_ended_has_ended(
    tokenizer: Tokenizer, text: bytes, options: dict[str, object], finish: Finish
) -> None:
    completions = begin_completions(request_of(tuple(text), n=2, **options), tokenizer)
    assert [completion.finish for completion in completions] == [finish, None]
    assert [completion.num_generated for completion in completions] == [len(text), 0]


@pytest.mark.parametrize(
    ("token_ids", "position"),
    [((*b"STOP", 97), 4), ((97, EOS_TOKEN_ID, 97), 2), (tuple(b"x" * 41), 40)],
    ids=["after a stop", "after an end of sequence", "after max_tokens"],
)
def test_nothing_comes_after_the_end(tokenizer: Tokenizer, token_ids: tuple[int, ...], position: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"token {position} of completion 0 comes after") as caught:
        begin_completions(request_of(token_ids), tokenizer)
    assert caught.value.reason is Reason.RESUME_INVALID
    assert caught.value.metadata == {"field": "resume", "index": "0", "position": str(position)}


@pytest.fixture(scope="module")
def yes_or_no(tokenizer: Tokenizer) -> GenerationRequest:
    matcher = ConstraintCompiler(tokenizer, VOCAB_SIZE).matcher(Constraint(ConstraintKind.REGEX, "yes|no!"))
    return replace(request_of(n=3), matcher=matcher)


def allowed(request: GenerationRequest, tokenizer: Tokenizer) -> list[list[int]]:
    """Which tokens may come next, of each completion."""
    matchers = [completion.matcher for completion in begin_completions(request, tokenizer)]
    return [matcher.allowed().nonzero()[0].tolist() for matcher in matchers if matcher is not None]


def test_each_completion_is_where_its_own_tokens_have_led(yes_or_no: GenerationRequest, tokenizer: Tokenizer) -> None:
    beginning = [ord("n"), ord("y")]
    resumed = replace(yes_or_no, resumed={1: tuple(b"ye"), 2: tuple(b"n")})
    assert allowed(resumed, tokenizer) == [beginning, [ord("s")], [ord("o")]]
    assert allowed(yes_or_no, tokenizer) == [beginning] * 3, "the request's own has not moved"


def test_what_the_constraint_never_allowed_is_refused(yes_or_no: GenerationRequest, tokenizer: Tokenizer) -> None:
    with pytest.raises(
        InvalidRequestError, match="token 1 of completion 2 is not what the constraint allows"
    ) as caught:
        begin_completions(replace(yes_or_no, resumed={2: tuple(b"nes")}), tokenizer)
    assert caught.value.reason is Reason.RESUME_INVALID
    assert caught.value.metadata == {"field": "resume", "index": "2", "position": "1"}
