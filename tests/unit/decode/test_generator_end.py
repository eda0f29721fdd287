"""Every way a request ends before its last token, and that nothing stays behind."""

import asyncio
from collections.abc import Callable

import pytest

from decode_service.request import Started
from shared.errors import BatonError, DeadlineError, InvalidRequestError, Reason, UnavailableError
from shared.kv.allocator import BlockCounts
from shared.worker.step_loop import ChunkLanded, LoopStopped
from tests.unit.decode.generating import Desk, Following, until
from tests.unit.decode.requests import generation_request

MakeDesk = Callable[..., Desk]


async def failure(caller: Following) -> BatonError:
    with pytest.raises(BatonError) as caught:
        await caller.end()
    return caught.value


async def test_leaving_the_queue(desk: MakeDesk) -> None:
    made = desk(max_num_seqs=1)
    running = made.follow(generation_request("a", (1,)))
    await made.submitted("a")
    waiting = made.follow(generation_request("b", (1,)))
    await until(lambda: made.admission.num_waiting == 1)
    await waiting.leave()
    assert (made.admission.num_waiting, made.generator.num_live) == (0, 1)
    assert made.loop.cancelled == []
    await running.leave()


async def test_leaving_before_anything_is_computed_frees_all_at_once(desk: MakeDesk) -> None:
    made = desk()
    events = made.generator.generate(generation_request("a", (1,)), 10.0)
    assert await anext(events) == Started("a", 1, 0)
    assert not made.is_idle
    await events.aclose()
    assert made.is_idle
    assert (made.loop.submitted, made.loop.cancelled) == ([], [])


async def test_leaving_while_it_is_computed_frees_all_when_the_loop_lets_go(desk: MakeDesk) -> None:
    made = desk()
    caller = made.follow(generation_request("a", (1, 2, 3), max_tokens=9))
    await made.submitted("a")
    await caller.leave()
    assert made.loop.cancelled == ["a"]
    assert made.counts == BlockCounts(free=5, cached=0, in_use=3)
    made.generator.on_events([ChunkLanded("a", 3)])
    made.sample("a", "x")
    assert made.counts.in_use == 3
    made.retire("a", num_computed_tokens=3)
    assert made.is_idle
    assert made.counts == BlockCounts(free=8, cached=0, in_use=0)


async def test_one_that_leaves_makes_room_for_the_next(desk: MakeDesk) -> None:
    made = desk(max_num_seqs=1)
    first = made.follow(generation_request("a", (1,)))
    await made.submitted("a")
    second = made.follow(generation_request("b", (1,)))
    await first.leave()
    assert made.loop.submitted_ids == ["a"]
    made.retire("a")
    await made.submitted("b")
    await second.leave()


async def test_leaving_after_the_loop_has_let_go(desk: MakeDesk) -> None:
    made = desk()
    events = made.generator.generate(generation_request("a", (1,), max_tokens=2), 10.0)
    await anext(events)
    pending = asyncio.ensure_future(anext(events))
    await made.submitted("a")
    made.sample("a", "xy")
    made.retire("a")
    await pending
    await events.aclose()
    assert made.is_idle
    assert made.loop.cancelled == []


async def test_time_runs_out_in_the_queue(desk: MakeDesk) -> None:
    made = desk(max_num_seqs=1)
    running = made.follow(generation_request("a", (1,)))
    await made.submitted("a")
    error = await failure(made.follow(generation_request("b", (1,)), timeout_s=0.01))
    assert isinstance(error, DeadlineError)
    assert error.message == "the request was not done after 0.01 s"
    assert error.metadata == {"timeout_s": "0.01"}
    assert made.loop.submitted_ids == ["a"], "dropped before it is computed"
    assert made.generator.num_live == 1
    await running.leave()


async def test_time_runs_out_while_it_is_computed(desk: MakeDesk) -> None:
    made = desk()
    error = await failure(made.follow(generation_request("a", (1,)), timeout_s=0.01))
    assert isinstance(error, DeadlineError)
    assert made.loop.cancelled == ["a"]
    made.retire("a")
    assert made.is_idle


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
async def test_a_request_that_comes_too_late_is_never_computed(desk: MakeDesk, timeout_s: float) -> None:
    made = desk()
    caller = made.follow(generation_request("a", (1,)), timeout_s)
    assert isinstance(await failure(caller), DeadlineError)
    assert caller.events == []
    assert made.loop.submitted == []
    assert made.is_idle


async def test_a_failed_step_is_told(desk: MakeDesk) -> None:
    made = desk()
    caller = made.follow(generation_request("a", (1,)))
    await made.submitted("a")
    made.sample("a", "x")
    made.retire("a", error="no memory")
    error = await failure(caller)
    assert isinstance(error, UnavailableError)
    assert (error.reason, error.message) == (Reason.ENGINE_FAILED, "a step failed: no memory")
    assert [type(event).__name__ for event in caller.events] == ["Started", "Delta"], "what came before is delivered"
    assert made.is_idle


async def test_what_the_pool_can_never_hold_leaves_nothing_behind(desk: MakeDesk) -> None:
    made = desk()
    error = await failure(made.follow(generation_request("a", (1,), max_tokens=40)))
    assert isinstance(error, InvalidRequestError)
    assert error.reason is Reason.REQUEST_EXCEEDS_POOL
    assert made.is_idle


async def test_a_stopped_loop_fails_what_it_was_computing(desk: MakeDesk) -> None:
    made = desk()
    caller = made.follow(generation_request("a", (1,)))
    await made.submitted("a")
    made.generator.on_events([LoopStopped("AssertionError: boom")])
    error = await failure(caller)
    assert isinstance(error, UnavailableError)
    assert (error.reason, error.message) == (Reason.ENGINE_FAILED, "the engine has stopped: AssertionError: boom")
    assert made.is_idle
    assert made.loop.cancelled == []


async def test_a_stopped_loop_fails_those_that_waited_behind(desk: MakeDesk) -> None:
    made = desk(max_num_seqs=1)
    running = made.follow(generation_request("a", (1,)))
    await made.submitted("a")
    waiting = made.follow(generation_request("b", (1,)))
    await until(lambda: made.admission.num_waiting == 1)
    made.generator.on_events([LoopStopped("boom")])
    for caller in (running, waiting):
        assert (await failure(caller)).reason is Reason.ENGINE_FAILED
    assert made.loop.submitted_ids == ["a"], "nobody would take it from the queue"
    assert made.is_idle


async def test_a_stopped_loop_lets_go_of_those_that_had_left(desk: MakeDesk) -> None:
    made = desk()
    caller = made.follow(generation_request("a", (1,)))
    await made.submitted("a")
    await caller.leave()
    made.generator.on_events([LoopStopped("boom")])
    assert made.is_idle


async def test_what_is_published_fits_the_queue_of_a_caller_that_does_not_read(desk: MakeDesk) -> None:
    made = desk()
    events = made.generator.generate(generation_request("a", (1,), max_tokens=3), 10.0)
    await anext(events)
    pending = asyncio.ensure_future(anext(events))
    await made.submitted("a")
    made.sample("a", "xy")
    made.retire("a", error="no memory")
    made.generator.on_events([LoopStopped("boom")])
    await pending
    await events.aclose()
    assert made.is_idle
