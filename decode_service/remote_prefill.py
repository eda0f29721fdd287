"""A prompt computed by the prefill replicas, failures made up for.

A failed attempt goes on elsewhere with what was fetched so far. What the caller sees is one `Accepted` and one first
token of each completion, whatever happened in between: the draw of a token depends on the request alone, so every
replica gives the same one.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import grpc
import structlog

from decode_service.completion import Drawn
from decode_service.kv_links import KvLinks
from decode_service.prefill_stream import Accepted, PrefillEvent, PrefillWork, PromptLogprobs, Route, prefill_on
from decode_service.replicas import ReplicaSet, Session
from shared.config.services import DecodeServiceConfig
from shared.errors import (
    BatonError,
    DeadlineError,
    HandleError,
    InvalidRequestError,
    KvTransferError,
    QueueFullError,
    Reason,
    UnavailableError,
)
from shared.rpc.status import peer_error
from shared.telemetry.metrics import ServiceMetrics

log = structlog.get_logger()

_RETRY_PAUSE_S = 0.05


class RemotePrefill:
    """Has prompts computed; policy from the config, state none."""

    def __init__(
        self, config: DecodeServiceConfig, replicas: ReplicaSet, links: KvLinks, metrics: ServiceMetrics
    ) -> None:
        self._config = config
        self._replicas = replicas
        self._links = links
        self._metrics = metrics

    async def run(self, work: PrefillWork) -> AsyncGenerator[PrefillEvent]:
        """What `prefill_on` says, each thing once; ends when all KV is here.

        Where `prefill_unavailable` is "local" and no replica takes the prompt, it ends early: `work.progress` says how
        much KV is here, and the caller computes the rest.

        Raises:
            UnavailableError: no replica, or all attempts failed.
            QueueFullError: every replica that was asked is full.
            KvTransferError: KV was lost, and `kv_load_failure` is "fail".
            HandleError: a replica sent a wrong handle, and `kv_load_failure` is "fail".
            DeadlineError: time ran out.
        """
        failed: list[Session] = []
        seen: set[int | type[Accepted | PromptLogprobs]] = set()
        for attempt in range(1, self._config.prefill_attempts + 1):
            try:
                async with aclosing(self._attempt(work, attempt, failed)) as events:
                    async for event in events:
                        key = event.index if isinstance(event, Drawn) else type(event)
                        if key not in seen:
                            seen.add(key)
                            yield event
            except (grpc.aio.AioRpcError, BatonError) as failure:
                error = _as_baton_error(failure)
                log.warning("prefill_attempt_failed", attempt=attempt, reason=error.reason, error=error.message)
                if self._may_compute_here(error):
                    return
                if attempt == self._config.prefill_attempts or not self._may_retry(failure, error):
                    raise error from failure
                await _pause(attempt)
            else:
                return

    async def _attempt(self, work: PrefillWork, attempt: int, failed: list[Session]) -> AsyncGenerator[PrefillEvent]:
        request, progress = work.request, work.progress
        replica, session = await self._replicas.choose(work.reservation.block_hashes, avoid=failed)
        replica.note_sent(request.input_len - progress.num_fetched_tokens)
        # A stream that failed may not have ended yet on its replica, where live ids are unique.
        prefill_id = request.request_id if attempt == 1 else f"{request.request_id}#{attempt}"
        transport = self._links.transports[session.transport]
        route = Route(session, prefill_id, transport, self._config.fetch_timeout_s)
        num_before = progress.num_fetched_tokens
        try:
            with self._links.held(session.epoch):
                async with aclosing(prefill_on(route, work)) as events:
                    async for event in events:
                        yield event
        except grpc.aio.AioRpcError as error:
            failed.append(session)
            # A caller in a hurry says nothing about the replica; one that hangs is found out by its load reports.
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED or time.monotonic() >= work.deadline_s
            if peer_error(error) is None and not is_late:
                replica.mark_failed(session)
            raise
        except BatonError:
            failed.append(session)
            raise
        finally:
            num_blocks = work.ledger.num_blocks_for(progress.num_fetched_tokens - num_before)
            self._metrics.kv_bytes.labels(transport=session.transport).inc(num_blocks * work.pool.layout.block_bytes)

    def _may_retry(self, failure: grpc.aio.AioRpcError | BatonError, error: BatonError) -> bool:
        # Found here, not by the replica, which knows nothing of KV that was lost.
        if isinstance(failure, KvTransferError | HandleError):
            return self._config.kv_load_failure == "recompute"
        is_final = isinstance(error, InvalidRequestError | DeadlineError)
        return not is_final and error.reason is not Reason.NO_PREFILL_REPLICA

    def _may_compute_here(self, error: BatonError) -> bool:
        is_refused = error.reason is Reason.NO_PREFILL_REPLICA or isinstance(error, QueueFullError)
        return is_refused and self._config.prefill_unavailable == "local"


async def _pause(attempt: int) -> None:
    """Waits before the next attempt: twice as long each time, with jitter."""
    await asyncio.sleep(random.uniform(0.5, 1.0) * _RETRY_PAUSE_S * 2 ** (attempt - 1))  # noqa: S311


def _as_baton_error(failure: grpc.aio.AioRpcError | BatonError) -> BatonError:
    """The failure as the error that the caller gets if nothing makes up for it."""
    if isinstance(failure, BatonError):
        return failure
    error = peer_error(failure)
    if error is not None:
        return error
    message = f"prefill failed with {failure.code().name}: {failure.details()}"
    if failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError(message)
    return UnavailableError(message, Reason.PREFILL_FAILED, {"status": failure.code().name})
