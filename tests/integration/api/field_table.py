"""Every field of a request: a value that changes the answer, and values that are refused.

The model is the tiny one, whose token ids 0 to 255 are bytes: a text has as many tokens as bytes. "Changes" are laid
over BASE, message by message; a prompt takes the place of BASE's.
"""

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import grpc

from baton.v1 import generation_pb2 as pb
from tests.tiny_models import EOS_TOKEN_ID, IM_START_ID, VOCAB_SIZE

Changes = Mapping[str, Any]

PROMPTS = ("text", "token_ids", "chat", "embeddings")
TEXT = "Hello world, it is"
BASE: Changes = {
    "text": TEXT,
    "sampling": {"temperature": 0},
    "stopping": {"max_tokens": 8, "ignore_eos": True},
    "output": {"token_ids": True},
}
MAX_MODEL_LEN = 1024
MAX_NUM_SEQS = 8
A, B = 65, 66
NAN = math.nan


@dataclass(frozen=True)
class Refusal:
    """What is refused, why, and the field that it is put down to."""

    changes: Changes
    reason: str
    field: str
    status: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT


@dataclass(frozen=True)
class Row:
    """One field.

    Attributes:
        changes: of this field alone; None: no value of it is seen in one answer, as `reason` says.
        is_seen: whether an answer shows the change, beside the answer without it.
        refusals: none where `reason` says that every value is good.
        given: changes that stand on both sides.
        same_as: changes that give the very same completions.
    """

    changes: Changes | None = None
    is_seen: Callable[[pb.GenerateResponse, pb.GenerateResponse], bool] = lambda answer, plain: (
        token_ids(answer) != token_ids(plain)
    )
    refusals: tuple[Refusal, ...] = ()
    given: Changes = field(default_factory=dict)
    same_as: Changes | None = None
    reason: str = ""


def request_of(*changes: Changes) -> pb.GenerateRequest:
    """BASE with these changes."""
    merged: dict[str, Any] = dict(BASE)
    for change in changes:
        merged = _laid_over(merged, change)
    return pb.GenerateRequest(**merged)


def token_ids(answer: pb.GenerateResponse, index: int = 0) -> list[int]:
    """The tokens of one completion."""
    return list(answer.completions[index].token_ids)


def text(answer: pb.GenerateResponse) -> str:
    """The text of the first completion."""
    return answer.completions[0].text


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    if any(name in above for name in PROMPTS):
        below = {name: value for name, value in below.items() if name not in PROMPTS or name in above}
    merged = {**below, **above}
    for name in below.keys() & above.keys():
        if isinstance(above[name], Mapping) and name not in (*PROMPTS, "logit_bias"):
            merged[name] = _laid_over(below[name], above[name])
    return merged


def sampling(**values: Any) -> Changes:
    return {"sampling": values}


def stopping(**values: Any) -> Changes:
    return {"stopping": values}


def output(**values: Any) -> Changes:
    return {"output": values}


def chat(role: str = "user", content: str = "Hi", **values: Any) -> Changes:
    return {"chat": {"messages": [{"role": role, "content": content}], **values}}


def vectors(values: list[float], num_tokens: int, dtype: str = "float32") -> Changes:
    return {"embeddings": {"data": struct.pack(f"<{len(values)}f", *values), "num_tokens": num_tokens, "dtype": dtype}}


def resume(token_ids: list[int], index: int = 0) -> Changes:
    return {"resume": [{"index": index, "token_ids": token_ids}]}


def refused_sampling(name: str, *values: Any) -> tuple[Refusal, ...]:
    return tuple(Refusal(sampling(**{name: value}), "SAMPLING_INVALID", f"sampling.{name}") for value in values)


def refused_constraint(name: str, *values: Any) -> tuple[Refusal, ...]:
    return tuple(Refusal(sampling(**{name: value}), "CONSTRAINT_INVALID", f"sampling.{name}") for value in values)


def _constrained(expected: str) -> Callable[[pb.GenerateResponse, pb.GenerateResponse], bool]:
    return lambda answer, _: text(answer) == expected and answer.completions[0].finish_reason == pb.FINISH_REASON_STOP


def _prompt_tokens(num: int) -> Callable[[pb.GenerateResponse, pb.GenerateResponse], bool]:
    return lambda answer, _: answer.usage.prompt_tokens == num


ALWAYS_A = sampling(logit_bias={A: 100.0})
ENDS_AT_ONCE: Changes = {"sampling": {"logit_bias": {EOS_TOKEN_ID: 100.0}}, "stopping": {"ignore_eos": False}}
DRAWN = sampling(temperature=2.0, seed=1)
GREEDY = sampling(temperature=0.0)
ONE, OTHER = [1.0] * 64, [0.5, -1.0] * 32

PROMPT_ROWS = {
    "text": Row(
        {"text": "Hello"},
        _prompt_tokens(5),
        (
            Refusal({"text": ""}, "PROMPT_EMPTY", "prompt"),
            Refusal({"text": "x" * MAX_MODEL_LEN}, "PROMPT_TOO_LONG", "prompt"),
        ),
    ),
    "token_ids.ids": Row(
        {"token_ids": {"ids": list(TEXT.encode())}},
        lambda answer, plain: token_ids(answer) != token_ids(plain),
        (
            Refusal({"token_ids": {"ids": []}}, "PROMPT_EMPTY", "prompt"),
            Refusal({"token_ids": {"ids": [1, VOCAB_SIZE]}}, "TOKEN_ID_OUT_OF_RANGE", "token_ids.ids"),
        ),
        given={"text": "Hello"},
        same_as={"text": TEXT},
    ),
    "chat.messages.role": Row(
        chat(role="assistant"),
        lambda answer, plain: answer.usage.prompt_tokens == plain.usage.prompt_tokens + len("assistant") - len("user"),
        (
            Refusal(chat(role="robot"), "CHAT_INVALID", "chat.messages[0].role"),
            Refusal({"chat": {}}, "CHAT_INVALID", "chat.messages"),
        ),
        given=chat(),
    ),
    "chat.messages.content": Row(
        chat(content="Hi there"),
        lambda answer, plain: answer.usage.prompt_tokens == plain.usage.prompt_tokens + len(" there"),
        (Refusal(chat(content="x" * MAX_MODEL_LEN), "PROMPT_TOO_LONG", "prompt"),),
        given=chat(),
    ),
    "chat.add_generation_prompt": Row(
        chat(add_generation_prompt=False),
        # the marker is one token, the others are bytes
        lambda answer, plain: answer.usage.prompt_tokens == plain.usage.prompt_tokens - 1 - len("assistant\n"),
        given=chat(),
        reason="a bool",
    ),
    "embeddings.data": Row(
        vectors(OTHER, 1),
        refusals=(
            Refusal(vectors([*ONE[:-1], NAN], 1), "EMBEDDINGS_INVALID", "embeddings.data"),
            Refusal(vectors(ONE[:-1], 1), "EMBEDDINGS_INVALID", "embeddings.data"),
        ),
        given=vectors(ONE, 1),
    ),
    "embeddings.num_tokens": Row(
        vectors([*ONE, *ONE], 2),
        _prompt_tokens(2),
        (
            Refusal(vectors(ONE, 2), "EMBEDDINGS_INVALID", "embeddings.data"),
            Refusal(vectors([], 0), "PROMPT_EMPTY", "embeddings.num_tokens"),
        ),
        given=vectors(ONE, 1),
    ),
    "embeddings.dtype": Row(
        vectors(ONE, 2, "bfloat16"),
        _prompt_tokens(2),
        (Refusal(vectors(ONE, 1, "float64"), "EMBEDDINGS_INVALID", "embeddings.dtype"),),
        given=vectors(ONE, 1),
    ),
}

SAMPLING_ROWS = {
    "temperature": Row(
        sampling(temperature=100.0),
        refusals=refused_sampling("temperature", -0.5, 100.5, NAN, math.inf),
        given=sampling(seed=1),
    ),
    "top_k": Row(sampling(top_k=1), given=DRAWN, same_as=GREEDY, reason="every count is one"),
    "top_p": Row(sampling(top_p=1e-6), refusals=refused_sampling("top_p", 0.0, 1.5, NAN), given=DRAWN, same_as=GREEDY),
    "min_p": Row(sampling(min_p=1.0), refusals=refused_sampling("min_p", -0.1, 1.5, NAN), given=DRAWN, same_as=GREEDY),
    "repetition_penalty": Row(
        sampling(repetition_penalty=100.0),
        # a positive logit of any other token is then higher than that of one that was seen
        lambda answer, _: len({*token_ids(answer), *TEXT.encode()}) == 8 + len({*TEXT.encode()}),
        refusals=refused_sampling("repetition_penalty", 0.0, -1.0, 100.5, NAN),
    ),
    "frequency_penalty": Row(
        sampling(frequency_penalty=2.0),
        # three times, and it is 8 - 6 above where it would be
        lambda answer, _: token_ids(answer)[:3] == [A] * 3 and A not in token_ids(answer)[3:],
        refusals=refused_sampling("frequency_penalty", -2.5, 2.5, NAN),
        given=sampling(logit_bias={A: 8.0}),
    ),
    "presence_penalty": Row(
        sampling(presence_penalty=2.0),
        lambda answer, _: token_ids(answer)[0] == A and A not in token_ids(answer)[1:],
        refusals=refused_sampling("presence_penalty", -2.5, 2.5, NAN),
        given=sampling(logit_bias={A: 4.0}),
    ),
    "logit_bias": Row(
        ALWAYS_A,
        lambda answer, _: text(answer) == "AAAAAAAA",
        (
            Refusal(sampling(logit_bias={A: 100.5}), "SAMPLING_INVALID", f"sampling.logit_bias[{A}]"),
            Refusal(sampling(logit_bias={A: NAN}), "SAMPLING_INVALID", f"sampling.logit_bias[{A}]"),
            Refusal(sampling(logit_bias=dict.fromkeys(range(1025), 1.0)), "SAMPLING_INVALID", "sampling.logit_bias"),
            Refusal(
                sampling(logit_bias={VOCAB_SIZE: 1.0}), "TOKEN_ID_OUT_OF_RANGE", f"sampling.logit_bias[{VOCAB_SIZE}]"
            ),
        ),
    ),
    "seed": Row(sampling(seed=2**64 - 1), given=DRAWN, reason="every 64 bits are one"),
    "n": Row(
        sampling(n=2),
        lambda answer, plain: (
            [completion.index for completion in answer.completions] == [0, 1]
            and token_ids(answer, 0) == token_ids(plain)
            and token_ids(answer, 1) != token_ids(plain)
        ),
        refused_sampling("n", 0, MAX_NUM_SEQS + 1),
        given=DRAWN,
    ),
    "json_schema": Row(
        sampling(json_schema='{"enum": [7]}'),
        _constrained("7"),
        refused_constraint("json_schema", "", "{", '{"type": "nonsense"}', '{"$ref": "#/nowhere"}'),
    ),
    "regex": Row(sampling(regex="b{3}"), _constrained("bbb"), refused_constraint("regex", "(", r"(a)\1")),
    "grammar": Row(
        sampling(grammar='start: "yes"'),
        _constrained("yes"),
        refused_constraint("grammar", "start: nothing", ""),
    ),
    "choices.values": Row(
        sampling(choices={"values": ["red"]}),
        _constrained("red"),
        refused_constraint("choices", {"values": []}),
    ),
}

STOPPING_ROWS = {
    "max_tokens": Row(
        stopping(max_tokens=1),
        lambda answer, plain: (
            token_ids(answer) == token_ids(plain)[:1]
            and answer.completions[0].finish_reason == pb.FINISH_REASON_LENGTH
            and answer.usage.completion_tokens == 1
        ),
        (Refusal(stopping(max_tokens=0), "STOPPING_INVALID", "stopping.max_tokens"),),
    ),
    "min_tokens": Row(
        stopping(min_tokens=3),
        lambda answer, _: token_ids(answer).index(EOS_TOKEN_ID) == 3,
        (Refusal(stopping(min_tokens=9), "STOPPING_INVALID", "stopping.min_tokens"),),
        given=ENDS_AT_ONCE,
    ),
    "stop": Row(
        stopping(stop=["B", "AAA"]),
        lambda answer, _: (
            (text(answer), answer.usage.completion_tokens, answer.completions[0].matched_stop.text) == ("", 3, "AAA")
        ),
        (
            Refusal(stopping(stop=["x", ""]), "STOPPING_INVALID", "stopping.stop[1]"),
            Refusal(stopping(stop=["x" * 257]), "STOPPING_INVALID", "stopping.stop[0]"),
            Refusal(stopping(stop=["x"] * 17), "STOPPING_INVALID", "stopping.stop"),
        ),
        given=ALWAYS_A,
    ),
    "stop_token_ids": Row(
        stopping(stop_token_ids=[B, A]),
        lambda answer, _: (token_ids(answer), answer.completions[0].matched_stop.token_id) == ([A], A),
        (
            Refusal(stopping(stop_token_ids=[1, VOCAB_SIZE]), "TOKEN_ID_OUT_OF_RANGE", "stopping.stop_token_ids[1]"),
            Refusal(stopping(stop_token_ids=list(range(65))), "STOPPING_INVALID", "stopping.stop_token_ids"),
        ),
        given=ALWAYS_A,
    ),
    "ignore_eos": Row(
        stopping(ignore_eos=True),
        lambda answer, _: token_ids(answer) == [EOS_TOKEN_ID] * 8,
        given=ENDS_AT_ONCE,
        reason="a bool",
    ),
    "include_stop": Row(
        stopping(include_stop=True),
        lambda answer, _: text(answer) == "AAA",
        given={**ALWAYS_A, **stopping(stop=["AAA"])},
        reason="a bool",
    ),
}


def _has_alternatives(logprobs: Any, num: int, num_alternatives: int) -> bool:
    """Whether there are so many entries of so many alternatives, the likeliest first, whose ranks are 1, 2, …"""
    return len(logprobs) == num and all(
        [alternative.rank for alternative in entry.alternatives] == list(range(1, num_alternatives + 1))
        and all(one.logprob > other.logprob for one, other in pairwise(entry.alternatives))
        for entry in logprobs
    )


OUTPUT_ROWS = {
    "logprobs": Row(
        output(logprobs=2),
        lambda answer, _: (
            _has_alternatives(answer.completions[0].logprobs, 8, 2)
            and [entry.token.token_id for entry in answer.completions[0].logprobs] == token_ids(answer)
            # greedy: each token is the likeliest
            and all(entry.token == entry.alternatives[0] for entry in answer.completions[0].logprobs)
        ),
        (Refusal(output(logprobs=21), "OUTPUT_INVALID", "output.logprobs"),),
    ),
    "prompt_logprobs": Row(
        output(prompt_logprobs=2),
        lambda answer, _: (
            _has_alternatives(answer.prompt_logprobs, len(TEXT) - 1, 2)
            and [entry.token.text for entry in answer.prompt_logprobs] == list(TEXT[1:])
        ),
        (
            Refusal(output(prompt_logprobs=21), "OUTPUT_INVALID", "output.prompt_logprobs"),
            Refusal({**output(prompt_logprobs=0), **vectors(ONE, 1)}, "OUTPUT_INVALID", "output.prompt_logprobs"),
        ),
    ),
    "token_ids": Row(
        output(token_ids=True),
        lambda answer, _: token_ids(answer) == [A] * 8,
        given={**ALWAYS_A, **output(token_ids=False)},
        reason="a bool",
    ),
    "skip_special_tokens": Row(
        output(skip_special_tokens=False),
        lambda answer, plain: (text(plain), text(answer)) == ("", "<|im_start|>" * 8),
        given=sampling(logit_bias={IM_START_ID: 100.0}),
        reason="a bool",
    ),
}

REQUEST_ROWS = {
    "request_id": Row(
        {"request_id": "mine"},
        lambda answer, _: answer.request_id == "mine",
        (Refusal({"request_id": "x" * 129}, "REQUEST_ID_INVALID", "request_id"),),
    ),
    "model": Row(
        refusals=(Refusal({"model": "gpt-9"}, "MODEL_UNKNOWN", "model"),),
        reason="the name of the served model is the one good value, and means what no name means",
    ),
    "priority": Row(reason="seen in the order of answers, in a test of its own; every number is one"),
    "cache_salt": Row(
        {"cache_salt": "mine"},
        lambda answer, plain: (plain.usage.cached_tokens, answer.usage.cached_tokens) == (16, 0),
        (Refusal({"cache_salt": "x" * 1025}, "MALFORMED_MESSAGE", "cache_salt"),),
    ),
    "resume.index": Row(
        resume([A] * 3, index=1),
        lambda answer, _: (token_ids(answer, 0), token_ids(answer, 1)) == ([A] * 8, [A] * 5),
        (
            Refusal(resume([A], index=2), "RESUME_INVALID", "resume[0].index"),
            Refusal({"resume": [*resume([A])["resume"], *resume([B])["resume"]]}, "RESUME_INVALID", "resume[1].index"),
        ),
        given={**sampling(n=2, logit_bias={A: 100.0}), **resume([A] * 3, index=0)},
    ),
    "resume.token_ids": Row(
        resume([A] * 3),
        # what was resumed counts, and is not sent again
        lambda answer, _: (token_ids(answer), text(answer), answer.usage.completion_tokens) == ([A] * 5, "A" * 5, 8),
        (
            Refusal(resume([A, VOCAB_SIZE]), "TOKEN_ID_OUT_OF_RANGE", "resume[0].token_ids"),
            Refusal(resume([A] * 9), "RESUME_INVALID", "resume[0].token_ids"),
            Refusal({**resume([A, A]), **stopping(stop=["A"])}, "RESUME_INVALID", "resume"),
            Refusal({**resume([A]), **sampling(regex="b")}, "RESUME_INVALID", "resume"),
        ),
        given=ALWAYS_A,
    ),
}

FIELDS: dict[str, Row] = {
    **PROMPT_ROWS,
    **{f"sampling.{name}": row for name, row in SAMPLING_ROWS.items()},
    **{f"stopping.{name}": row for name, row in STOPPING_ROWS.items()},
    **{f"output.{name}": row for name, row in OUTPUT_ROWS.items()},
    **REQUEST_ROWS,
}
