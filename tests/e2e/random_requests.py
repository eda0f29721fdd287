"""Random requests over all fields, good ones and ones with one thing wrong.

Prompts are from 1 to 600 tokens long, most of them at or beside the edges of blocks, chunks and rungs of
`tests.services.TINY_SERVING`. All are drawn before the first is sent, always the same ones.
"""

import json
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from baton.v1 import generation_pb2 as pb

MAX_NUM_SEQS = 8
_SHORT_LENS = (1, 2, 7, 8, 9, 15, 16, 17, 23, 31, 32, 33)
_LONG_LENS = (*_SHORT_LENS, 63, 64, 65, 71, 127, 128, 129, 200, 600)
_WORDS = ("the cat", "Zürich", "北京", "👍🏽", "\n", "1, 2, 3", "{", "once upon a time", "a\u0301")
_JSON_SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "integer", "minimum": -3, "maximum": 120}},
    "required": ["a"],
    "additionalProperties": False,
}
_CONSTRAINTS: tuple[dict[str, Any], ...] = (
    {"json_schema": json.dumps(_JSON_SCHEMA)},
    {"json_schema": '{"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}'},
    {"regex": "[a-c]{2,9}"},
    {"regex": "(ab|cd)+ é?"},
    {"grammar": 'start: "x" (start | "y")'},
    {"choices": {"values": ["red", "green", "greenish", "größer"]}},
    {"choices": {"values": ["no"]}},
)


@dataclass(frozen=True)
class Kind:
    """What requests are drawn for.

    Attributes:
        prompt_lens: of prompts in tokens; of text and chat, in characters.
        max_tokens: most to generate.
        vocab_size: of ids that may be prompts.
    """

    prompt_lens: Sequence[int]
    max_tokens: int
    vocab_size: int
    hidden_size: int
    max_model_len: int


TINY = Kind(_LONG_LENS, 24, vocab_size=256, hidden_size=64, max_model_len=1024)
SMOLLM2 = Kind(_SHORT_LENS, 6, vocab_size=49152, hidden_size=576, max_model_len=8192)


@dataclass(frozen=True)
class Drawn:
    """A request, and why it must be refused; empty: it must not."""

    request: pb.GenerateRequest
    reason: str = ""


def drawn(kind: Kind, count: int) -> list[Drawn]:
    """So many requests; one of eight is broken, in each way in turn."""
    requests: list[pb.GenerateRequest] = []

    @seed(20261201)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(_good(kind))
    def collect(request: pb.GenerateRequest) -> None:
        requests.append(request)

    collect()
    assert len(requests) == count
    reasons = [""] * count
    for place, (break_it, reason) in zip(range(3, count, 8), cycle(_breakers(kind))):
        break_it(requests[place])
        reasons[place] = reason
    return list(map(Drawn, requests, reasons))


@st.composite
def _good(draw: st.DrawFn, kind: Kind) -> pb.GenerateRequest:
    request = pb.GenerateRequest(**draw(_prompts(kind)))
    output = draw(_output)
    if request.HasField("embeddings"):
        output.pop("prompt_logprobs", None)
    parts = {"sampling": draw(_sampling(kind)), "stopping": draw(_stopping(kind)), "output": output, **draw(_request)}
    request.MergeFrom(pb.GenerateRequest(**parts))
    return request


def _prompts(kind: Kind) -> st.SearchStrategy[dict[str, Any]]:
    lens, seeds = st.sampled_from(kind.prompt_lens), st.integers(0, 2**32)
    return st.one_of(
        st.builds(lambda length, seed: {"text": _text(length, seed)}, lens, seeds),
        st.builds(lambda length, seed: {"token_ids": {"ids": _token_ids(length, seed, kind)}}, lens, seeds),
        st.builds(
            _chat,
            st.lists(st.sampled_from(["system", "user", "assistant", "tool"]), min_size=1, max_size=3),
            lens,
            st.sampled_from([None, True, False]),
        ),
        st.builds(
            lambda length, seed, dtype: {"embeddings": _vectors(min(length, 65), seed, dtype, kind)},
            lens,
            seeds,
            st.sampled_from(["float32", "bfloat16"]),
        ),
    )


def _text(length: int, seed: int) -> str:
    generator = random.Random(seed)
    words = ""
    while len(words) < length:
        words += generator.choice(_WORDS) + " "
    return words[:length]


def _token_ids(length: int, seed: int, kind: Kind) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(kind.vocab_size) for _ in range(length)]


def _chat(roles: list[str], length: int, add_generation_prompt: bool | None) -> dict[str, Any]:
    messages = [{"role": role, "content": _text(length // len(roles), place)} for place, role in enumerate(roles)]
    return {"chat": {"messages": messages, "add_generation_prompt": add_generation_prompt}}


def _vectors(num_tokens: int, seed: int, dtype: str, kind: Kind) -> dict[str, Any]:
    generator = random.Random(seed)
    values = [generator.gauss(0.0, 0.1) for _ in range(num_tokens * kind.hidden_size)]
    data = struct.pack(f"<{len(values)}f", *values)
    if dtype == "bfloat16":  # the upper half of each
        data = b"".join(data[place + 2 : place + 4] for place in range(0, len(data), 4))
    return {"data": data, "num_tokens": num_tokens, "dtype": dtype}


def _maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Left out as often as not."""
    return st.one_of(st.none(), strategy)


def _fields(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Values of fields, without those that are None."""
    drawn_all = st.fixed_dictionaries(strategies)
    return drawn_all.map(lambda values: {name: value for name, value in values.items() if value is not None})


def _floats(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, width=32)


def _sampling(kind: Kind) -> st.SearchStrategy[dict[str, Any]]:
    options = _fields(
        temperature=st.one_of(st.none(), st.just(0.0), _floats(0.25, 2.0)),
        top_k=_maybe(st.integers(0, 50)),
        top_p=_maybe(_floats(0.125, 1.0)),
        min_p=_maybe(_floats(0.0, 0.5)),
        repetition_penalty=_maybe(_floats(0.5, 2.0)),
        frequency_penalty=_maybe(_floats(-2.0, 2.0)),
        presence_penalty=_maybe(_floats(-2.0, 2.0)),
        logit_bias=_maybe(st.dictionaries(st.integers(0, kind.vocab_size - 1), _floats(-100.0, 100.0), max_size=4)),
        seed=st.integers(0, 2**64 - 1),  # always, or no two runs would be alike
        n=st.sampled_from([None, None, 1, 1, 2, 3, 4]),
    )
    constraint: st.SearchStrategy[dict[str, Any]] = st.sampled_from([{}] * 2 * len(_CONSTRAINTS) + [*_CONSTRAINTS])
    return st.builds(lambda some, other: {**some, **other}, options, constraint)


@st.composite
def _stopping(draw: st.DrawFn, kind: Kind) -> dict[str, Any]:
    max_tokens = draw(st.integers(1, kind.max_tokens))
    return draw(
        _fields(
            max_tokens=st.just(max_tokens),
            min_tokens=_maybe(st.integers(0, max_tokens)),
            stop=_maybe(st.lists(st.sampled_from(["a", "e", " t", "the", ".", "\n", "ab", "x"]), max_size=4)),
            stop_token_ids=_maybe(st.lists(st.integers(0, 255), max_size=24)),
            ignore_eos=st.booleans(),
            include_stop=st.booleans(),
        )
    )


_output = _fields(
    logprobs=_maybe(st.sampled_from([0, 1, 2, 5, 20])),
    prompt_logprobs=st.sampled_from([None, None, None, 0, 1, 3]),
    token_ids=st.sampled_from([True, True, True, False]),
    skip_special_tokens=_maybe(st.booleans()),
)
_request = _fields(priority=_maybe(st.integers(-3, 3)), cache_salt=_maybe(st.sampled_from(["", "a", "b"])))

Breaker = tuple[Callable[[pb.GenerateRequest], None], str]


def _breakers(kind: Kind) -> list[Breaker]:
    """Each makes one thing wrong with a good request; with the reason that it must then be refused for."""
    numbers: list[tuple[str, str, float, str]] = [
        ("sampling", "temperature", -0.5, "SAMPLING_INVALID"),
        ("sampling", "top_p", 0.0, "SAMPLING_INVALID"),
        ("sampling", "min_p", 1.5, "SAMPLING_INVALID"),
        ("sampling", "repetition_penalty", 0.0, "SAMPLING_INVALID"),
        ("sampling", "frequency_penalty", 2.5, "SAMPLING_INVALID"),
        ("sampling", "presence_penalty", float("nan"), "SAMPLING_INVALID"),
        ("sampling", "n", 0, "SAMPLING_INVALID"),
        ("sampling", "n", MAX_NUM_SEQS + 1, "SAMPLING_INVALID"),
        ("stopping", "max_tokens", 0, "STOPPING_INVALID"),
        ("stopping", "min_tokens", kind.max_tokens + 1, "STOPPING_INVALID"),
        ("output", "logprobs", 21, "OUTPUT_INVALID"),
        ("output", "prompt_logprobs", 21, "OUTPUT_INVALID"),
    ]
    too_large = kind.max_model_len * 1000
    patches: list[tuple[dict[str, Any], str]] = [
        ({"sampling": {"logit_bias": {too_large: 1.0}}}, "TOKEN_ID_OUT_OF_RANGE"),
        ({"sampling": {"json_schema": "{"}}, "CONSTRAINT_INVALID"),
        ({"sampling": {"regex": "("}}, "CONSTRAINT_INVALID"),
        ({"sampling": {"grammar": "start: nothing"}}, "CONSTRAINT_INVALID"),
        ({"stopping": {"stop": [""]}}, "STOPPING_INVALID"),
        ({"stopping": {"stop_token_ids": [too_large]}}, "TOKEN_ID_OUT_OF_RANGE"),
        ({"model": "another"}, "MODEL_UNKNOWN"),
        ({"request_id": "x" * 129}, "REQUEST_ID_INVALID"),
        ({"cache_salt": "x" * 1025}, "MALFORMED_MESSAGE"),
        ({"resume": [{"index": MAX_NUM_SEQS, "token_ids": [1]}]}, "RESUME_INVALID"),
    ]
    prompts: list[tuple[dict[str, Any], str]] = [
        ({}, "PROMPT_MISSING"),
        ({"text": ""}, "PROMPT_EMPTY"),
        ({"token_ids": {"ids": [1] * kind.max_model_len}}, "PROMPT_TOO_LONG"),
        ({"token_ids": {"ids": [too_large]}}, "TOKEN_ID_OUT_OF_RANGE"),
        ({"chat": {"messages": [{"role": "robot", "content": "x"}]}}, "CHAT_INVALID"),
        ({"embeddings": {"data": b"1234", "num_tokens": 1, "dtype": "float32"}}, "EMBEDDINGS_INVALID"),
    ]
    return [
        *((_setting(part, name, value), reason) for part, name, value, reason in numbers),
        *((_patching(patch), reason) for patch, reason in patches),
        *((_prompting(prompt), reason) for prompt, reason in prompts),
    ]


def _setting(part: str, name: str, value: float) -> Callable[[pb.GenerateRequest], None]:
    return lambda request: setattr(getattr(request, part), name, value)


def _patching(patch: dict[str, Any]) -> Callable[[pb.GenerateRequest], None]:
    return lambda request: request.MergeFrom(pb.GenerateRequest(**patch))


def _prompting(prompt: dict[str, Any]) -> Callable[[pb.GenerateRequest], None]:
    def put(request: pb.GenerateRequest) -> None:
        which = request.WhichOneof("prompt")
        assert which is not None
        request.ClearField(which)
        request.MergeFrom(pb.GenerateRequest(**prompt))

    return put
