"""A request from admission to its last token. Runs on the event loop; the step loop computes.

Lifetimes of a request's blocks:

    reserved ──prompt here (fetched, or to compute)──▶ computing ──Retired──▶ released
        └────────── left before computing ──────────────────────────────────▶ released
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import structlog

from decode_service.admission import Admission
from decode_service.prefill_stream import Accepted, FirstToken, KvProgress, PrefillWork
from decode_service.remote_prefill import RemotePrefill
from decode_service.request import Delta, Finished, GenerationEvent, GenerationRequest, Started, Usage
from decode_service.sequences import sequence_of
from shared.config.services import DecodeServiceConfig
from shared.errors import (
    BatonError,
    DeadlineError,
    DuplicateRequestError,
    Reason,
    UnavailableError,
)
from shared.telemetry.metrics import ServiceMetrics
from shared.text.output import OutputStream
from shared.text.stopping import Finish, banned_token_ids
from shared.worker.engine import Engine
from shared.worker.ledger import Reservation
from shared.worker.step_loop import (
    ChunkLanded,
    LoopStopped,
    Retired,
    StepEvent,
    StepLoop,
    TokenSampled,
    loop_stopped_error,
)

log = structlog.get_logger()


@dataclass
class LiveRequest:
    """A request and what has become of it. `sampled` holds at most one item a token, and two errors."""

    request: GenerationRequest
    arrived_s: float
    deadline_s: float
    sampled: asyncio.Queue[int | BatonError]
    token_ids: list[int]
    reservation: Reservation | None = None
    admitted_s: float = 0.0
    first_token_s: float = 0.0
    first_delta_s: float = 0.0
    num_cached_tokens: int = 0
    is_computing: bool = False
    is_closed: bool = False


class Generator:
    """Generates for many requests at once.

    Args:
        local_prefill_max_tokens: a prompt with no more uncached tokens is computed here; None: every prompt.
    """

    def __init__(
        self,
        config: DecodeServiceConfig,
        engine: Engine,
        step_loop: StepLoop,
        admission: Admission,
        remote: RemotePrefill,
        local_prefill_max_tokens: int | None,
        metrics: ServiceMetrics,
    ) -> None:
        self._config = config
        self._engine = engine
        self._step_loop = step_loop
        self._admission = admission
        self._remote = remote
        self._local_prefill_max_tokens = local_prefill_max_tokens
        self._metrics = metrics
        self._ttft = metrics.latency("ttft_seconds", "Arrival to first token.")
        self._live: dict[str, LiveRequest] = {}
        self._failure: str | None = None

    async def generate(self, request: GenerationRequest, timeout_s: float | None) -> AsyncGenerator[GenerationEvent]:
        """Started, deltas, Finished, Usage. Closing the iterator early frees everything the request holds.

        Args:
            request: validated.
            timeout_s: what is left until the caller's deadline; None: the configured `request_timeout_s`.

        Raises:
            DuplicateRequestError: a live request has this id; it is not disturbed.
            QueueFullError: try again later.
            InvalidRequestError: the pool can never hold the request.
            UnavailableError: no prefill replica, or all attempts failed, or the step loop has.
            KvTransferError: KV was lost, and the policy is to fail.
            DeadlineError: time ran out.
        """
        limit_s = self._config.request_timeout_s if timeout_s is None else timeout_s
        live = self._enter(request, limit_s)
        try:
            async with _deadline(live):
                live.reservation = await self._admission.reserve(request)
            self._require_step_loop()
            live.admitted_s = time.monotonic()
            self._metrics.prompt_tokens.inc(request.prompt_len)
            self._metrics.cached_tokens.inc(live.reservation.num_cached_tokens)
            async with aclosing(self._run(live, live.reservation)) as events:
                async for event in events:
                    yield event
        finally:
            self._leave(live)

    def on_events(self, events: list[StepEvent]) -> None:
        """Takes what one step did."""
        for event in events:
            match event:
                case ChunkLanded(request_id, num_computed_tokens):
                    live = self._live[request_id]
                    assert live.reservation is not None
                    self._engine.ledger.commit(live.reservation, num_computed_tokens)
                case TokenSampled(request_id, token_id):
                    live = self._live[request_id]
                    live.token_ids.append(token_id)
                    live.sampled.put_nowait(token_id)
                    self._metrics.generated_tokens.inc()
                case Retired(request_id, error, num_computed_tokens):
                    self._retire(self._live[request_id], error, num_computed_tokens)
                case LoopStopped(error):
                    self._fail_all(error or "the service stops")

    @property
    def num_live(self) -> int:
        """Requests that are queued, computing, or ending."""
        return len(self._live)

    async def _run(self, live: LiveRequest, reservation: Reservation) -> AsyncGenerator[GenerationEvent]:
        request = live.request
        room = request.max_total_len - request.prompt_len
        output = OutputStream(self._engine.tokenizer, request.stopping, request.skip_special_tokens, room)
        progress = KvProgress(reservation.num_cached_tokens)
        finish: Finish | None = None
        async with aclosing(self._tokens(live, reservation, progress)) as tokens:
            async for event in tokens:
                if isinstance(event, Started):
                    live.num_cached_tokens = event.num_cached_tokens
                    yield event
                    continue
                delta = output.push(event)
                self._note_first_delta(live)
                yield Delta(delta.text, delta.token_ids)
                finish = delta.finish
                if finish is not None:
                    break
        assert finish is not None, "the tokens ended without a finish"
        yield Finished(finish)
        yield self._usage(live, output.num_generated, progress)

    async def _tokens(
        self, live: LiveRequest, reservation: Reservation, progress: KvProgress
    ) -> AsyncGenerator[Started | int]:
        """Started, then every generated token, whoever computes it."""
        request = live.request
        limit = self._local_prefill_max_tokens
        if limit is None or request.prompt_len - progress.num_fetched_tokens <= limit:
            yield Started(request.request_id, request.prompt_len, progress.num_fetched_tokens)
        else:
            # Closed before the blocks are: a fetch may still be writing to them when the first token ends the text.
            async with aclosing(self._follow_prefill(live, reservation, progress)) as events:
                async for event in events:
                    yield event
        self._submit(live, reservation, progress.num_fetched_tokens)
        # One timer a request: a timeout around each wait would cost more than the wait.
        timer = asyncio.get_running_loop().call_at(live.deadline_s, _expire, live)
        try:
            while True:
                sampled = await live.sampled.get()
                if isinstance(sampled, BatonError):
                    raise sampled
                if time.monotonic() >= live.deadline_s:
                    raise _too_late(live)
                live.first_token_s = live.first_token_s or time.monotonic()
                yield sampled
        finally:
            timer.cancel()

    async def _follow_prefill(
        self, live: LiveRequest, reservation: Reservation, progress: KvProgress
    ) -> AsyncGenerator[Started | int]:
        """A replica's part: Started, and the first token unless the prompt is left to the step loop."""
        request = live.request
        is_started = False
        engine = self._engine
        work = PrefillWork(
            request=request,
            reservation=reservation,
            banned_token_ids=banned_token_ids(request.stopping, engine.tokenizer.eos_token_ids, 0),
            progress=progress,
            deadline_s=live.deadline_s,
            vocab_size=engine.model.config.vocab_size,
            ledger=engine.ledger,
            pool=engine.pool,
        )
        async with aclosing(self._remote.run(work)) as events:
            async for event in events:
                match event:
                    case Accepted(num_cached_tokens):
                        is_started = True
                        yield Started(request.request_id, request.prompt_len, num_cached_tokens)
                    case FirstToken(token_id):
                        live.token_ids.append(token_id)
                        live.first_token_s = time.monotonic()
                        yield token_id
        if not is_started:
            yield Started(request.request_id, request.prompt_len, progress.num_fetched_tokens)

    def _submit(self, live: LiveRequest, reservation: Reservation, num_computed_tokens: int) -> None:
        """Hands the request to the step loop, which computes what is left of the prompt, and then generates."""
        self._require_step_loop()
        request = live.request
        live.is_computing = True
        self._step_loop.submit(
            sequence_of(
                request,
                self._engine,
                reservation,
                name=request.request_id,
                token_ids=live.token_ids,
                num_computed_tokens=num_computed_tokens,
            )
        )

    def _enter(self, request: GenerationRequest, limit_s: float) -> LiveRequest:
        if request.request_id in self._live:
            raise DuplicateRequestError(
                f"request {request.request_id!r} is live here", metadata={"request_id": request.request_id}
            )
        now = time.monotonic()
        live = LiveRequest(
            request=request,
            arrived_s=now,
            deadline_s=now + limit_s,
            sampled=asyncio.Queue(request.max_total_len - request.prompt_len + 2),
            token_ids=list(request.prompt_token_ids),
        )
        self._live[request.request_id] = live
        return live

    def _leave(self, live: LiveRequest) -> None:
        """The caller has all it wanted: frees the blocks, at once or as soon as the step in flight is done."""
        live.is_closed = True
        if live.is_computing:
            self._step_loop.cancel(live.request.request_id)
            return
        del self._live[live.request.request_id]
        self._release(live)

    def _retire(self, live: LiveRequest, error: str | None, num_computed_tokens: int) -> None:
        if error is not None:
            live.sampled.put_nowait(UnavailableError(f"a step failed: {error}", Reason.ENGINE_FAILED))
        elif live.reservation is not None:
            # Generated tokens too: a conversation's next turn can start from there.
            request, computed = live.request, live.token_ids[:num_computed_tokens]
            self._engine.ledger.share(live.reservation, computed, request.cache_salt, request.input_embeddings)
        self._let_go(live)

    def _let_go(self, live: LiveRequest) -> None:
        """The step loop no longer touches the request's blocks."""
        live.is_computing = False
        self._release(live)
        if live.is_closed:
            del self._live[live.request.request_id]

    def _release(self, live: LiveRequest) -> None:
        if live.reservation is not None:
            self._admission.release(live.reservation)
            live.reservation = None

    def _fail_all(self, error: str) -> None:
        self._failure = error
        for live in [live for live in self._live.values() if live.is_computing]:
            live.sampled.put_nowait(loop_stopped_error(error))
            self._let_go(live)

    def _require_step_loop(self) -> None:
        """Refuses what would wait for a step loop that is gone."""
        if self._failure is not None:
            raise loop_stopped_error(self._failure)

    def _note_first_delta(self, live: LiveRequest) -> None:
        if not live.first_delta_s:
            live.first_delta_s = time.monotonic()
            self._ttft.observe(live.first_delta_s - live.arrived_s)

    def _usage(self, live: LiveRequest, num_completion_tokens: int, progress: KvProgress) -> Usage:
        return Usage(
            prompt_len=live.request.prompt_len,
            num_completion_tokens=num_completion_tokens,
            num_cached_tokens=live.num_cached_tokens,
            queue_s=live.admitted_s - live.arrived_s,
            prefill_s=live.first_token_s - live.admitted_s,
            kv_transfer_s=progress.transfer_s,
            first_token_s=live.first_delta_s - live.arrived_s,
            total_s=time.monotonic() - live.arrived_s,
        )


@asynccontextmanager
async def _deadline(live: LiveRequest) -> AsyncGenerator[None]:
    """Ends a wait at the request's deadline with DeadlineError."""
    # A timeout of asyncio lets pass what needs no waiting.
    if time.monotonic() >= live.deadline_s:
        raise _too_late(live)
    try:
        async with asyncio.timeout_at(live.deadline_s):
            yield
    except TimeoutError as error:
        raise _too_late(live) from error


def _expire(live: LiveRequest) -> None:
    """Ends the wait for the next token."""
    live.sampled.put_nowait(_too_late(live))


def _too_late(live: LiveRequest) -> DeadlineError:
    limit_s = round(live.deadline_s - live.arrived_s, 3)
    return DeadlineError(f"the request was not done after {limit_s:g} s", metadata={"timeout_s": limit_s})
