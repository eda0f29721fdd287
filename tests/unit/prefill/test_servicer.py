"""A Prefill stream as a peer sees it, over a scheduler whose step loop runs nothing."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from baton.v1 import generation_pb2, prefill_pb2
from prefill_service.servicer import Context, PrefillCore, PrefillServicer
from shared.constraints.compiler import ConstraintCompiler
from shared.errors import InvalidRequestError, Reason
from shared.kv.allocator import BlockCounts
from shared.rpc.convert import logprobs_to_proto
from shared.rpc.gate import ReadyGate
from shared.sampling.logprobs import TokenLogprob, TokenLogprobs
from shared.text.tokenizer import Tokenizer
from shared.worker.engine import Identity
from shared.worker.step_loop import ChunkLanded, Retired, StepEvent, TokenSampled
from tests.tiny_models import VOCAB_SIZE
from tests.unit.kv.support import LAYOUT
from tests.unit.prefill.bench import MAX_MODEL_LEN, Bench

MakeBench = Callable[..., Bench]
Stream = Callable[..., Any]

PROMPT = tuple(range(10))
SCORE = TokenLogprobs(TokenLogprob(3, -0.5, 1), (TokenLogprob(4, -0.25, 1),))
AB_OR_AC = generation_pb2.Sampling(choices=generation_pb2.Choices(values=["AB", "AC"]))
A, B, C = b"ABC"
"""Tokens of the tiny model are bytes."""


@pytest.fixture(scope="module")
def constraints(tiny_llama_dir: Path) -> ConstraintCompiler:
    return ConstraintCompiler(Tokenizer.from_directory(tiny_llama_dir), VOCAB_SIZE)


@pytest.fixture
def made(bench: MakeBench) -> Bench:
    return bench()


@pytest.fixture
def stream(made: Bench, constraints: ConstraintCompiler) -> Stream:
    """Serves one stream, whose steps say `steps` once it is accepted; returns all that it was told."""
    gate: ReadyGate[PrefillCore] = ReadyGate("prefill")
    identity = Identity(2, "model", LAYOUT, "digest", "{}")
    core = PrefillCore(
        identity, made.scheduler, made.exports, made.ledger, made.pool, constraints, ("local",), MAX_MODEL_LEN, 2
    )
    gate.open(core)

    async def serve(*steps: Sequence[StepEvent], **start: object) -> list[prefill_pb2.PrefillResponse]:
        acks: asyncio.Queue[bytes] = asyncio.Queue()
        told: list[prefill_pb2.PrefillResponse] = []
        sent = _requests(_start(**start), acks)
        async with asyncio.timeout(30), aclosing(_generator(gate, sent)) as responses:
            async for response in responses:
                told.append(response)
                if response.HasField("accepted"):
                    for step in steps:
                        made.scheduler.on_events(list(step))
                if response.HasField("handle"):
                    acks.put_nowait(response.handle.handle_id)
                    if response.handle.is_final:
                        acks.put_nowait(b"")
        return told

    return serve


def _generator(
    gate: ReadyGate[PrefillCore], requests: AsyncIterator[prefill_pb2.PrefillRequest]
) -> AsyncGenerator[prefill_pb2.PrefillResponse]:
    context = cast("Context", None)  # which nothing is asked of
    return cast("AsyncGenerator[prefill_pb2.PrefillResponse]", PrefillServicer(gate).Prefill(requests, context))


def _start(**fields: object) -> prefill_pb2.PrefillStart:
    given: dict[str, Any] = {
        "request_id": "a",
        "epoch": "now",
        "transport": "local",
        "token_ids": PROMPT,
        **fields,
    }
    return prefill_pb2.PrefillStart(**given)


async def _requests(
    start: prefill_pb2.PrefillStart, acks: "asyncio.Queue[bytes]"
) -> AsyncIterator[prefill_pb2.PrefillRequest]:
    yield prefill_pb2.PrefillRequest(start=start)
    while handle_id := await acks.get():
        yield prefill_pb2.PrefillRequest(ack=prefill_pb2.KvAck(handle_id=handle_id))


FINISH = (ChunkLanded("a", 10), TokenSampled("a", 42, None), Retired("a"))


async def test_the_first_tokens_come_with_the_last_handle(stream: Stream, made: Bench) -> None:
    last = [ChunkLanded("a", 10), *(TokenSampled("a", 40 + i, None, i, SCORE) for i in range(3)), Retired("a")]
    sampling = generation_pb2.Sampling(n=3)
    accepted, first, final = await stream([ChunkLanded("a", 8)], last, sampling=sampling, logprobs=1)
    assert accepted.HasField("accepted")
    assert (first.handle.is_final, len(first.first_tokens)) == (False, 0)
    assert final.handle.is_final
    assert [(token.token_id, token.index) for token in final.first_tokens] == [(40, 0), (41, 1), (42, 2)]
    assert [token.logprobs for token in final.first_tokens] == [logprobs_to_proto(SCORE)] * 3
    assert made.counts.in_use == 0


async def test_without_log_probabilities_there_are_none(stream: Stream, made: Bench) -> None:
    _, final = await stream(FINISH)
    (first,) = final.first_tokens
    assert (first.token_id, first.HasField("logprobs")) == (42, False)
    (sequence,) = made.loop.submitted
    assert (sequence.logprobs, sequence.prompt_logprobs, sequence.matcher) == (None, None, None)


async def test_scores_of_the_prompt_come_before_their_chunks_handle(stream: Stream, made: Bench) -> None:
    steps = ([ChunkLanded("a", 8, (SCORE,) * 8)], [ChunkLanded("a", 10, (SCORE,)), *FINISH[1:]])
    told = await stream(*steps, prompt_logprobs=1)
    assert [(len(response.prompt_logprobs), response.HasField("handle")) for response in told] == [
        (0, False),
        (8, False),
        (0, True),
        (1, False),
        (0, True),
    ]
    assert told[3].prompt_logprobs[0] == logprobs_to_proto(SCORE)
    assert made.loop.submitted[0].prompt_logprobs == 1


async def test_a_constraint_stands_after_what_was_generated(stream: Stream, made: Bench) -> None:
    await stream(FINISH, token_ids=(*PROMPT[:9], A), num_generated_tokens=1, sampling=AB_OR_AC)
    (sequence,) = made.loop.submitted
    assert sequence.matcher is not None
    assert np.flatnonzero(sequence.matcher.allowed()).tolist() == [B, C]
    assert (sequence.prompt_len, sequence.num_generated) == (9, 1)


async def test_a_prompt_is_no_part_of_a_constraint(stream: Stream, made: Bench) -> None:
    await stream(FINISH, token_ids=(*PROMPT[:9], B), sampling=AB_OR_AC)
    (sequence,) = made.loop.submitted
    assert sequence.matcher is not None
    assert np.flatnonzero(sequence.matcher.allowed()).tolist() == [A]


VECTORS = np.arange(12, dtype=np.float32).reshape(6, 2)
EMBEDDINGS = generation_pb2.Embeddings(data=VECTORS.tobytes(), num_tokens=6, dtype="float32")


async def test_vectors_are_followed_by_what_was_generated(stream: Stream, made: Bench) -> None:
    await stream(FINISH, embeddings=EMBEDDINGS, token_ids=(A, B, A, B), num_generated_tokens=4)
    (sequence,) = made.loop.submitted
    assert sequence.token_ids == [0] * 6 + [A, B, A, B]
    assert sequence.input_embeddings is not None
    assert sequence.input_embeddings.tolist() == VECTORS.tolist()
    assert (sequence.prompt_len, sequence.num_generated) == (6, 4)


REFUSED: dict[str, tuple[dict[str, object], Reason, str]] = {
    "generated tokens that break the constraint": (
        {"token_ids": (1, A, A), "num_generated_tokens": 2, "sampling": AB_OR_AC},
        Reason.PREFILL_REQUEST_INVALID,
        "token 65 cannot follow",
    ),
    "generated tokens that are none": (
        {"token_ids": (1, 2**32 - 1), "num_generated_tokens": 1, "sampling": AB_OR_AC},
        Reason.PREFILL_REQUEST_INVALID,
        "token 4294967295 cannot follow",
    ),
    "more generated than there are, under a constraint": (
        {"token_ids": (A,), "num_generated_tokens": 7, "sampling": AB_OR_AC},
        Reason.PREFILL_REQUEST_INVALID,
        "7 of 1 tokens are generated",
    ),
    "vectors and a prompt": (
        {"embeddings": EMBEDDINGS, "token_ids": (1, 2), "num_generated_tokens": 1},
        Reason.PREFILL_REQUEST_INVALID,
        "token_ids in place of a prompt",
    ),
    "scores of vectors": (
        {"embeddings": EMBEDDINGS, "token_ids": (), "prompt_logprobs": 0},
        Reason.PREFILL_REQUEST_INVALID,
        "which has no tokens",
    ),
    "a constraint that is none": (
        {"sampling": generation_pb2.Sampling(regex="(")},
        Reason.CONSTRAINT_INVALID,
        "sampling.regex",
    ),
    "more completions than anybody serves": (
        {"sampling": generation_pb2.Sampling(n=1025)},
        Reason.SAMPLING_INVALID,
        "sampling.n",
    ),
}


@pytest.mark.parametrize(("start", "reason", "message"), REFUSED.values(), ids=REFUSED)
async def test_nonsense_is_refused_and_leaves_nothing(
    stream: Stream, made: Bench, start: dict[str, object], reason: Reason, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        await stream(**start)
    assert caught.value.reason == reason
    assert (made.loop.submitted, made.scheduler.num_live) == ([], 0)
    assert made.counts == BlockCounts(free=8, cached=0, in_use=0)
