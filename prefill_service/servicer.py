"""`baton.v1.PrefillService`: translates messages to the scheduler's values and back, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import grpc
import numpy as np
import numpy.typing as npt

from baton.v1 import prefill_pb2, prefill_pb2_grpc
from prefill_service.exports import ExportTable
from prefill_service.job import Accepted, FirstToken, HandleReady, JobMessage, PrefillJob, PrefillTask, PromptScored
from prefill_service.scheduler import PrefillScheduler
from shared.config.resolve import differences
from shared.constraints.compiler import ConstraintCompiler
from shared.constraints.matcher import ConstraintError, ConstraintMatcher
from shared.constraints.turns import Turns
from shared.errors import BatonError, HandleError, HandshakeError, InvalidRequestError, Reason
from shared.kv.pool import KvPool
from shared.kv.transports.blocks import read_blocks
from shared.rpc.convert import (
    handle_to_proto,
    identity_from_proto,
    identity_to_proto,
    logprobs_to_proto,
    sampling_from_proto,
)
from shared.rpc.gate import ReadyGate
from shared.rpc.prompt import embeddings_from_proto
from shared.sampling.logprobs import TokenLogprobs
from shared.worker.engine import Identity
from shared.worker.ledger import BlockLedger

_CANCELLATION_S = 0.1
_LOAD_MIN_INTERVAL_S = 0.1
_LOAD_MAX_INTERVAL_S = 1.0

JobNews = Accepted | HandleReady | PromptScored
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(frozen=True)
class PrefillCore:
    """What serves calls once the service is warm."""

    identity: Identity
    scheduler: PrefillScheduler
    exports: ExportTable
    ledger: BlockLedger
    pool: KvPool
    constraints: ConstraintCompiler
    transports: tuple[str, ...]
    max_model_len: int
    hidden_size: int


class PrefillServicer(prefill_pb2_grpc.PrefillServiceServicer):
    """See protos/baton/v1/prefill.proto."""

    def __init__(self, gate: ReadyGate[PrefillCore]) -> None:
        self._gate = gate
        self._constraint_turns = Turns()

    async def Handshake(self, request: prefill_pb2.HandshakeRequest, context: Context) -> prefill_pb2.HandshakeResponse:
        """Compares identities; offers transports."""
        core = self._gate.enter()
        check_identity(ours=core.identity, theirs=identity_from_proto(request.identity))
        response = prefill_pb2.HandshakeResponse(
            identity=identity_to_proto(core.identity), epoch=core.pool.epoch, transports=core.transports
        )
        if core.pool.segment is not None:
            response.shm.CopyFrom(prefill_pb2.ShmOffer(path=str(core.pool.segment.path), proof=core.pool.segment.proof))
        return response

    async def Prefill(
        self, request_iterator: AsyncIterator[prefill_pb2.PrefillRequest], context: Context
    ) -> AsyncIterator[prefill_pb2.PrefillResponse]:
        """One request: handles go out as chunks land, acknowledgements come in."""
        core = self._gate.enter()
        start = await _read_start(request_iterator)
        if start.epoch != core.pool.epoch:
            raise HandleError(
                f"the handshake was with epoch {start.epoch!r}; this process is {core.pool.epoch!r}",
                Reason.EPOCH_STALE,
                {"epoch": start.epoch, "current_epoch": core.pool.epoch},
            )
        job = await _submit(core, start, self._constraint_turns)
        acks = asyncio.create_task(_read_acks(core.scheduler, job, request_iterator))
        try:
            is_final = False
            while not is_final:
                message = await _next_message(job, acks)
                if isinstance(message, HandleReady):
                    message = await core.scheduler.seal(message)
                    is_final = message.handle.is_final
                yield await _response(core, message)
            await acks
        finally:
            core.scheduler.close(job)
            acks.cancel()
            with suppress(asyncio.CancelledError, BatonError):
                await acks

    async def FetchKv(
        self, request: prefill_pb2.FetchKvRequest, context: Context
    ) -> AsyncIterator[prefill_pb2.FetchKvResponse]:
        """The bytes of a live handle; its blocks stay pinned until the last one is sent, or the call ends."""
        core = self._gate.value()
        handle = core.exports.find(request.handle_id, request.epoch, request.request_id)
        core.ledger.retain(handle.block_ids)
        try:
            for offset, data in read_blocks(core.pool, handle.block_ids):
                yield prefill_pb2.FetchKvResponse(offset=offset, data=bytes(data))
        finally:
            core.ledger.release_blocks(handle.block_ids)

    async def WatchLoad(
        self, request: prefill_pb2.WatchLoadRequest, context: Context
    ) -> AsyncIterator[prefill_pb2.WatchLoadResponse]:
        """Load reports until the caller leaves or the service drains."""
        core = self._gate.enter()
        while True:
            changed = core.scheduler.load_changed
            yield _load_report(core, is_draining=self._gate.is_draining)
            if self._gate.is_draining:
                return
            await asyncio.sleep(_LOAD_MIN_INTERVAL_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), _LOAD_MAX_INTERVAL_S - _LOAD_MIN_INTERVAL_S)


def check_identity(ours: Identity, theirs: Identity) -> None:
    """Refuses a peer that differs in anything that KV or planning depends on.

    Raises:
        HandshakeError: names the first field that differs, and both values.
    """
    layout = ours.layout.difference(theirs.layout)
    found = [
        ("protocol_version", ours.protocol_version, theirs.protocol_version),
        ("model_fingerprint", ours.model_fingerprint, theirs.model_fingerprint),
        *([(f"layout.{layout[0]}", layout[1], layout[2])] if layout else []),
        *differences(ours.serving_json, theirs.serving_json),
        ("serving_digest", ours.serving_digest, theirs.serving_digest),
    ]
    for name, our_value, their_value in found:
        if our_value != their_value:
            raise HandshakeError(
                f"the services differ in {name}: prefill has {our_value}, decode has {their_value}",
                metadata={"field": name, "prefill": our_value, "decode": their_value},
            )


async def _read_start(requests: AsyncIterator[prefill_pb2.PrefillRequest]) -> prefill_pb2.PrefillStart:
    async for request in requests:
        if request.WhichOneof("message") == "start":
            return request.start
        break
    else:
        # The messages of a cancelled call end a moment before it is cancelled itself: that is no fault of the caller.
        await asyncio.sleep(_CANCELLATION_S)
    raise InvalidRequestError("the first message of a Prefill stream is `start`", Reason.PREFILL_REQUEST_INVALID)


async def _read_acks(
    scheduler: PrefillScheduler, job: PrefillJob, requests: AsyncIterator[prefill_pb2.PrefillRequest]
) -> None:
    async for request in requests:
        if request.WhichOneof("message") != "ack":
            raise InvalidRequestError(
                "after `start` a Prefill stream has `ack` messages only", Reason.PREFILL_REQUEST_INVALID
            )
        scheduler.acknowledge(job, request.ack.handle_id)


async def _next_message(job: PrefillJob, acks: asyncio.Task[None]) -> JobNews:
    """The job's next message; raises what the job or its acknowledgements failed with."""
    message = asyncio.create_task(job.outbox.get())
    try:
        await asyncio.wait({message, acks} if not acks.done() else {message}, return_when=asyncio.FIRST_COMPLETED)
        if acks.done():
            acks.result()
        return _succeeded(await message)
    finally:
        message.cancel()


def _succeeded(message: JobMessage) -> JobNews:
    if isinstance(message, BatonError):
        raise message
    return message


async def _submit(core: PrefillCore, start: prefill_pb2.PrefillStart, constraint_turns: Turns) -> PrefillJob:
    """Queues what `start` asks for; vectors are checked and hashed, and constraints compiled, off the event loop."""
    is_constrained = start.sampling.WhichOneof("constraint") is not None
    if not start.HasField("embeddings") and not is_constrained:
        return core.scheduler.submit(_task_from_proto(start))

    def prepare() -> tuple[PrefillTask, list[bytes]]:
        vectors = _vectors(core, start)
        task = _task_from_proto(start, vectors)
        task = replace(task, matcher=_matcher(core, task))
        return task, core.ledger.prompt_hashes(task.token_ids, task.cache_salt, vectors)

    prepared = await (constraint_turns.run(prepare) if is_constrained else asyncio.to_thread(prepare))
    return core.scheduler.submit(*prepared)


def _vectors(core: PrefillCore, start: prefill_pb2.PrefillStart) -> npt.NDArray[np.float32] | None:
    if not start.HasField("embeddings"):
        return None
    if len(start.token_ids) != start.num_generated_tokens:
        raise InvalidRequestError(
            "`start` has token_ids in place of a prompt of embeddings", Reason.PREFILL_REQUEST_INVALID
        )
    return embeddings_from_proto(start.embeddings, core.hidden_size, core.max_model_len)


def _matcher(core: PrefillCore, task: PrefillTask) -> ConstraintMatcher | None:
    """The constraint's, after what was generated already."""
    if task.sampling.constraint is None:
        return None
    matcher = core.constraints.matcher(task.sampling.constraint)
    try:
        for token_id in task.token_ids[len(task.token_ids) - task.num_generated_tokens :]:
            matcher.advance(token_id)
    except ConstraintError as error:
        raise InvalidRequestError(f"`start`: {error}", Reason.PREFILL_REQUEST_INVALID) from error
    return matcher


def _task_from_proto(start: prefill_pb2.PrefillStart, vectors: npt.NDArray[np.float32] | None = None) -> PrefillTask:
    num_vectors = 0 if vectors is None else len(vectors)
    return PrefillTask(
        request_id=start.request_id,
        token_ids=(*(0,) * num_vectors, *start.token_ids),
        first_needed_token=start.first_needed_token,
        transport=start.transport,
        sampling=sampling_from_proto(start.sampling, default_seed=0),
        banned_token_ids=tuple(start.banned_token_ids),
        priority=start.priority,
        cache_salt=start.cache_salt,
        input_embeddings=vectors,
        num_generated_tokens=start.num_generated_tokens,
        logprobs=start.logprobs if start.HasField("logprobs") else None,
        prompt_logprobs=start.prompt_logprobs if start.HasField("prompt_logprobs") else None,
    )


async def _response(core: PrefillCore, message: JobNews) -> prefill_pb2.PrefillResponse:
    match message:
        case Accepted(num_cached_tokens):
            accepted = prefill_pb2.PrefillAccepted(epoch=core.pool.epoch, cached_tokens=num_cached_tokens)
            return prefill_pb2.PrefillResponse(accepted=accepted)
        case PromptScored(logprobs):
            # Tens of thousands, for a large chunk: too many for the event loop.
            return await asyncio.to_thread(_scores_to_proto, logprobs)
        case HandleReady(handle, first_tokens):
            first = [_first_token_to_proto(first_token) for first_token in first_tokens]
            return prefill_pb2.PrefillResponse(handle=handle_to_proto(handle), first_tokens=first)


def _scores_to_proto(logprobs: tuple[TokenLogprobs, ...]) -> prefill_pb2.PrefillResponse:
    return prefill_pb2.PrefillResponse(prompt_logprobs=map(logprobs_to_proto, logprobs))


def _first_token_to_proto(first: FirstToken) -> prefill_pb2.FirstToken:
    logprobs = None if first.logprobs is None else logprobs_to_proto(first.logprobs)
    return prefill_pb2.FirstToken(token_id=first.token_id, index=first.index, logprobs=logprobs)


def _load_report(core: PrefillCore, is_draining: bool) -> prefill_pb2.WatchLoadResponse:
    load = core.scheduler.load()
    return prefill_pb2.WatchLoadResponse(
        epoch=core.pool.epoch,
        num_running=load.num_running,
        num_waiting=load.num_waiting,
        num_waiting_tokens=load.num_waiting_tokens,
        num_free_blocks=load.num_free_blocks,
        num_blocks=load.num_blocks,
        is_draining=is_draining,
    )
