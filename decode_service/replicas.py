"""The prefill replicas: who is there, what was agreed with each, how loaded it is, and which one gets a prompt."""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Self

import grpc
import structlog

from baton.v1 import prefill_pb2, prefill_pb2_grpc
from decode_service.kv_links import KvLinks
from shared.errors import BatonError, Reason, UnavailableError
from shared.rpc.convert import identity_to_proto
from shared.rpc.options import channel_options
from shared.rpc.status import peer_error
from shared.worker.engine import Identity

log = structlog.get_logger()

_HANDSHAKE_TIMEOUT_S = 5.0
_REPORT_TIMEOUT_S = 5.0
"""A replica that sends no load report for so long is taken for dead; it promises one a second."""
_MIN_RETRY_S = 0.1
_MAX_RETRY_S = 1.0
_SETTLE_TIMEOUT_S = 1.0
"""How long a request waits for a replica whose handshake is in flight."""
_LOADING_TIMEOUT_S = 30.0
_WATCH_LIMIT_S = 3600.0
_MAX_REMEMBERED_PREFIXES = 16384
_MAX_IMBALANCE_TOKENS = 8192
"""A warm prefix is worth no more than so many tokens of waiting behind others."""


class ReplicaState(Enum):
    """Where a replica stands, as seen from here."""

    CONNECTING = "connecting"
    READY = "ready"
    DOWN = "down"


@dataclass(frozen=True, eq=False)
class Session:
    """What was agreed with one life of a replica; gone when it restarts.

    Attributes:
        transport: name of the transport that KV comes by.
        ending_calls: streams that are done and wait for the replica's status.
    """

    epoch: str
    transport: str
    stub: prefill_pb2_grpc.PrefillServiceAsyncStub
    ending_calls: set[asyncio.Task[None]] = field(default_factory=set)


class PrefillReplica:
    """Keeps a session with one replica: handshake, then its load reports, again after each failure."""

    def __init__(self, target: str, identity: Identity, links: KvLinks) -> None:
        self.target = target
        self.state = ReplicaState.CONNECTING
        self.session: Session | None = None
        self.last_error: str = ""
        self.num_attempts = 0
        self.is_loading = False
        self._identity = identity
        self._links = links
        self._reported_tokens = 0
        self._sent_tokens = 0
        self._changed = asyncio.Condition()
        self._wake = asyncio.Event()

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens that it has still to compute: as reported, and sent since."""
        return self._reported_tokens + self._sent_tokens

    def note_sent(self, num_tokens: int) -> None:
        """Counts a prompt that the last report cannot hold yet."""
        self._sent_tokens += num_tokens

    async def run(self) -> None:
        """Connects until cancelled."""
        delay = _MIN_RETRY_S
        async with grpc.aio.insecure_channel(self.target, options=channel_options()) as channel:
            stub = prefill_pb2_grpc.PrefillServiceStub(channel)
            while True:
                self._wake.clear()
                try:
                    session = await self._shake_hands(stub)
                except (grpc.aio.AioRpcError, BatonError) as error:
                    self.is_loading = _says_loading(error)
                    if self.is_loading:
                        delay = _MIN_RETRY_S  # it is there, and will be ready soon
                    await self._go_down(_describe(error))
                else:
                    delay = _MIN_RETRY_S
                    await self._follow(session)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), delay)
                delay = min(2 * delay, _MAX_RETRY_S)

    async def wait_loaded(self) -> None:
        """Returns when the replica does not say that it is loading its model: it is ready, or it is not there."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self.is_loading)

    async def settle(self) -> None:
        """Tries again now, and returns when that has succeeded or failed."""
        if self.state is ReplicaState.READY:
            return
        seen = self.num_attempts
        self._wake.set()
        async with self._changed:
            await self._changed.wait_for(lambda: self.num_attempts > seen)

    def mark_failed(self, session: Session) -> None:
        """A call to this life of the replica failed: take it for gone until it is heard of again."""
        if self.session is session:
            self.state = ReplicaState.DOWN

    async def _shake_hands(self, stub: prefill_pb2_grpc.PrefillServiceAsyncStub) -> Session:
        request = prefill_pb2.HandshakeRequest(identity=identity_to_proto(self._identity))
        response = await stub.Handshake(request, timeout=_HANDSHAKE_TIMEOUT_S)
        return Session(response.epoch, self._links.connect(response, stub), stub)

    async def _follow(self, session: Session) -> None:
        """Takes load reports until they end."""
        log.info("prefill_ready", target=self.target, epoch=session.epoch, transport=session.transport)
        reason = "it drains"
        try:
            while await self._take_reports(session):
                pass
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            reason = _describe(error)
        finally:
            # Before the links go: nobody may choose a session whose KV is out of reach.
            self.state = ReplicaState.DOWN
            self._links.disconnect(session.epoch)
        await self._go_down(reason, was_ready=True)

    async def _take_reports(self, session: Session) -> bool:
        """Follows one WatchLoad call; True where it only ran into its own time limit."""
        opened_s = time.monotonic()
        reports = session.stub.WatchLoad(prefill_pb2.WatchLoadRequest(), timeout=_WATCH_LIMIT_S)
        try:
            async for report in _timed(reports, _REPORT_TIMEOUT_S):
                self._reported_tokens, self._sent_tokens = report.num_waiting_tokens, 0
                if report.is_draining or report.epoch != session.epoch:
                    return False
                await self._go_ready(session)
        except grpc.aio.AioRpcError:
            if time.monotonic() - opened_s < _WATCH_LIMIT_S:
                raise
            return True
        finally:
            reports.cancel()
        return False

    async def _go_ready(self, session: Session) -> None:
        if self.session is session and self.state is ReplicaState.READY:
            return
        async with self._changed:
            self.session, self.state, self.is_loading = session, ReplicaState.READY, False
            self.num_attempts += 1
            self._changed.notify_all()

    async def _go_down(self, reason: str, was_ready: bool = False) -> None:
        kind = reason.partition(":")[0]  # the rest may change from try to try: addresses, for one
        if was_ready:
            log.warning("prefill_down", target=self.target, reason=reason)
        elif kind != self.last_error.partition(":")[0]:
            log.info("prefill_not_ready", target=self.target, reason=reason)
        async with self._changed:
            self.session, self.state, self.last_error = None, ReplicaState.DOWN, reason
            self.num_attempts += 1
            self._changed.notify_all()


class ReplicaSet:
    """All prefill replicas; a context manager that keeps their sessions while it is open.

    Args:
        targets: "host:port" of each.
        identity: what they must agree with.
        links: the ways KV comes from them.
    """

    def __init__(self, targets: Sequence[str], identity: Identity, links: KvLinks) -> None:
        self._replicas = [PrefillReplica(target, identity, links) for target in targets]
        self._homes: OrderedDict[bytes, PrefillReplica] = OrderedDict()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(replica.run()) for replica in self._replicas]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def num_ready(self) -> int:
        """Replicas that take prompts now."""
        return len(self._ready())

    async def settle(self) -> None:
        """Waits until each replica has answered or failed once more, but no longer than a second."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_TIMEOUT_S):
                await asyncio.gather(*(replica.settle() for replica in self._replicas))

    async def wait_loaded(self) -> None:
        """Waits for replicas that are there but still load their model, though no longer than half a minute."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOADING_TIMEOUT_S):
                await asyncio.gather(*(replica.wait_loaded() for replica in self._replicas))

    async def choose(self, prefix: Sequence[bytes], avoid: Collection[Session]) -> tuple[PrefillReplica, Session]:
        """The replica for a prompt: the one that has its prefix, else the less loaded of two.

        Args:
            prefix: the prompt's chained block hashes.
            avoid: sessions on which this request has failed; taken only where there is no other.

        Raises:
            UnavailableError: no replica is ready (NO_PREFILL_REPLICA); says why for each.
        """
        if not self._ready():
            await self.settle()
        ready = self._ready()
        if not ready:
            reasons = "; ".join(f"{replica.target}: {replica.last_error or 'failed'}" for replica in self._replicas)
            raise UnavailableError(
                f"no prefill replica is ready ({reasons or 'none is configured'})",
                Reason.NO_PREFILL_REPLICA,
                {"num_replicas": len(self._replicas)},
            )
        ready = [replica for replica in ready if replica.session not in avoid] or ready
        two = random.sample(ready, min(2, len(ready)))
        least = min(two, key=lambda replica: replica.num_waiting_tokens)
        home = next((self._homes[key] for key in reversed(prefix) if self._homes.get(key) in ready), None)
        chosen = least
        if home is not None and home.num_waiting_tokens <= least.num_waiting_tokens + _MAX_IMBALANCE_TOKENS:
            chosen = home
        self._remember(prefix, chosen)
        assert chosen.session is not None
        return chosen, chosen.session

    def _ready(self) -> list[PrefillReplica]:
        return [replica for replica in self._replicas if replica.state is ReplicaState.READY]

    def _remember(self, prefix: Sequence[bytes], replica: PrefillReplica) -> None:
        for key in prefix:
            self._homes[key] = replica
            self._homes.move_to_end(key)
        while len(self._homes) > _MAX_REMEMBERED_PREFIXES:
            self._homes.popitem(last=False)


async def _timed(
    reports: AsyncIterable[prefill_pb2.WatchLoadResponse], timeout_s: float
) -> AsyncIterator[prefill_pb2.WatchLoadResponse]:
    """The reports, each within `timeout_s` of the one before; else TimeoutError."""
    iterator = aiter(reports)
    while True:
        try:
            report = await asyncio.wait_for(anext(iterator), timeout_s)
        except StopAsyncIteration:
            return
        yield report


def _says_loading(error: grpc.aio.AioRpcError | BatonError) -> bool:
    told = peer_error(error) if isinstance(error, grpc.aio.AioRpcError) else error
    return told is not None and told.reason is Reason.NOT_READY


def _describe(error: grpc.aio.AioRpcError | BatonError | TimeoutError) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    if isinstance(error, BatonError):
        return error.message
    return f"no load report for {_REPORT_TIMEOUT_S:g} s"
