"""What becomes of a prompt whose first attempt fails: the policy, against two replicas on the network."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from decode_service import remote_prefill, replicas
from decode_service.completion import Drawn
from decode_service.kv_links import KvLinks
from decode_service.prefill_stream import Accepted, KvProgress, PrefillEvent, PrefillWork
from decode_service.remote_prefill import RemotePrefill
from decode_service.replicas import ReplicaSet, ReplicaState
from shared.config.services import DecodeServiceConfig
from shared.errors import (
    BatonError,
    DeadlineError,
    DuplicateRequestError,
    HandleError,
    InvalidRequestError,
    KvTransferError,
    QueueFullError,
    Reason,
    UnavailableError,
)
from shared.kv.allocator import BlockAllocator
from shared.kv.pool import KvPool
from shared.telemetry.metrics import ServiceMetrics
from shared.worker.ledger import BlockLedger
from tests.unit.decode.cluster import IDENTITY, make_ready, open_links, replicas_of
from tests.unit.decode.requests import embeddings_request, generation_request, vectors_of
from tests.unit.decode.scripted import (
    WAIT_S,
    Dialogue,
    RecordingTransport,
    Response,
    Script,
    ScriptedReplica,
    accepted,
    handle_message,
    hanging_up,
    last_message,
    saying,
)
from tests.unit.kv.support import LAYOUT

PROMPT = tuple(range(10))
FULL = QueueFullError("full", retry_after_s=3)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_prefill, "_RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr(replicas, "_SETTLE_TIMEOUT_S", 0.0)


@pytest.fixture
def pool() -> Iterator[KvPool]:
    with KvPool.anonymous(LAYOUT, 9, "here") as made:
        yield made


async def computing(dialogue: Dialogue) -> AsyncIterator[Response]:
    """What a healthy replica does: two handles, as far as they are needed."""
    request_id, needed = dialogue.start.request_id, dialogue.start.first_needed_token
    yield accepted(4)
    if needed < 8:
        yield handle_message(needed, 8, request_id=request_id)
    yield handle_message(8, 10, token_id=42, request_id=request_id)
    await dialogue.until_closed()


class Remote:
    """A remote prefill over scripted replicas, the first of which is the least loaded."""

    def __init__(
        self,
        pool: KvPool,
        replica_set: ReplicaSet,
        links: KvLinks,
        config: DecodeServiceConfig,
        transport: RecordingTransport,
    ) -> None:
        self.replicas = replicas_of(replica_set)
        self.scripted: list[ScriptedReplica] = []
        self.transport = transport
        self.metrics = ServiceMetrics("decode")
        self.timeout_s = WAIT_S
        self.progress = KvProgress(0)
        self.request = generation_request("a", PROMPT)
        self._remote = RemotePrefill(config, replica_set, links, self.metrics)
        self._pool = pool

    @property
    def prefill_ids(self) -> list[list[str]]:
        """The request ids that each replica was given."""
        return [[dialogue.start.request_id for dialogue in replica.dialogues] for replica in self.scripted]

    async def events(self) -> list[PrefillEvent]:
        return [event async for event in self.run()]

    def run(self) -> AsyncGenerator[PrefillEvent]:
        ledger = BlockLedger(BlockAllocator(self._pool.num_blocks, self._pool.generations), LAYOUT.block_size)
        request = self.request
        reservation = ledger.reserve(PROMPT, request.max_total_len, "")
        assert reservation is not None
        work = PrefillWork(
            request=request,
            reservation=reservation,
            banned_token_ids=(),
            progress=self.progress,
            deadline_s=time.monotonic() + self.timeout_s,
            vocab_size=100,
            ledger=ledger,
            pool=self._pool,
        )
        return self._remote.run(work)

    async def failure(self) -> BatonError:
        with pytest.raises(BatonError) as caught:
            await self.events()
        return caught.value


@asynccontextmanager
async def remote_over(pool: KvPool, *scripts: tuple[Script, ...], **policy: Any) -> AsyncIterator[Remote]:
    """One replica for each tuple of scripts."""
    transport = RecordingTransport()
    async with AsyncExitStack() as stack:
        links = stack.enter_context(open_links(transport))
        replica_set = ReplicaSet([f"replica-{index}:1" for index in range(len(scripts))], IDENTITY, links)
        made = Remote(pool, replica_set, links, DecodeServiceConfig(**policy), transport)
        for index, (replica, script) in enumerate(zip(made.replicas, scripts, strict=True)):
            scripted = ScriptedReplica(*script)
            make_ready(replica, await stack.enter_async_context(scripted.serving()), num_waiting_tokens=1000 * index)
            made.scripted.append(scripted)
        yield made


def kv_bytes(made: Remote) -> float | None:
    return made.metrics.registry.get_sample_value(
        "baton_decode_kv_transferred_bytes_total", {"transport": RecordingTransport.name}
    )


HEALTHY = [Accepted(4), Drawn(42)]


async def test_the_first_attempt_does_if_it_can(pool: KvPool) -> None:
    async with remote_over(pool, (computing,), (computing,)) as made:
        assert await made.events() == HEALTHY
        assert made.prefill_ids == [["a"], []]
        assert kv_bytes(made) == 3 * 128, "ten tokens are three blocks of 128 bytes"


RETRIED: dict[str, Script] = {
    "draining": hanging_up(error=UnavailableError("it drains", Reason.DRAINING)),
    "a failed step": hanging_up(accepted(4), error=UnavailableError("no memory", Reason.PREFILL_FAILED)),
    "its queue is full": hanging_up(error=FULL),
    "the id is live there": hanging_up(error=DuplicateRequestError("live")),
    "it has restarted": hanging_up(error=HandleError("stale", Reason.EPOCH_STALE)),
    "a bug": hanging_up(accepted(4), error=ZeroDivisionError("bug")),
    "it ends too early": hanging_up(accepted(4), handle_message(0, 4)),
    "a wrong handle": saying(accepted(4), handle_message(4, 8)),
    "no first token": saying(accepted(4), handle_message(0, 10, is_final=True)),
}


@pytest.mark.parametrize("script", RETRIED.values(), ids=RETRIED)
async def test_a_failure_is_made_up_for_elsewhere(pool: KvPool, script: Script) -> None:
    async with remote_over(pool, (script,), (computing,)) as made:
        assert await made.events() == HEALTHY
        assert made.prefill_ids == [["a"], ["a#2"]]
        assert made.progress.num_fetched_tokens == 10


async def computing_three(dialogue: Dialogue) -> AsyncIterator[Response]:
    """What a healthy replica does with three completions."""
    request_id, needed = dialogue.start.request_id, dialogue.start.first_needed_token
    yield accepted(4)
    if needed < 8:
        yield handle_message(needed, 8, request_id=request_id)
    yield last_message([42, 43, 44], request_id=request_id)
    await dialogue.until_closed()


THREE = [Accepted(4), Drawn(42), Drawn(43, 1), Drawn(44, 2)]


async def test_first_tokens_are_told_once_though_kv_is_lost_after_them(pool: KvPool) -> None:
    async with remote_over(pool, (computing_three,), (computing_three,), kv_load_failure="recompute") as made:
        made.request = replace(made.request, sampling=replace(made.request.sampling, n=3))
        made.transport.failure = KvTransferError("lost")
        made.transport.gate.clear()
        events = made.run()
        assert [await anext(events) for _ in range(4)] == THREE
        made.transport.gate.set()
        assert [event async for event in events] == []
        assert made.prefill_ids == [["a"], ["a#2"]]
        assert made.progress.num_fetched_tokens == 10


async def test_wrong_first_tokens_are_made_up_for_elsewhere(pool: KvPool) -> None:
    wrong = saying(accepted(4), handle_message(0, 8), last_message([50, 51]))
    async with remote_over(pool, (wrong,), (computing_three,)) as made:
        made.request = replace(made.request, sampling=replace(made.request.sampling, n=3))
        assert await made.events() == THREE
        assert made.prefill_ids == [["a"], ["a#2"]]


async def test_the_next_replica_is_told_what_was_resumed(pool: KvPool) -> None:
    died = hanging_up(accepted(4), handle_message(0, 4), error=UnavailableError("it dies", Reason.PREFILL_FAILED))
    async with remote_over(pool, (died,), (computing,)) as made:
        made.request = replace(made.request, prompt_token_ids=PROMPT[:8], resumed={0: PROMPT[8:]})
        assert await made.events() == HEALTHY
        starts = [replica.dialogues[0].start for replica in made.scripted]
        assert [(list(start.token_ids), start.num_generated_tokens) for start in starts] == [(list(PROMPT), 2)] * 2


async def test_the_next_replica_gets_the_same_vectors(pool: KvPool) -> None:
    died = hanging_up(accepted(4), handle_message(0, 4), error=UnavailableError("it dies", Reason.PREFILL_FAILED))
    async with remote_over(pool, (died,), (computing,)) as made:
        vectors = vectors_of(0.1, *range(9))
        made.request = embeddings_request("a", vectors)
        assert await made.events() == HEALTHY
        starts = [replica.dialogues[0].start for replica in made.scripted]
        assert [start.embeddings.data for start in starts] == [vectors.tobytes()] * 2
        assert made.progress.num_fetched_tokens == 10


FINAL: dict[str, BatonError] = {
    "invalid": InvalidRequestError("too long", Reason.PROMPT_TOO_LONG, {"prompt_tokens": 10}),
    "out of time": DeadlineError("too late"),
}


@pytest.mark.parametrize("error", FINAL.values(), ids=FINAL)
async def test_what_would_fail_again_is_not_tried_again(pool: KvPool, error: BatonError) -> None:
    async with remote_over(pool, (hanging_up(error=error),), (computing,)) as made:
        failure = await made.failure()
        assert type(failure) is type(error)
        assert (failure.reason, failure.message, failure.metadata) == (error.reason, error.message, error.metadata)
        assert made.prefill_ids == [["a"], []]


async def test_the_callers_deadline_is_final_and_no_fault_of_the_replica(pool: KvPool) -> None:
    async with remote_over(pool, (saying(accepted(4)),), (computing,)) as made:
        made.timeout_s = 0.1
        assert isinstance(await made.failure(), DeadlineError)
        assert made.prefill_ids[1] == []
        assert made.replicas[0].state is ReplicaState.READY


async def test_attempts_are_bounded_and_the_last_error_is_told(pool: KvPool) -> None:
    first = hanging_up(error=UnavailableError("first", Reason.DRAINING))
    second = hanging_up(error=UnavailableError("second", Reason.PREFILL_FAILED))
    async with remote_over(pool, (first, computing), (second, computing), prefill_attempts=2) as made:
        failure = await made.failure()
        assert (failure.message, failure.reason) == ("second", Reason.PREFILL_FAILED)
        assert made.prefill_ids == [["a"], ["a#2"]]


async def test_one_attempt_means_no_second(pool: KvPool) -> None:
    script = hanging_up(error=FULL)
    async with remote_over(pool, (script,), (computing,), prefill_attempts=1) as made:
        failure = await made.failure()
        assert isinstance(failure, QueueFullError)
        assert failure.retry_after_s == 3


async def test_a_replica_that_failed_is_asked_again_where_there_is_no_other(pool: KvPool) -> None:
    async with remote_over(pool, (hanging_up(error=FULL), computing)) as made:
        assert await made.events() == HEALTHY
        assert made.prefill_ids == [["a", "a#2"]]


async def test_what_was_fetched_is_kept(pool: KvPool) -> None:
    async def half(dialogue: Dialogue) -> AsyncIterator[Response]:
        yield accepted(4)
        yield handle_message(0, 8)
        await anext(dialogue.acks())
        raise UnavailableError("it dies")

    async with remote_over(pool, (half,), (computing,)) as made:
        assert await made.events() == HEALTHY
        assert made.scripted[1].dialogues[0].start.first_needed_token == 8
        assert made.transport.fetched == [(0, 8, (1, 2)), (8, 10, (3,))]
        assert kv_bytes(made) == 3 * 128, "no byte twice"


async def test_the_first_token_is_told_once(pool: KvPool) -> None:
    async with remote_over(pool, (computing,), (computing,)) as made:
        made.transport.failure = KvTransferError("lost")
        assert await made.events() == HEALTHY
        assert made.scripted[1].dialogues[0].start.first_needed_token == 0


async def test_lost_kv_is_final_where_the_policy_is_to_fail(pool: KvPool) -> None:
    async with remote_over(pool, (computing,), (computing,), kv_load_failure="fail") as made:
        made.transport.failure = KvTransferError("lost", Reason.KV_CHECKSUM_MISMATCH)
        failure = await made.failure()
        assert (type(failure), failure.reason) == (KvTransferError, Reason.KV_CHECKSUM_MISMATCH)
        assert made.prefill_ids == [["a"], []]


async def test_a_wrong_handle_is_final_where_the_policy_is_to_fail(pool: KvPool) -> None:
    wrong = saying(accepted(4), handle_message(4, 8))
    async with remote_over(pool, (wrong,), (computing,), kv_load_failure="fail") as made:
        failure = await made.failure()
        assert (type(failure), failure.reason) == (HandleError, Reason.HANDLE_OUT_OF_RANGE)


async def test_a_restarted_replica_has_lost_no_kv_of_this_request(pool: KvPool) -> None:
    stale = hanging_up(error=HandleError("stale", Reason.EPOCH_STALE))
    async with remote_over(pool, (stale,), (computing,), kv_load_failure="fail") as made:
        assert await made.events() == HEALTHY


@pytest.mark.parametrize("kind", ["fail", "local"])
async def test_without_a_replica(pool: KvPool, kind: str) -> None:
    async with remote_over(pool, (computing,), prefill_unavailable=kind) as made:
        made.replicas[0].state = ReplicaState.DOWN
        made.replicas[0].last_error = "UNAVAILABLE: refused"
        if kind == "local":
            assert await made.events() == []
        else:
            failure = await made.failure()
            assert failure.reason is Reason.NO_PREFILL_REPLICA
            assert failure.message == "no prefill replica is ready (replica-0:1: UNAVAILABLE: refused)"


async def test_a_full_queue_is_made_up_for_here_where_the_policy_says_so(pool: KvPool) -> None:
    async with remote_over(pool, (hanging_up(error=FULL),), (computing,), prefill_unavailable="local") as made:
        assert await made.events() == []
        assert made.prefill_ids == [["a"], []]


async def test_the_last_replica_dies_and_the_rest_is_computed_here(pool: KvPool) -> None:
    async def half(dialogue: Dialogue) -> AsyncIterator[Response]:
        yield accepted(4)
        yield handle_message(0, 8)
        await anext(dialogue.acks())
        raise ZeroDivisionError("it dies")

    async with remote_over(pool, (half,), prefill_unavailable="local") as made:
        assert await made.events() == [Accepted(4)]
        assert made.progress.num_fetched_tokens == 8, "the caller computes the last two tokens"


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ZeroDivisionError("bug"), ReplicaState.DOWN),
        (UnavailableError("it drains", Reason.DRAINING), ReplicaState.READY),
        (FULL, ReplicaState.READY),
    ],
    ids=["no answer of its own", "draining", "full"],
)
async def test_only_a_replica_that_gives_no_reason_is_taken_for_gone(
    pool: KvPool, error: Exception, state: ReplicaState
) -> None:
    async with remote_over(pool, (hanging_up(error=error),), (computing,)) as made:
        await made.events()
        assert made.replicas[0].state is state


async def test_prompts_sent_count_as_load_until_the_next_report(pool: KvPool) -> None:
    async with remote_over(pool, (computing,)) as made:
        await made.events()
        assert made.replicas[0].num_waiting_tokens == 10
