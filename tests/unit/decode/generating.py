"""A generator whose step loop runs nothing, and short forms of what tests say to it and read from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any, cast

from decode_service.admission import Admission
from decode_service.generator import Generator
from decode_service.prefill_stream import PrefillEvent, PrefillWork
from decode_service.remote_prefill import RemotePrefill
from decode_service.request import GenerationEvent, GenerationRequest
from shared.config.services import DecodeServiceConfig
from shared.kv.allocator import BlockAllocator, BlockCounts
from shared.kv.pool import KvPool
from shared.kv.transports.copier import Copier
from shared.telemetry.metrics import ServiceMetrics
from shared.text.tokenizer import Tokenizer
from shared.worker.engine import Engine
from shared.worker.ledger import BlockLedger
from shared.worker.sequence import Sequence
from shared.worker.step_loop import Retired, TokenSampled
from tests.unit.decode.cluster import IDENTITY
from tests.unit.kv.support import LAYOUT
from tests.unit.worker.recording_loop import RecordingLoop

WAIT_S = 10.0
Remote = Callable[[PrefillWork], AsyncGenerator[PrefillEvent]]


async def no_remote(work: PrefillWork) -> AsyncGenerator[PrefillEvent]:
    raise AssertionError(f"{work.request.request_id} was to be computed here")
    yield  # an async generator


class StandInRemote:
    """A remote prefill that does as it is told."""

    def __init__(self, run: Remote) -> None:
        self.works: list[PrefillWork] = []
        self._run = run

    def run(self, work: PrefillWork) -> AsyncGenerator[PrefillEvent]:
        self.works.append(work)
        return self._run(work)


class Desk:
    """A generator over a pool of 8 blocks of 4 tokens.

    Args:
        remote: computes prompts; by default they are computed here.
    """

    def __init__(
        self,
        pool: KvPool,
        tokenizer: Tokenizer,
        remote: Remote | None = None,
        local_prefill_max_tokens: int = 0,
        max_num_seqs: int = 4,
        max_queue_len: int = 4,
    ) -> None:
        self.pool = pool
        self.loop = RecordingLoop()
        self.ledger = BlockLedger(BlockAllocator(pool.num_blocks, pool.generations), LAYOUT.block_size)
        self.admission = Admission(self.ledger, max_num_seqs, max_queue_len)
        self.metrics = ServiceMetrics("decode")
        self.remote = StandInRemote(remote or no_remote)
        engine = Engine(
            model=cast("Any", SimpleNamespace(config=SimpleNamespace(vocab_size=tokenizer.vocab_size))),
            tokenizer=tokenizer,
            pool=pool,
            runner=cast("Any", None),
            ledger=self.ledger,
            identity=IDENTITY,
            constraints=cast("Any", None),
        )
        self.generator = Generator(
            DecodeServiceConfig(),
            engine,
            self.loop,
            self.admission,
            cast("RemotePrefill", self.remote),
            Copier("test"),
            None if remote is None else local_prefill_max_tokens,
            self.metrics,
        )

    @property
    def counts(self) -> BlockCounts:
        return self.ledger.counts()

    @property
    def is_idle(self) -> bool:
        """Whether no request holds anything."""
        return (self.generator.num_live, self.admission.num_admitted, self.counts.in_use) == (0, 0, 0)

    def follow(self, request: GenerationRequest, timeout_s: float = WAIT_S) -> Following:
        return Following(self.generator.generate(request, timeout_s))

    def value(self, metric: str) -> float:
        """A counter of the service."""
        return self.metrics.registry.get_sample_value(f"baton_decode_{metric}_total") or 0.0

    async def num_submitted(self, count: int) -> list[Sequence]:
        """All sequences that the step loop was given, once there are so many."""
        await until(lambda: len(self.loop.submitted) >= count)
        assert len(self.loop.submitted) == count
        return self.loop.submitted

    async def submitted(self, request_id: str) -> None:
        """Waits until the request has been handed to the step loop."""
        await until(lambda: request_id in self.loop.submitted_ids)

    def sample(self, request_id: str, text: str) -> None:
        """What steps publish that sample these tokens, one a step."""
        for token_id in text.encode():
            self.generator.on_events([TokenSampled(request_id, token_id, None)])

    def retire(self, request_id: str, error: str | None = None, num_computed_tokens: int = 0) -> None:
        self.generator.on_events([Retired(request_id, error, num_computed_tokens)])


class Following:
    """A caller that takes events as they come, until the end, an error, or `leave`."""

    def __init__(self, events: AsyncGenerator[GenerationEvent]) -> None:
        self.events: list[GenerationEvent] = []
        self.task = asyncio.create_task(self._take(events))

    async def _take(self, events: AsyncGenerator[GenerationEvent]) -> None:
        try:
            async for event in events:
                self.events.append(event)
        finally:
            await events.aclose()

    async def end(self) -> list[GenerationEvent]:
        """All events."""
        await asyncio.wait_for(asyncio.shield(self.task), WAIT_S)
        return self.events

    async def leave(self) -> None:
        """As a client that goes away."""
        self.task.cancel()
        await asyncio.wait({self.task})
        assert self.task.cancelled()

    async def has(self, num_events: int) -> list[GenerationEvent]:
        """The first events, once there are so many."""
        await until(lambda: len(self.events) >= num_events or self.task.done())
        return self.events


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0)
