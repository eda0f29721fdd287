"""One prompt computed by one prefill replica: its stream, and its KV as it comes in.

1. `start` goes out; the replica answers `accepted`.
2. Each handle is checked against what was asked for, and queued for fetching, in order, while the stream is read on.
3. Fetched blocks are shared with later requests and acknowledged, which frees them on the replica.
4. The first token of each completion is yielded as soon as it comes, while the last KV is fetched; the generator ends
   when all KV is here. The last acknowledgement goes out afterwards: the request need not wait for it.

Leaving the generator early, for whatever reason, cancels the stream, which frees everything on the replica.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import grpc
import structlog

from baton.v1 import prefill_pb2
from decode_service.completion import Drawn
from decode_service.replicas import Session
from decode_service.request import GenerationRequest
from shared.errors import DeadlineError, HandleError, KvTransferError, Reason, UnavailableError
from shared.kv.handle import KvHandle
from shared.kv.pool import KvPool
from shared.kv.transports.base import KvTransport
from shared.rpc.convert import handle_from_proto, logprobs_from_proto, sampling_to_proto
from shared.rpc.prompt import write_embeddings
from shared.sampling.logprobs import TokenLogprobs
from shared.worker.ledger import BlockLedger, Reservation

log = structlog.get_logger()

_ACK_TIMEOUT_S = 5.0
_END_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Accepted:
    """The replica has reserved its blocks; so many tokens it need not compute."""

    num_cached_tokens: int


@dataclass(frozen=True)
class PromptLogprobs:
    """The prompt is computed: the log-probabilities of all its tokens but the first."""

    logprobs: tuple[TokenLogprobs, ...]


PrefillEvent = Accepted | PromptLogprobs | Drawn
"""What the caller hears of a prompt. With the first token drawn it is computed; KV may still be under way."""


@dataclass
class KvProgress:
    """What has arrived, over all attempts.

    Attributes:
        num_fetched_tokens: tokens of the prompt whose KV is in this pool, counted from the first.
        transfer_s: seconds spent fetching.
    """

    num_fetched_tokens: int
    transfer_s: float = 0.0


@dataclass(frozen=True)
class PrefillWork:
    """What every attempt at one prompt needs.

    Attributes:
        reservation: blocks that the KV goes to.
        banned_token_ids: tokens that must not be the first one.
        deadline_s: when the caller's time runs out, on the monotonic clock.
    """

    request: GenerationRequest
    reservation: Reservation
    banned_token_ids: Sequence[int]
    progress: KvProgress
    deadline_s: float
    vocab_size: int
    ledger: BlockLedger
    pool: KvPool


@dataclass(frozen=True)
class Route:
    """How one attempt goes: to which life of which replica, under which id, and by what its KV comes."""

    session: Session
    prefill_id: str
    transport: KvTransport
    fetch_timeout_s: float


Call: TypeAlias = "grpc.aio.StreamStreamCall[prefill_pb2.PrefillRequest, prefill_pb2.PrefillResponse]"


async def prefill_on(route: Route, work: PrefillWork) -> AsyncGenerator[PrefillEvent]:
    """Runs one attempt; `work.progress` keeps what arrived even if it fails.

    Accepted, PromptLogprobs where they are wanted, and the first token of each completion, by index.

    Raises:
        grpc.aio.AioRpcError: the replica failed or refused.
        HandleError: it sent a handle that does not fit the request.
        KvTransferError: KV did not arrive.
        UnavailableError: it ended the stream too early, or without the first token.
        DeadlineError: time had run out before.
    """
    timeout_s = work.deadline_s - time.monotonic()
    if timeout_s <= 0:
        raise DeadlineError("time ran out before prefill was asked")
    call: Call = route.session.stub.Prefill(timeout=timeout_s)
    handles: asyncio.Queue[KvHandle] = asyncio.Queue(len(work.reservation.block_table))
    fetching = asyncio.create_task(_fetch_all(call, route, work, handles))
    try:
        await call.write(await _start(route, work))
        num_announced = work.progress.num_fetched_tokens
        logprobs: list[TokenLogprobs] = []
        while num_announced < work.request.input_len:
            response = await _read(call, fetching)
            if response.HasField("handle"):
                handle = _handle_of(response, route, work, num_announced)
                num_announced = handle.end_token
                handles.put_nowait(handle)
            if response.HasField("accepted"):
                yield Accepted(response.accepted.cached_tokens)
            if response.prompt_logprobs:  # tens of thousands, for a large chunk
                logprobs += await asyncio.to_thread(_prompt_logprobs, response)
            if num_announced == work.request.input_len:
                for event in _first_events(response, logprobs, work):
                    yield event
        last = await fetching
    except BaseException:
        await _abandon(fetching)
        call.cancel()
        raise
    _end(route.session, call, last)


def _prompt_logprobs(response: prefill_pb2.PrefillResponse) -> list[TokenLogprobs]:
    return [logprobs_from_proto(message) for message in response.prompt_logprobs]


def _first_events(
    response: prefill_pb2.PrefillResponse, prompt_logprobs: list[TokenLogprobs], work: PrefillWork
) -> list[PromptLogprobs | Drawn]:
    """What the response with the last handle tells; all of it is checked before any is told."""
    request = work.request
    events: list[PromptLogprobs | Drawn] = []
    if request.prompt_logprobs is not None:
        _check_count("log-probabilities of prompt tokens", len(prompt_logprobs), request.prompt_len - 1)
        events.append(PromptLogprobs(tuple(prompt_logprobs)))
    _check_count("first tokens", len(response.first_tokens), request.num_completions)
    for index, message in enumerate(response.first_tokens):
        if message.token_id >= work.vocab_size or message.index != index:
            raise UnavailableError(
                f"prefill sampled token {message.token_id} for completion {message.index}; needs one below "
                f"{work.vocab_size} for completion {index}",
                Reason.PREFILL_PROTOCOL_VIOLATED,
                {"token_id": message.token_id, "vocab_size": work.vocab_size, "index": message.index},
            )
        _check_count("log-probabilities of a token", message.HasField("logprobs"), request.logprobs is not None)
        logprobs = logprobs_from_proto(message.logprobs) if message.HasField("logprobs") else None
        events.append(Drawn(message.token_id, index, logprobs))
    return events


def _check_count(what: str, num_sent: int, num_needed: int) -> None:
    if num_sent != num_needed:
        raise UnavailableError(
            f"prefill sent {num_sent} {what}; needs {int(num_needed)}",
            Reason.PREFILL_PROTOCOL_VIOLATED,
            {"num_sent": num_sent, "num_needed": int(num_needed)},
        )


async def _abandon(fetching: asyncio.Task[KvHandle]) -> None:
    """Cancels a fetch, and returns when it writes no more, also if the caller is cancelled once more meanwhile."""
    fetching.cancel()
    while not fetching.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({fetching})


def _end(session: Session, call: Call, last: KvHandle) -> None:
    """Acknowledges the last handle and closes the stream without waiting for either: the request goes on meanwhile."""

    async def close() -> None:
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                await call.write(_ack(last))
                await call.done_writing()
                await call.code()
        except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            log.debug("prefill_stream_end_failed", epoch=session.epoch, error=str(error))
        finally:
            call.cancel()

    task = asyncio.create_task(close())
    session.ending_calls.add(task)
    task.add_done_callback(session.ending_calls.discard)


async def _read(call: Call, fetching: asyncio.Task[KvHandle]) -> prefill_pb2.PrefillResponse:
    """The stream's next message; raises at once what fetching failed with."""
    reading = asyncio.ensure_future(call.read())
    try:
        await asyncio.wait({reading, fetching}, return_when=asyncio.FIRST_COMPLETED)
        if fetching.done():
            fetching.result()
        response = await reading
    finally:
        reading.cancel()
        reading.add_done_callback(_look_at)
    if response is grpc.aio.EOF:
        raise UnavailableError("prefill ended its stream before the last handle", Reason.PREFILL_PROTOCOL_VIOLATED)
    assert isinstance(response, prefill_pb2.PrefillResponse)
    return response


def _look_at(reading: asyncio.Future[object]) -> None:
    """Looks at how a read ended that nobody waits for any more; asyncio would log it as forgotten."""
    if not reading.cancelled():
        reading.exception()


async def _fetch_all(call: Call, route: Route, work: PrefillWork, handles: asyncio.Queue[KvHandle]) -> KvHandle:
    """Fetches handles in order and acknowledges them, but for the final one, which is returned."""
    while True:
        handle = await handles.get()
        await _fetch(route, work, handle)
        if handle.is_final:
            return handle
        await _acknowledge(call, handle)


async def _acknowledge(call: Call, handle: KvHandle) -> None:
    """Frees the handle's blocks on the replica; on a stream that has ended they are free, and `_read` says why it did.

    Raises:
        UnavailableError: the replica takes no messages.
    """
    try:
        async with asyncio.timeout(_ACK_TIMEOUT_S):
            await call.write(_ack(handle))
    except TimeoutError as error:
        raise UnavailableError(
            f"prefill took no acknowledgement for {_ACK_TIMEOUT_S:g} s", Reason.PREFILL_FAILED
        ) from error
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
        log.debug("acknowledgement_not_sent", request_id=handle.request_id, error=str(error))


def _ack(handle: KvHandle) -> prefill_pb2.PrefillRequest:
    return prefill_pb2.PrefillRequest(ack=prefill_pb2.KvAck(handle_id=handle.handle_id))


async def _fetch(route: Route, work: PrefillWork, handle: KvHandle) -> None:
    started = time.perf_counter()
    block_size = work.pool.layout.block_size
    first_block = handle.first_token // block_size
    block_ids = work.reservation.block_table[first_block : first_block + handle.num_blocks]
    try:
        async with asyncio.timeout(route.fetch_timeout_s):
            await route.transport.fetch(handle, work.pool, block_ids)
    except TimeoutError as error:
        raise KvTransferError(
            f"KV of tokens {handle.first_token} to {handle.end_token} did not arrive in {route.fetch_timeout_s:g} s",
            metadata={"timeout_s": route.fetch_timeout_s},
        ) from error
    work.progress.transfer_s += time.perf_counter() - started
    work.progress.num_fetched_tokens = handle.end_token
    work.ledger.commit(work.reservation, handle.end_token)
    log.debug(
        "kv_fetched",
        request_id=work.request.request_id,
        first_token=handle.first_token,
        end_token=handle.end_token,
        transport=route.transport.name,
        num_bytes=handle.num_bytes,
    )


async def _start(route: Route, work: PrefillWork) -> prefill_pb2.PrefillRequest:
    """The stream's first message; megabytes of vectors are written into it off the event loop."""
    request, vectors = work.request, work.request.input_embeddings
    token_ids = request.input_token_ids
    start = prefill_pb2.PrefillStart(
        request_id=route.prefill_id,
        epoch=route.session.epoch,
        transport=route.session.transport,
        token_ids=token_ids if vectors is None else token_ids[len(vectors) :],
        first_needed_token=work.progress.num_fetched_tokens,
        sampling=sampling_to_proto(request.sampling),
        banned_token_ids=work.banned_token_ids,
        priority=request.priority,
        cache_salt=request.cache_salt,
        num_generated_tokens=request.input_len - request.prompt_len,
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs,
    )
    message = prefill_pb2.PrefillRequest(start=start)
    if vectors is not None:
        await asyncio.to_thread(write_embeddings, message.start.embeddings, vectors)
    return message


def _handle_of(response: prefill_pb2.PrefillResponse, route: Route, work: PrefillWork, num_announced: int) -> KvHandle:
    """The response's handle."""
    handle = handle_from_proto(response.handle)
    _check_handle(handle, route, work, num_announced)
    return handle


def _check_handle(handle: KvHandle, route: Route, work: PrefillWork, num_announced: int) -> None:
    """A handle continues where the last one ended, and belongs to this request and this life of the replica."""
    request = work.request
    metadata = {"first_token": handle.first_token, "end_token": handle.end_token, "expected": num_announced}
    if handle.epoch != route.session.epoch:
        raise HandleError(f"the handle is of epoch {handle.epoch!r}, not {route.session.epoch!r}", Reason.EPOCH_STALE)
    if handle.request_id != route.prefill_id:
        raise HandleError("the handle is of another request", Reason.HANDLE_FOREIGN, metadata)
    if handle.first_token < num_announced:
        raise HandleError("the handle repeats tokens of an earlier one", Reason.HANDLE_REPEATED, metadata)
    is_whole = handle.is_final == (handle.end_token == request.input_len)
    is_closed = handle.is_final or handle.end_token % handle.layout.block_size == 0
    if handle.first_token != num_announced or handle.end_token > request.input_len or not (is_whole and is_closed):
        raise HandleError("the handle does not continue the prompt", Reason.HANDLE_OUT_OF_RANGE, metadata)
