"""One attempt at one prompt, against a replica on the network that follows a script."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, suppress
from typing import Any, cast

import grpc
import pytest

from baton.v1 import prefill_pb2, prefill_pb2_grpc
from decode_service import prefill_stream
from decode_service.completion import Drawn
from decode_service.prefill_stream import (
    Accepted,
    KvProgress,
    PrefillEvent,
    PrefillWork,
    PromptLogprobs,
    Route,
    prefill_on,
)
from decode_service.replicas import Session
from shared.errors import DeadlineError, HandleError, KvTransferError, QueueFullError, Reason, UnavailableError
from shared.kv.allocator import BlockAllocator
from shared.kv.handle import KvHandle
from shared.kv.pool import KvPool
from shared.rpc.convert import logprobs_to_proto
from shared.sampling.logprobs import TokenLogprob, TokenLogprobs
from shared.worker.ledger import BlockLedger
from tests.unit.decode.requests import generation_request, vectors_of
from tests.unit.decode.scripted import (
    EPOCH,
    GREEDY_MESSAGE,
    WAIT_S,
    Dialogue,
    RecordingTransport,
    Response,
    ScriptedReplica,
    accepted,
    handle_message,
    hanging_up,
    holding,
    last_message,
    saying,
)
from tests.unit.kv.support import LAYOUT

PROMPT = tuple(range(10))


@pytest.fixture
def pool() -> Iterator[KvPool]:
    with KvPool.anonymous(LAYOUT, 9, "here") as made:
        yield made


class Attempt:
    """Everything that one attempt needs, with a pool of 8 blocks of 4 tokens and a prompt of 10."""

    def __init__(self, pool: KvPool, *, num_fetched: int = 0, timeout_s: float = WAIT_S) -> None:
        self.transport = RecordingTransport()
        self.ledger = BlockLedger(BlockAllocator(pool.num_blocks, pool.generations), LAYOUT.block_size)
        self.request = generation_request("a", PROMPT, priority=2, cache_salt="salt")
        reservation = self.ledger.reserve(PROMPT, self.request.max_total_len, "salt")
        assert reservation is not None
        self.progress = KvProgress(num_fetched)
        self.work = PrefillWork(
            request=self.request,
            reservation=reservation,
            banned_token_ids=(7, 8),
            progress=self.progress,
            deadline_s=time.monotonic() + timeout_s,
            vocab_size=100,
            ledger=self.ledger,
            pool=pool,
        )
        self.fetch_timeout_s = WAIT_S
        self.session: Session | None = None

    def on(self, stub: prefill_pb2_grpc.PrefillServiceAsyncStub) -> AsyncGenerator[PrefillEvent]:
        self.session = Session(EPOCH, "recording", stub)
        return prefill_on(Route(self.session, "a", self.transport, self.fetch_timeout_s), self.work)

    async def events(self, replica: ScriptedReplica) -> list[PrefillEvent]:
        """Runs to the end."""
        async with replica.serving() as stub:
            events = [event async for event in self.on(stub)]
            assert self.session is not None
            await asyncio.gather(*self.session.ending_calls)
            return events

    async def failure(self, replica: ScriptedReplica, kind: type[Exception]) -> Exception:
        """Runs to the failure, and until the replica has seen its end."""
        async with replica.serving() as stub:
            with pytest.raises(kind) as caught:
                async for _ in self.on(stub):
                    pass
            await replica.only_dialogue_over()
        return caught.value


WHOLE = (accepted(4), handle_message(0, 8), handle_message(8, 10, token_id=42))


async def test_kv_comes_in_order_and_is_acknowledged(pool: KvPool) -> None:
    attempt, replica = Attempt(pool), ScriptedReplica(saying(*WHOLE))
    assert await attempt.events(replica) == [Accepted(4), Drawn(42)]
    assert attempt.transport.fetched == [(0, 8, (1, 2)), (8, 10, (3,))]
    assert attempt.progress.num_fetched_tokens == 10
    dialogue = await replica.only_dialogue_over()
    assert dialogue.acked == [(8).to_bytes(16, "big"), (10).to_bytes(16, "big")]
    assert not dialogue.was_cancelled


async def test_what_the_replica_is_told(pool: KvPool) -> None:
    attempt, replica = Attempt(pool), ScriptedReplica(saying(*WHOLE))
    await attempt.events(replica)
    assert replica.dialogues[0].start == prefill_pb2.PrefillStart(
        request_id="a",
        epoch=EPOCH,
        transport="recording",
        token_ids=PROMPT,
        first_needed_token=0,
        sampling=GREEDY_MESSAGE,
        banned_token_ids=[7, 8],
        priority=2,
        cache_salt="salt",
    )


async def test_vectors_go_instead_of_token_ids(pool: KvPool) -> None:
    attempt, replica = Attempt(pool), ScriptedReplica(saying(*WHOLE))
    vectors = vectors_of(0.1, *range(9))
    request = dataclasses.replace(attempt.request, prompt_token_ids=(0,) * 10, input_embeddings=vectors)
    attempt.work = dataclasses.replace(attempt.work, request=request)
    assert await attempt.events(replica) == [Accepted(4), Drawn(42)]
    start = replica.dialogues[0].start
    assert list(start.token_ids) == []
    assert (start.embeddings.num_tokens, start.embeddings.dtype) == (10, "float32")
    assert start.embeddings.data == vectors.tobytes()
    assert (start.cache_salt, start.first_needed_token) == ("salt", 0)


async def test_fetched_blocks_can_be_shared_at_once(pool: KvPool) -> None:
    attempt = Attempt(pool)
    await attempt.events(ScriptedReplica(saying(*WHOLE)))
    again = attempt.ledger.reserve(PROMPT, 10, "salt")
    assert again is not None
    assert again.num_cached_tokens == 8


async def test_what_was_fetched_before_is_not_asked_for(pool: KvPool) -> None:
    attempt = Attempt(pool, num_fetched=8)
    replica = ScriptedReplica(saying(accepted(), handle_message(8, 10, token_id=42)))
    assert await attempt.events(replica) == [Accepted(0), Drawn(42)]
    assert replica.dialogues[0].start.first_needed_token == 8
    assert attempt.transport.fetched == [(8, 10, (3,))]


async def test_the_first_token_does_not_wait_for_the_last_kv(pool: KvPool) -> None:
    attempt, replica = Attempt(pool), ScriptedReplica(saying(*WHOLE))
    attempt.transport.gate.clear()
    async with replica.serving() as stub, aclosing(attempt.on(stub)) as events:
        assert await anext(events) == Accepted(4)
        assert await anext(events) == Drawn(42)
        assert attempt.transport.fetched == []
        attempt.transport.gate.set()
        assert [event async for event in events] == []
        assert attempt.progress.num_fetched_tokens == 10


@pytest.mark.parametrize(
    ("responses", "reason"),
    [
        ((handle_message(4, 8),), Reason.HANDLE_OUT_OF_RANGE),
        ((handle_message(0, 4), handle_message(8, 10, token_id=1)), Reason.HANDLE_OUT_OF_RANGE),
        ((handle_message(0, 8), handle_message(4, 8)), Reason.HANDLE_REPEATED),
        ((handle_message(0, 8), handle_message(0, 8)), Reason.HANDLE_REPEATED),
        ((handle_message(0, 8, request_id="b"),), Reason.HANDLE_FOREIGN),
        ((handle_message(0, 8, epoch="life-0"),), Reason.EPOCH_STALE),
        ((handle_message(0, 12, token_id=1),), Reason.HANDLE_OUT_OF_RANGE),
        ((handle_message(0, 8, is_final=True),), Reason.HANDLE_OUT_OF_RANGE),
        ((handle_message(0, 10, is_final=False),), Reason.HANDLE_OUT_OF_RANGE),
        ((handle_message(0, 6),), Reason.HANDLE_OUT_OF_RANGE),
        ((Response(handle=prefill_pb2.PrefillResponse().handle),), Reason.HANDLE_UNKNOWN),
    ],
    ids=[
        "begins too late",
        "leaves a gap",
        "overlaps",
        "twice",
        "of another request",
        "of an old epoch",
        "past the end",
        "final too early",
        "at the end and not final",
        "ends inside a block",
        "empty",
    ],
)
async def test_a_wrong_handle_is_refused_and_ends_the_stream(
    pool: KvPool, responses: tuple[Response, ...], reason: Reason
) -> None:
    attempt, replica = Attempt(pool), ScriptedReplica(holding(*responses))
    error = await attempt.failure(replica, HandleError)
    assert isinstance(error, HandleError)
    assert error.reason is reason
    assert replica.dialogues[0].was_cancelled


@pytest.mark.parametrize(
    "responses", [(), (accepted(),), (accepted(), handle_message(0, 8))], ids=["nothing", "accepted", "half"]
)
async def test_a_stream_that_ends_too_early(pool: KvPool, responses: tuple[Response, ...]) -> None:
    attempt = Attempt(pool)
    attempt.transport.gate.clear()  # an acknowledgement that meets the end of the stream would be gRPC's own error
    error = await attempt.failure(ScriptedReplica(hanging_up(*responses)), UnavailableError)
    assert isinstance(error, UnavailableError)
    assert error.reason is Reason.PREFILL_PROTOCOL_VIOLATED


async def test_a_last_handle_without_a_first_token_is_refused(pool: KvPool) -> None:
    replica = ScriptedReplica(holding(accepted(), handle_message(0, 10, is_final=True)))
    error = await Attempt(pool).failure(replica, UnavailableError)
    assert isinstance(error, UnavailableError)
    assert error.reason is Reason.PREFILL_PROTOCOL_VIOLATED


def asking(attempt: Attempt, num_completions: int = 1, **fields: Any) -> Attempt:
    """An attempt at a request with other fields."""
    sampling = dataclasses.replace(attempt.request.sampling, n=num_completions)
    request = dataclasses.replace(attempt.request, sampling=sampling, **fields)
    attempt.work = dataclasses.replace(attempt.work, request=request)
    return attempt


def logprobs_of(token_id: int) -> TokenLogprobs:
    alternatives = (TokenLogprob(3, -0.25, 1), TokenLogprob(token_id, -2.5, 2))
    return TokenLogprobs(TokenLogprob(token_id, -2.5, 2), alternatives)


def with_logprobs(response: Response, *token_ids: int) -> Response:
    """The response with log-probabilities of each first token, and of these tokens of the prompt."""
    for first in response.first_tokens:
        first.logprobs.CopyFrom(logprobs_to_proto(logprobs_of(first.token_id)))
    response.prompt_logprobs.extend(logprobs_to_proto(logprobs_of(token_id)) for token_id in token_ids)
    return response


async def test_the_first_token_of_each_completion(pool: KvPool) -> None:
    attempt, replica = asking(Attempt(pool), 3), ScriptedReplica(saying(*WHOLE[:2], last_message([7, 7, 9])))
    assert await attempt.events(replica) == [Accepted(4), Drawn(7), Drawn(7, 1), Drawn(9, 2)]
    start = replica.dialogues[0].start
    assert (start.sampling.n, start.num_generated_tokens, list(start.token_ids)) == (3, 0, list(PROMPT))


async def test_log_probabilities_come_with_what_they_are_of(pool: KvPool) -> None:
    attempt = asking(Attempt(pool), 2, logprobs=2, prompt_logprobs=2)
    replica = ScriptedReplica(
        saying(
            accepted(),
            with_logprobs(Response(), *range(1, 9)),
            handle_message(0, 8),
            with_logprobs(last_message([7, 8]), 9),
        )
    )
    assert await attempt.events(replica) == [
        Accepted(0),
        PromptLogprobs(tuple(map(logprobs_of, range(1, 10)))),
        Drawn(7, 0, logprobs_of(7)),
        Drawn(8, 1, logprobs_of(8)),
    ]
    start = replica.dialogues[0].start
    assert (start.logprobs, start.prompt_logprobs) == (2, 2)


def numbered(*indices: int) -> Response:
    response = last_message([7] * len(indices))
    for first, index in zip(response.first_tokens, indices, strict=True):
        first.index = index
    return response


WRONG_LAST: dict[str, tuple[dict[str, Any], Response]] = {
    "none": ({}, last_message([])),
    "one too few": ({}, last_message([7, 8])),
    "one too many": ({}, last_message([7, 8, 9, 10])),
    "one twice": ({}, numbered(0, 1, 1)),
    "not in order": ({}, numbered(0, 2, 1)),
    "not in the vocabulary": ({}, last_message([7, 8, 100])),
    "without log-probabilities": ({"logprobs": 0}, last_message([7, 8, 9])),
    "with log-probabilities": ({}, with_logprobs(last_message([7, 8, 9]))),
    "without the prompt's": ({"prompt_logprobs": 0}, last_message([7, 8, 9])),
    "too many of the prompt's": ({"prompt_logprobs": 0}, with_logprobs(last_message([7, 8, 9]), *range(10))),
}


@pytest.mark.parametrize(("fields", "last"), WRONG_LAST.values(), ids=WRONG_LAST)
async def test_wrong_first_tokens_are_refused_and_none_is_told(
    pool: KvPool, fields: dict[str, Any], last: Response
) -> None:
    attempt, replica = (
        asking(Attempt(pool), 3, **fields),
        ScriptedReplica(holding(accepted(), handle_message(0, 8), last)),
    )
    async with replica.serving() as stub:
        events = attempt.on(stub)
        assert await anext(events) == Accepted(0)
        with pytest.raises(UnavailableError) as caught:
            await anext(events)
        dialogue = await replica.only_dialogue_over()
    assert caught.value.reason is Reason.PREFILL_PROTOCOL_VIOLATED
    assert dialogue.was_cancelled


@pytest.mark.parametrize("is_vectors", [False, True])
async def test_what_was_resumed_goes_after_the_prompt(pool: KvPool, is_vectors: bool) -> None:
    attempt = Attempt(pool)
    vectors = vectors_of(*range(8)) if is_vectors else None
    prompt = (0,) * 8 if is_vectors else PROMPT[:8]
    asking(attempt, prompt_token_ids=prompt, input_embeddings=vectors, resumed={0: (70, 71)})
    replica = ScriptedReplica(saying(*WHOLE))
    assert await attempt.events(replica) == [Accepted(4), Drawn(42)]
    start = replica.dialogues[0].start
    assert list(start.token_ids) == ([70, 71] if is_vectors else [*prompt, 70, 71])
    assert start.num_generated_tokens == 2
    assert start.embeddings.num_tokens == (8 if is_vectors else 0)


async def test_what_was_resumed_of_several_stays_here(pool: KvPool) -> None:
    attempt = asking(Attempt(pool), 2, resumed={1: (70, 71)})
    replica = ScriptedReplica(saying(*WHOLE[:2], last_message([7, 8])))
    assert await attempt.events(replica) == [Accepted(4), Drawn(7), Drawn(8, 1)]
    start = replica.dialogues[0].start
    assert (list(start.token_ids), start.num_generated_tokens) == (list(PROMPT), 0)


async def test_a_refusal_comes_as_the_replica_gave_it(pool: KvPool) -> None:
    replica = ScriptedReplica(hanging_up(error=QueueFullError("full", retry_after_s=1)))
    error = await Attempt(pool).failure(replica, grpc.aio.AioRpcError)
    assert isinstance(error, grpc.aio.AioRpcError)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_fetch_that_fails_ends_the_stream_and_keeps_what_came_before(pool: KvPool) -> None:
    attempt = Attempt(pool)

    async def script(dialogue: Dialogue) -> AsyncIterator[Response]:
        yield accepted()
        yield handle_message(0, 4)
        acks = dialogue.acks()
        await anext(acks)
        attempt.transport.failure = KvTransferError("recycled", Reason.KV_BLOCK_RECYCLED)
        yield handle_message(4, 8)
        await asyncio.Event().wait()

    replica = ScriptedReplica(script)
    error = await attempt.failure(replica, KvTransferError)
    assert isinstance(error, KvTransferError)
    assert error.reason is Reason.KV_BLOCK_RECYCLED
    assert attempt.progress.num_fetched_tokens == 4
    assert replica.dialogues[0].was_cancelled


async def test_the_last_fetch_may_fail_too(pool: KvPool) -> None:
    attempt = Attempt(pool)
    attempt.transport.gate.clear()
    attempt.transport.failure = KvTransferError("lost")
    replica = ScriptedReplica(saying(accepted(), handle_message(0, 10, token_id=42)))
    async with replica.serving() as stub, aclosing(attempt.on(stub)) as events:
        assert [await anext(events), await anext(events)] == [Accepted(0), Drawn(42)]
        attempt.transport.gate.set()
        with pytest.raises(KvTransferError, match="lost"):
            await anext(events)
    assert attempt.progress.num_fetched_tokens == 0


async def test_a_fetch_that_takes_too_long_is_a_failed_transfer(pool: KvPool) -> None:
    attempt, replica = Attempt(pool), ScriptedReplica(holding(*WHOLE))
    attempt.transport.gate.clear()
    attempt.fetch_timeout_s = 0.01
    error = await attempt.failure(replica, KvTransferError)
    assert isinstance(error, KvTransferError)
    assert error.message == "KV of tokens 0 to 8 did not arrive in 0.01 s"
    assert error.metadata == {"timeout_s": "0.01"}
    assert attempt.progress.num_fetched_tokens == 0


async def test_leaving_early_cancels_the_stream_there_and_the_fetch_here(pool: KvPool) -> None:
    attempt, replica = Attempt(pool), ScriptedReplica(holding(*WHOLE))
    attempt.transport.gate.clear()
    async with replica.serving() as stub:
        async with aclosing(attempt.on(stub)) as events:
            assert [await anext(events), await anext(events)] == [Accepted(4), Drawn(42)]
            await asyncio.wait_for(attempt.transport.is_waiting.wait(), WAIT_S)
        attempt.transport.gate.set()
        dialogue = await replica.only_dialogue_over()
    assert dialogue.was_cancelled
    assert attempt.transport.fetched == []
    assert dialogue.acked == []


async def test_cancelling_the_caller_cancels_the_stream_there(pool: KvPool) -> None:
    attempt, replica = Attempt(pool), ScriptedReplica(holding(*WHOLE))
    attempt.transport.gate.clear()

    async def follow(stub: prefill_pb2_grpc.PrefillServiceAsyncStub) -> None:
        async with aclosing(attempt.on(stub)) as events:
            async for _ in events:
                pass

    async with replica.serving() as stub:
        task = asyncio.create_task(follow(stub))
        await asyncio.wait_for(attempt.transport.is_waiting.wait(), WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await replica.only_dialogue_over()).was_cancelled


async def test_a_caller_that_is_cancelled_twice_still_waits_for_the_copy_to_end(pool: KvPool) -> None:
    attempt, replica = Attempt(pool), ScriptedReplica(holding(*WHOLE[:2]))
    attempt.transport.gate.clear()
    attempt.transport.may_end.clear()
    async with replica.serving() as stub:
        events = attempt.on(stub)
        assert await anext(events) == Accepted(4)
        last = asyncio.ensure_future(anext(events))
        await asyncio.wait_for(attempt.transport.is_waiting.wait(), WAIT_S)
        for _ in range(2):
            last.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert not last.done(), "the blocks would be another request's while the copy still writes to them"
        attempt.transport.may_end.set()
        await asyncio.wait({last})
        assert last.cancelled()
        assert (await replica.only_dialogue_over()).was_cancelled


async def test_kv_that_is_here_counts_even_if_the_replica_dies_before_it_is_told(pool: KvPool) -> None:
    attempt = Attempt(pool)
    attempt.transport.gate.clear()
    replica = ScriptedReplica(hanging_up(*WHOLE, error=UnavailableError("it dies")))
    async with replica.serving() as stub, aclosing(attempt.on(stub)) as events:
        assert [await anext(events), await anext(events)] == [Accepted(4), Drawn(42)]
        await replica.only_dialogue_over()
        await asyncio.sleep(0.05)  # until the end of the stream has come here
        attempt.transport.gate.set()
        assert [event async for event in events] == []
    assert attempt.progress.num_fetched_tokens == 10


async def test_a_read_that_fails_as_it_is_cancelled_is_not_logged_as_forgotten() -> None:
    forgotten: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: forgotten.append(context))

    class Ending:
        async def read(self) -> Response:
            try:
                return await asyncio.Future()
            except asyncio.CancelledError:
                raise ConnectionError("the stream has ended") from None  # as gRPC does

    async def fetch() -> KvHandle:
        raise KvTransferError("lost")

    with suppress(KvTransferError):
        await prefill_stream._read(cast("Any", Ending()), asyncio.create_task(fetch()))
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert forgotten == []


async def test_the_stream_ends_with_the_callers_deadline(pool: KvPool) -> None:
    async with ScriptedReplica(saying(accepted())).serving() as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in Attempt(pool, timeout_s=0.1).on(stub):
                pass
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_deadline_that_has_passed_asks_nothing(pool: KvPool) -> None:
    replica = ScriptedReplica(saying(accepted()))
    async with replica.serving() as stub:
        with pytest.raises(DeadlineError):
            async for _ in Attempt(pool, timeout_s=0).on(stub):
                pass
    assert replica.dialogues == []
