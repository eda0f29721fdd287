"""A request from admission to its last token. Runs on the event loop; the step loop computes.

Lifetimes of a completion's blocks:

    reserved ──prompt here (fetched, or to compute)──▶ computing ──Retired──▶ released
        └────────── left before computing ──────────────────────────────────▶ released
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from decode_service.admission import Admission
from decode_service.completion import Completion, Drawn, begin_completions, constraint_failed
from decode_service.lanes import Lanes, copy_block
from decode_service.live import LiveRequest, PromptComputed, too_late, until_deadline
from decode_service.prefill_stream import Accepted, KvProgress, PrefillWork, PromptLogprobs
from decode_service.remote_prefill import RemotePrefill
from decode_service.request import GenerationEvent, GenerationRequest
from shared.config.services import DecodeServiceConfig
from shared.constraints.matcher import ConstraintError
from shared.errors import BatonError, DuplicateRequestError, Reason, UnavailableError
from shared.kv.transports.copier import Copier
from shared.telemetry.metrics import ServiceMetrics
from shared.text.stopping import banned_token_ids
from shared.worker.engine import Engine
from shared.worker.step_loop import StepEvent, StepLoop


class Generator:
    """Generates for many requests at once.

    Args:
        copier: copies blocks where completions of one prompt part.
        local_prefill_max_tokens: a prompt with no more uncached tokens is computed here; None: every prompt.
    """

    def __init__(
        self,
        config: DecodeServiceConfig,
        engine: Engine,
        step_loop: StepLoop,
        admission: Admission,
        remote: RemotePrefill,
        copier: Copier,
        local_prefill_max_tokens: int | None,
        metrics: ServiceMetrics,
    ) -> None:
        self._config = config
        self._engine = engine
        self._admission = admission
        self._remote = remote
        self._local_prefill_max_tokens = local_prefill_max_tokens
        self._metrics = metrics
        self._copier = copier
        self._lanes = Lanes(engine, step_loop, admission.release, metrics.generated_tokens.inc)
        self._ttft = metrics.latency("ttft_seconds", "Arrival to first token.")
        self._live: dict[str, LiveRequest] = {}

    async def generate(self, request: GenerationRequest, timeout_s: float | None) -> AsyncGenerator[GenerationEvent]:
        """Started; deltas, and Finished after the last of each completion; Usage.

        Closing the iterator early frees everything the request holds.

        Args:
            request: validated.
            timeout_s: what is left until the caller's deadline; None: the configured `request_timeout_s`.

        Raises:
            DuplicateRequestError: a live request has this id; it is not disturbed.
            QueueFullError: try again later.
            InvalidRequestError: the pool can never hold the request, or it resumes what it cannot have generated.
            UnavailableError: no prefill replica, or all attempts failed, or the step loop has.
            KvTransferError: KV was lost, and the policy is to fail.
            DeadlineError: time ran out.
        """
        live = self._enter(request, self._config.request_timeout_s if timeout_s is None else timeout_s)
        try:
            async with until_deadline(live):
                live.completions = await self._begin(request)
                if live.unfinished:
                    self._lanes.open(live, await self._admission.reserve(request, len(live.unfinished)))
            live.admitted_s = time.monotonic()
            self._metrics.prompt_tokens.inc(request.prompt_len)
            async with aclosing(self._run(live)) as events:
                async for event in events:
                    yield event
        finally:
            if self._lanes.close(live):
                self._forget(live)

    def on_events(self, events: list[StepEvent]) -> None:
        """Takes what one step did."""
        for live in self._lanes.on_events(events):
            self._forget(live)

    @property
    def num_live(self) -> int:
        """Requests that are queued, computing, or ending."""
        return len(self._live)

    async def _begin(self, request: GenerationRequest) -> list[Completion]:
        if request.matcher is None and not request.resumed:
            return begin_completions(request, self._engine.tokenizer)
        return await asyncio.to_thread(begin_completions, request, self._engine.tokenizer)

    async def _run(self, live: LiveRequest) -> AsyncGenerator[GenerationEvent]:
        progress = KvProgress(0)
        async with aclosing(self._events(live, progress)) as events:
            async for event in events:
                if isinstance(event, Drawn):
                    for told in self._push(live, event):
                        yield told
                    if not live.unfinished:
                        break
                else:
                    yield event
        assert not live.unfinished, "the tokens ended before the completions did"
        yield live.usage(progress.transfer_s)

    def _push(self, live: LiveRequest, drawn: Drawn) -> list[GenerationEvent]:
        told = self._lanes.push(live, drawn)
        if not live.first_delta_s:
            live.first_delta_s = time.monotonic()
            self._ttft.observe(live.first_delta_s - live.arrived_s)
        return told

    async def _events(self, live: LiveRequest, progress: KvProgress) -> AsyncGenerator[GenerationEvent | Drawn]:
        """What is told at the start, then every generated token, whoever computes it."""
        request = live.request
        if not live.lanes:
            for told in live.begin(0):
                yield told
            return
        self._lanes.require_steps()
        reservation = live.lanes[0].reservation
        assert reservation is not None
        progress.num_fetched_tokens = reservation.num_cached_tokens
        self._metrics.cached_tokens.inc(min(reservation.num_cached_tokens, request.prompt_len))
        limit = self._local_prefill_max_tokens
        if limit is not None and request.input_len - progress.num_fetched_tokens > limit:
            # Closed before the blocks are: a fetch may still be writing to them when the first token ends the text.
            async with aclosing(self._follow_prefill(live, progress)) as events:
                async for event in events:
                    yield event
        num_computed_tokens = progress.num_fetched_tokens
        if not live.has_started:
            if request.prompt_logprobs is None:
                for told in live.begin(num_computed_tokens):
                    yield told
            else:
                num_computed_tokens = 0  # what was fetched has no log-probabilities
        await self._start(live, num_computed_tokens)
        # One timer a request: a timeout around each wait would cost more than the wait.
        timer = asyncio.get_running_loop().call_at(live.deadline_s, _expire, live)
        try:
            while True:
                news = await live.news.get()
                if isinstance(news, BatonError):
                    raise news
                if time.monotonic() >= live.deadline_s:
                    raise too_late(live)
                if isinstance(news, PromptComputed):
                    await self._part(live)
                    continue
                live.first_token_s = live.first_token_s or time.monotonic()
                if not live.has_started:
                    for told in live.begin(0):
                        yield told
                yield news
        finally:
            timer.cancel()

    async def _follow_prefill(self, live: LiveRequest, progress: KvProgress) -> AsyncGenerator[GenerationEvent | Drawn]:
        """A replica's part: the start, and the first tokens, unless the prompt is left to the step loop."""
        async with aclosing(self._remote.run(self._work(live, progress))) as events:
            num_cached_tokens = 0
            async for event in events:
                match event:
                    case Accepted(num_cached_tokens):
                        if live.request.prompt_logprobs is None:
                            for told in live.begin(num_cached_tokens):
                                yield told
                    case PromptLogprobs(logprobs):
                        live.prompt_logprobs = list(logprobs)
                        for told in live.begin(num_cached_tokens):
                            yield told
                    case Drawn():
                        if self._take_first(live, event):
                            yield event

    async def _start(self, live: LiveRequest, num_computed_tokens: int) -> None:
        """Hands the request to the step loop, which computes what is left of the prompt, and then generates."""
        if len(live.lanes) > 1 and num_computed_tokens == live.request.prompt_len:
            await self._part(live)
        else:
            self._lanes.start(live, num_computed_tokens)

    async def _part(self, live: LiveRequest) -> None:
        block_ids = self._lanes.open_blocks(live)
        if block_ids:
            await self._copier.run(partial(copy_block, self._engine.pool, block_ids))
        self._lanes.part(live)

    def _work(self, live: LiveRequest, progress: KvProgress) -> PrefillWork:
        request, engine, lane = live.request, self._engine, live.lanes[0]
        assert lane.reservation is not None
        num_generated = request.input_len - request.prompt_len
        return PrefillWork(
            request=request,
            reservation=lane.reservation,
            banned_token_ids=banned_token_ids(request.stopping, engine.tokenizer.eos_token_ids, num_generated),
            progress=progress,
            deadline_s=live.deadline_s,
            vocab_size=engine.model.config.vocab_size,
            ledger=engine.ledger,
            pool=engine.pool,
        )

    def _take_first(self, live: LiveRequest, drawn: Drawn) -> bool:
        """Takes a token that prefill drew; False: of a completion that has gone on from there already."""
        request, lane = live.request, live.lane_of(drawn.index)
        if lane is None or (request.num_completions > 1 and drawn.index in request.resumed):
            return False
        try:
            lane.completion.follow(drawn.token_id)
        except ConstraintError as error:
            if _may_come_first(request, drawn):
                raise constraint_failed(request, str(error)) from error
            raise UnavailableError(
                f"prefill drew token {drawn.token_id}, which the constraint does not allow",
                Reason.PREFILL_PROTOCOL_VIOLATED,
                {"token_id": drawn.token_id},
            ) from error
        lane.token_ids.append(drawn.token_id)
        live.first_token_s = live.first_token_s or time.monotonic()
        return True

    def _enter(self, request: GenerationRequest, limit_s: float) -> LiveRequest:
        if request.request_id in self._live:
            raise DuplicateRequestError(
                f"request {request.request_id!r} is live here",
                metadata={"request_id": request.request_id},
            )
        live = LiveRequest.arrived(request, request.request_id, time.monotonic(), limit_s)
        self._live[request.request_id] = live
        return live

    def _forget(self, live: LiveRequest) -> None:
        del self._live[live.request.request_id]


def _may_come_first(request: GenerationRequest, drawn: Drawn) -> bool:
    """Whether the constraint allowed the token, and only cannot go on from there."""
    assert request.matcher is not None
    matcher = request.matcher.copy()
    for token_id in request.resumed.get(drawn.index, ()):
        matcher.advance(token_id)
    return bool(matcher.allowed()[drawn.token_id])


def _expire(live: LiveRequest) -> None:
    """Ends the wait for the next token."""
    live.news.put_nowait(too_late(live))
