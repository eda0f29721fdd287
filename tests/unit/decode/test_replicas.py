"""Which replica gets a prompt, and when a replica counts as there."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from baton.v1 import prefill_pb2
from decode_service import replicas
from decode_service.kv_links import KvLinks
from decode_service.replicas import PrefillReplica, ReplicaSet, ReplicaState
from shared.errors import HandshakeError, Reason, UnavailableError
from shared.rpc.convert import identity_to_proto
from shared.rpc.interceptor import ErrorInterceptor
from tests.unit.decode.cluster import IDENTITY, make_ready, open_links, replicas_of
from tests.unit.decode.scripted import SERVICE, WAIT_S, RecordingTransport

PREFIX = [b"block 1", b"block 2", b"block 3"]


@pytest.fixture
def links() -> Iterator[KvLinks]:
    with open_links(RecordingTransport()) as made:
        yield made


@pytest.fixture(autouse=True)
def seeded() -> None:
    random.seed(1)


def replica_set(links: KvLinks, *num_waiting_tokens: int) -> ReplicaSet:
    """Ready replicas with so much to do."""
    made = ReplicaSet([f"host-{index}:1" for index in range(len(num_waiting_tokens))], IDENTITY, links)
    for replica, num_tokens in zip(replicas_of(made), num_waiting_tokens, strict=True):
        make_ready(replica, num_waiting_tokens=num_tokens)
    return made


async def chosen(made: ReplicaSet, prefix: list[bytes], avoid: list[int] | None = None) -> int:
    """Index of the replica that is chosen."""
    all_replicas = replicas_of(made)
    sessions = [session for index in avoid or [] if (session := all_replicas[index].session) is not None]
    replica, session = await made.choose(prefix, sessions)
    assert session is replica.session
    return all_replicas.index(replica)


async def test_the_less_loaded_of_two(links: KvLinks) -> None:
    made = replica_set(links, 200, 100)
    assert [await chosen(made, [b"%d" % index]) for index in range(20)] == [1] * 20


async def test_of_many_two_are_looked_at(links: KvLinks) -> None:
    made = replica_set(links, 300, 0, 200, 100)
    counts = [0, 0, 0, 0]
    for index in range(600):
        counts[await chosen(made, [b"%d" % index])] += 1
    assert counts[0] == 0, "the most loaded of all loses to whichever other"
    assert counts[1] > counts[3] > counts[2] > 0, "three, two and one of six pairs are theirs: 300, 200, 100"


async def test_the_same_prefix_goes_to_the_same_replica(links: KvLinks) -> None:
    made = replica_set(links, 0, 0, 0)
    home = await chosen(made, PREFIX)
    for replica in replicas_of(made):
        replica.note_sent(500 if replicas_of(made).index(replica) == home else 0)
    assert [await chosen(made, PREFIX) for _ in range(20)] == [home] * 20
    assert await chosen(made, [*PREFIX, b"longer"]) == home
    assert await chosen(made, [*PREFIX[:2], b"another end"]) == home


async def test_the_longest_known_prefix_decides(links: KvLinks) -> None:
    made = replica_set(links, 0, 100)
    assert await chosen(made, PREFIX[:1]) == 0
    make_ready(replicas_of(made)[0], num_waiting_tokens=200)
    replicas_of(made)[0].state = ReplicaState.DOWN
    assert await chosen(made, PREFIX) == 1
    replicas_of(made)[0].state = ReplicaState.READY
    assert await chosen(made, PREFIX) == 1
    assert await chosen(made, PREFIX[:1]) == 1, "it has the first block too, since it was asked last"


@pytest.mark.parametrize(("ahead", "index"), [(8192, 0), (8193, 1)])
async def test_a_warm_prefix_is_worth_so_much_waiting_and_no_more(links: KvLinks, ahead: int, index: int) -> None:
    made = replica_set(links, 0, 50)
    assert await chosen(made, PREFIX) == 0
    make_ready(replicas_of(made)[0], num_waiting_tokens=50 + ahead)
    assert await chosen(made, PREFIX) == index


async def test_a_prompt_of_no_full_block_has_no_home(links: KvLinks) -> None:
    made = replica_set(links, 0, 50)
    assert await chosen(made, []) == 0
    make_ready(replicas_of(made)[0], num_waiting_tokens=100)
    assert await chosen(made, []) == 1


async def test_what_failed_is_avoided_even_if_it_is_home(links: KvLinks) -> None:
    made = replica_set(links, 0, 50)
    assert await chosen(made, PREFIX) == 0
    assert await chosen(made, PREFIX, avoid=[0]) == 1


async def test_what_failed_is_taken_where_there_is_no_other(links: KvLinks) -> None:
    made = replica_set(links, 0, 50)
    assert await chosen(made, PREFIX, avoid=[0, 1]) == 0
    replicas_of(made)[1].state = ReplicaState.DOWN
    assert await chosen(made, PREFIX, avoid=[0]) == 0


async def test_a_restarted_replica_is_not_the_one_that_failed(links: KvLinks) -> None:
    made = replica_set(links, 0, 50)
    failed = replicas_of(made)[0].session
    assert failed is not None
    make_ready(replicas_of(made)[0])
    replica, _ = await made.choose(PREFIX, [failed])
    assert replica is replicas_of(made)[0]


async def test_prompts_sent_since_the_last_report_count(links: KvLinks) -> None:
    made = replica_set(links, 0, 50)
    replicas_of(made)[0].note_sent(51)
    assert await chosen(made, []) == 1


async def test_only_the_last_prefixes_are_remembered(links: KvLinks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_MAX_REMEMBERED_PREFIXES", 3)
    made = replica_set(links, 0, 50)
    assert await chosen(made, [b"old"]) == 0
    await chosen(made, PREFIX)
    assert len(made._homes) == 3
    make_ready(replicas_of(made)[0], num_waiting_tokens=100)
    assert await chosen(made, [b"old"]) == 1, "forgotten, so the less loaded one"


async def test_none_ready(links: KvLinks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_SETTLE_TIMEOUT_S", 0.0)
    made = replica_set(links, 0, 0)
    for replica, error in zip(replicas_of(made), ("UNAVAILABLE: refused", ""), strict=True):
        replica.state, replica.last_error = ReplicaState.DOWN, error
    assert made.num_ready == 0
    with pytest.raises(UnavailableError) as caught:
        await made.choose(PREFIX, [])
    assert caught.value.reason is Reason.NO_PREFILL_REPLICA
    assert caught.value.message == ("no prefill replica is ready (host-0:1: UNAVAILABLE: refused; host-1:1: failed)")
    assert caught.value.metadata == {"num_replicas": "2"}


async def test_none_configured(links: KvLinks) -> None:
    with pytest.raises(UnavailableError, match=r"no prefill replica is ready \(none is configured\)"):
        await ReplicaSet([], IDENTITY, links).choose(PREFIX, [])


async def test_a_failure_of_an_earlier_life_does_not_touch_this_one(links: KvLinks) -> None:
    replica = PrefillReplica("host:1", IDENTITY, links)
    earlier = make_ready(replica)
    make_ready(replica)
    replica.mark_failed(earlier)
    assert replica.state is ReplicaState.READY


async def test_a_replica_that_failed_a_call_counts_again_with_its_next_report(links: KvLinks) -> None:
    service = Reporting()
    async with followed(service, links) as replica:
        service.report()
        await until(replica, ReplicaState.READY)
        assert replica.session is not None
        replica.mark_failed(replica.session)
        assert replica.state.name == "DOWN"
        service.report()
        await until(replica, ReplicaState.READY)


class Reporting:
    """A prefill service that shakes hands and reports its load as it is told."""

    def __init__(self) -> None:
        self.epoch = "life-1"
        self.refusal: Exception | None = None
        self.reports: asyncio.Queue[prefill_pb2.WatchLoadResponse | None] = asyncio.Queue()
        self.num_handshakes = 0

    async def handshake(
        self, request: prefill_pb2.HandshakeRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> prefill_pb2.HandshakeResponse:
        self.num_handshakes += 1
        if self.refusal is not None:
            raise self.refusal
        assert request.identity == identity_to_proto(IDENTITY)
        return prefill_pb2.HandshakeResponse(epoch=self.epoch, transports=["grpc"])

    async def watch_load(
        self, _request: prefill_pb2.WatchLoadRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[prefill_pb2.WatchLoadResponse]:
        while (report := await self.reports.get()) is not None:
            yield report

    def report(self, num_waiting_tokens: int = 0, is_draining: bool = False) -> None:
        self.reports.put_nowait(
            prefill_pb2.WatchLoadResponse(
                epoch=self.epoch, num_waiting_tokens=num_waiting_tokens, is_draining=is_draining
            )
        )


@asynccontextmanager
async def followed(service: Reporting, links: KvLinks) -> AsyncIterator[PrefillReplica]:
    """The service, and a replica that follows it."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Handshake": grpc.unary_unary_rpc_method_handler(
            service.handshake,
            prefill_pb2.HandshakeRequest.FromString,
            prefill_pb2.HandshakeResponse.SerializeToString,
        ),
        "WatchLoad": grpc.unary_stream_rpc_method_handler(
            service.watch_load,
            prefill_pb2.WatchLoadRequest.FromString,
            prefill_pb2.WatchLoadResponse.SerializeToString,
        ),
    }
    server = grpc.aio.server(interceptors=[ErrorInterceptor(lambda *_: None)])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    replica = PrefillReplica(f"127.0.0.1:{port}", IDENTITY, links)
    running = asyncio.create_task(replica.run())
    yield replica
    running.cancel()
    await asyncio.wait({running})
    await server.stop(None)


async def until(replica: PrefillReplica, state: ReplicaState) -> None:
    async with asyncio.timeout(WAIT_S), replica._changed:
        await replica._changed.wait_for(lambda: replica.state is state)


async def test_a_replica_is_ready_with_its_first_report(links: KvLinks) -> None:
    service = Reporting()
    async with followed(service, links) as replica:
        assert replica.state is ReplicaState.CONNECTING
        service.report(num_waiting_tokens=70)
        await until(replica, ReplicaState.READY)
        assert replica.session is not None
        assert (replica.session.epoch, replica.session.transport) == ("life-1", "grpc")
        assert replica.num_waiting_tokens == 70


async def test_a_report_replaces_what_was_sent_since_the_last(links: KvLinks) -> None:
    service = Reporting()
    async with followed(service, links) as replica:
        service.report(num_waiting_tokens=70)
        await until(replica, ReplicaState.READY)
        replica.note_sent(30)
        assert replica.num_waiting_tokens == 100
        service.report(num_waiting_tokens=90)
        async with asyncio.timeout(WAIT_S):
            while replica.num_waiting_tokens != 90:
                await asyncio.sleep(0.001)


async def test_a_draining_replica_gets_nothing_more(links: KvLinks) -> None:
    service = Reporting()
    async with followed(service, links) as replica:
        service.report()
        await until(replica, ReplicaState.READY)
        service.report(is_draining=True)
        await until(replica, ReplicaState.DOWN)
        assert (replica.session, replica.last_error) == (None, "it drains")


async def test_a_replica_that_restarts_is_met_again(links: KvLinks) -> None:
    service = Reporting()
    async with followed(service, links) as replica:
        service.report()
        await until(replica, ReplicaState.READY)
        service.epoch = "life-2"
        service.reports.put_nowait(None)
        await until(replica, ReplicaState.DOWN)
        service.report()
        await until(replica, ReplicaState.READY)
        assert replica.session is not None
        assert replica.session.epoch == "life-2"


async def test_a_report_of_another_epoch_ends_the_session(links: KvLinks) -> None:
    service = Reporting()
    async with followed(service, links) as replica:
        service.report()
        await until(replica, ReplicaState.READY)
        service.epoch = "life-2"
        service.report()
        await until(replica, ReplicaState.DOWN)


async def test_a_refused_handshake_is_told_and_tried_again(links: KvLinks) -> None:
    service = Reporting()
    service.refusal = HandshakeError("the services differ in layout.block_size: prefill has 16, decode has 4")
    async with followed(service, links) as replica:
        await until(replica, ReplicaState.DOWN)
        assert replica.last_error == (
            "FAILED_PRECONDITION: the services differ in layout.block_size: prefill has 16, decode has 4"
        )
        service.refusal = None
        service.report()
        await replica.settle()
        await until(replica, ReplicaState.READY)
        assert service.num_handshakes >= 2


async def test_settling_returns_when_the_next_attempt_has_failed(links: KvLinks) -> None:
    service = Reporting()
    service.refusal = HandshakeError("no")
    async with followed(service, links) as replica:
        await until(replica, ReplicaState.DOWN)
        before = service.num_handshakes
        await asyncio.wait_for(replica.settle(), WAIT_S)
        assert service.num_handshakes > before


async def test_a_silent_replica_is_taken_for_dead(links: KvLinks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_REPORT_TIMEOUT_S", 0.05)
    service = Reporting()
    async with followed(service, links) as replica:
        service.report()
        await until(replica, ReplicaState.READY)
        await until(replica, ReplicaState.DOWN)
        assert replica.last_error.startswith("no load report for")
