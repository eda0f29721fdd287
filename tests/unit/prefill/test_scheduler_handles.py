import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from prefill_service.job import Accepted, HandleReady
from shared.errors import HandleError, Reason
from shared.kv.allocator import BlockCounts
from shared.kv.handle import GrpcLocation, LocalLocation
from shared.worker.step_loop import ChunkLanded, Retired, TokenSampled
from tests.unit.kv.support import BLOCK_BYTES, LAYOUT
from tests.unit.prefill.bench import Bench, handles, spans, taken, task

MakeBench = Callable[..., Bench]


def test_closed_blocks_go_out_as_they_land_and_the_open_one_with_the_first_token(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 10)
    made.land("a", 6)
    made.land("a", 9)
    assert spans(handles(job)) == [(0, 4, False, None), (4, 8, False, None)]
    made.finish("a", 10)
    assert spans(handles(job)) == [(8, 10, True, 42)]


def test_a_chunk_that_closes_no_block_sends_nothing(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 10)
    made.land("a", 3)
    assert taken(job) == [Accepted(0)]
    made.land("a", 4)
    made.land("a", 7)
    assert spans(handles(job)) == [(0, 4, False, None)]


def test_a_prompt_of_whole_blocks_keeps_its_last_block_for_the_final_handle(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 8)
    made.land("a", 4)
    made.scheduler.on_events([ChunkLanded("a", 8)])
    assert spans(handles(job)) == [(0, 4, False, None)]
    made.scheduler.on_events([TokenSampled("a", 7, None), Retired("a")])
    assert spans(handles(job)) == [(4, 8, True, 7)]


@pytest.mark.parametrize("chunk_len", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("prompt_len", [1, 3, 4, 5, 8, 9])
def test_handles_cover_exactly_the_prompt(bench: MakeBench, prompt_len: int, chunk_len: int) -> None:
    made = bench()
    job = made.submit("a", prompt_len)
    for end in range(chunk_len, prompt_len, chunk_len):
        made.land("a", end)
    made.finish("a", prompt_len)
    ready = handles(job)
    assert ready[0].handle.first_token == 0
    assert [message.handle.end_token for message in ready[:-1]] == [message.handle.first_token for message in ready[1:]]
    assert all(message.handle.end_token % 4 == 0 for message in ready[:-1])
    assert spans(ready)[-1][1:] == (prompt_len, True, 42)
    assert [message.handle.is_final for message in ready[:-1]] == [False] * (len(ready) - 1)
    (sequence,) = made.loop.submitted
    assert tuple(block_id for message in ready for block_id in message.handle.block_ids) == sequence.block_table


def test_what_a_handle_says(bench: MakeBench) -> None:
    made = bench()
    made.scheduler.close(made.submit("z", 8))
    made.retire("z")
    job = made.submit("a", 10)
    made.finish("a", 10)
    (ready,) = handles(job)
    assert len(ready.handle.handle_id) == 16
    assert ready.handle == replace(
        ready.handle,
        epoch="now",
        request_id="a",
        first_token=0,
        end_token=10,
        is_final=True,
        block_ids=(1, 2, 3),
        block_generations=(2, 2, 1),
        layout=LAYOUT,
        location=LocalLocation(),
        checksum=None,
    ), "z had blocks 1 and 2 before"
    assert made.exports.find(ready.handle.handle_id, "now", "a") is ready.handle


def test_needless_tokens_are_not_exported(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 10, first_needed_token=4)
    made.land("a", 4)
    assert taken(job) == [Accepted(0)]
    made.land("a", 8)
    made.finish("a", 10)
    assert spans(handles(job)) == [(4, 8, False, None), (8, 10, True, 42)]


def test_cached_blocks_are_exported_at_once(bench: MakeBench) -> None:
    made = bench()
    made.scheduler.close(made.submit("a", 10))
    made.scheduler.on_events([ChunkLanded("a", 9), Retired("a")])
    assert made.counts == BlockCounts(free=6, cached=2, in_use=0)
    job = made.submit("a", 11)
    accepted, ready = taken(job)
    assert accepted == Accepted(8)
    assert isinstance(ready, HandleReady)
    assert spans([ready]) == [(0, 8, False, None)]
    assert ready.handle.block_ids == (1, 2)
    assert made.loop.submitted[-1].num_computed_tokens == 8
    assert made.scheduler.load().num_waiting_tokens == 3
    made.finish("a", 11)
    assert spans(handles(job)) == [(8, 11, True, 42)]


def test_cached_blocks_that_the_caller_has_are_not_exported(bench: MakeBench) -> None:
    made = bench()
    made.scheduler.close(made.submit("a", 10))
    made.scheduler.on_events([ChunkLanded("a", 9), Retired("a")])
    job = made.submit("a", 10, first_needed_token=8)
    made.finish("a", 10)
    assert spans(handles(job)) == [(8, 10, True, 42)]


def test_another_salt_finds_nothing_cached(bench: MakeBench) -> None:
    made = bench()
    made.scheduler.close(made.submit("a", 8))
    made.scheduler.on_events([ChunkLanded("a", 8), Retired("a")])
    job = made.scheduler.submit(replace(task("a", 8), cache_salt="theirs"))
    assert taken(job) == [Accepted(0)]


def test_an_acknowledgement_unpins_the_handles_blocks(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 10)
    made.land("a", 8)
    made.finish("a", 10)
    first, last = handles(job)
    assert made.counts == BlockCounts(free=5, cached=0, in_use=3), "retired, but exported"
    made.scheduler.acknowledge(job, first.handle.handle_id)
    assert made.counts == BlockCounts(free=5, cached=2, in_use=1)
    assert len(made.exports) == 1
    made.scheduler.acknowledge(job, last.handle.handle_id)
    assert made.counts == BlockCounts(free=6, cached=2, in_use=0)
    assert len(made.exports) == 0


def test_an_acknowledged_block_stays_reserved_while_the_prompt_is_computed(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 10)
    made.land("a", 8)
    made.scheduler.acknowledge(job, handles(job)[0].handle.handle_id)
    assert made.counts == BlockCounts(free=5, cached=0, in_use=3)


def test_a_repeated_acknowledgement_is_refused(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 4)
    made.finish("a", 4)
    (ready,) = handles(job)
    made.scheduler.acknowledge(job, ready.handle.handle_id)
    before = made.counts
    with pytest.raises(HandleError) as caught:
        made.scheduler.acknowledge(job, ready.handle.handle_id)
    assert caught.value.reason is Reason.HANDLE_RELEASED
    assert made.counts == before


def test_acknowledging_what_was_never_issued_is_refused(bench: MakeBench) -> None:
    made = bench()
    with pytest.raises(HandleError) as caught:
        made.scheduler.acknowledge(made.submit("a", 4), bytes(16))
    assert caught.value.reason is Reason.HANDLE_UNKNOWN


def test_acknowledging_another_requests_handle_is_refused_and_leaves_it_alive(bench: MakeBench) -> None:
    made = bench()
    job, other = made.submit("a", 4), made.submit("b", 4)
    made.finish("a", 4)
    (ready,) = handles(job)
    with pytest.raises(HandleError) as caught:
        made.scheduler.acknowledge(other, ready.handle.handle_id)
    assert caught.value.reason is Reason.HANDLE_FOREIGN
    assert made.exports.find(ready.handle.handle_id, "now", "a") is ready.handle


async def test_a_checksum_is_added_where_bytes_cross_a_network(bench: MakeBench) -> None:
    made = bench()
    job = made.scheduler.submit(replace(task("a", 5), transport="grpc"))
    made.finish("a", 5)
    (ready,) = handles(job)
    assert ready.handle.location == GrpcLocation()
    sealed = await made.scheduler.seal(ready)
    assert sealed.handle.checksum == zlib.crc32(bytes(2 * BLOCK_BYTES)), "two blocks of zeros"
    assert sealed == replace(ready, handle=replace(ready.handle, checksum=sealed.handle.checksum))


async def test_no_checksum_where_memory_is_shared(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 5)
    made.finish("a", 5)
    (ready,) = handles(job)
    assert await made.scheduler.seal(ready) is ready
