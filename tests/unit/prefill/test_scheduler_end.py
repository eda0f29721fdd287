"""Every way a request ends, and that no block stays behind."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from prefill_service.job import Load
from shared.constraints.constraint import Constraint, ConstraintKind
from shared.errors import InvalidRequestError, Reason, UnavailableError
from shared.kv.allocator import BlockCounts
from shared.worker.step_loop import ChunkLanded, LoopStopped, Retired, TokenSampled
from tests.unit.prefill.bench import Bench, spans, taken, task
from tests.unit.prefill.bench import handles as handles_of

MakeBench = Callable[..., Bench]


def num_held(made: Bench) -> tuple[int, int]:
    """Blocks in use and live handles."""
    return made.counts.in_use, len(made.exports)


def test_closing_a_waiting_request(bench: MakeBench) -> None:
    made = bench(max_num_seqs=1)
    made.submit("a", 8)
    before = made.counts
    made.scheduler.close(made.submit("b", 8))
    assert made.counts == before
    assert made.scheduler.load().num_waiting == 0
    assert made.loop.cancelled == []


def test_closing_a_computing_request_waits_for_its_step(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 8)
    made.scheduler.close(job)
    assert made.loop.cancelled == ["a"]
    assert num_held(made) == (2, 0), "a step may still write to the blocks"
    made.scheduler.on_events([Retired("a")])
    assert made.counts == BlockCounts(free=8, cached=0, in_use=0)


def test_a_step_that_ends_after_the_close_exports_nothing(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 10)
    taken(job)
    made.scheduler.close(job)
    made.scheduler.on_events([ChunkLanded("a", 8)])
    made.scheduler.on_events([ChunkLanded("a", 10), TokenSampled("a", 1, None), Retired("a")])
    assert taken(job) == []
    assert num_held(made) == (0, 0)
    assert made.counts == BlockCounts(free=6, cached=2, in_use=0), "what was computed may be shared"


def test_closing_between_chunks_frees_the_exported_blocks_too(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 10)
    made.land("a", 8)
    assert num_held(made) == (3, 1)
    made.scheduler.close(job)
    assert num_held(made) == (3, 0)
    made.scheduler.on_events([Retired("a")])
    assert num_held(made) == (0, 0)


def test_closing_after_the_last_chunk(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 10)
    made.land("a", 4)
    made.finish("a", 10)
    assert num_held(made) == (3, 2)
    made.scheduler.close(job)
    assert num_held(made) == (0, 0)
    assert made.loop.cancelled == [], "the step loop let go of it long ago"


def test_closing_after_all_is_acknowledged(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 10)
    made.finish("a", 10)
    for ready in handles_of(job):
        made.scheduler.acknowledge(job, ready.handle.handle_id)
    made.scheduler.close(job)
    assert num_held(made) == (0, 0)


def test_a_closed_request_makes_room_for_the_next_when_it_retires(bench: MakeBench) -> None:
    made = bench(max_num_seqs=1)
    job = made.submit("a", 8)
    made.submit("b", 8)
    made.scheduler.close(job)
    assert made.loop.submitted_ids == ["a"]
    made.scheduler.on_events([Retired("a")])
    assert made.loop.submitted_ids == ["a", "b"]


def test_a_constraint_that_cannot_go_on_is_the_requests_fault(bench: MakeBench) -> None:
    made = bench()
    asked = task("a", 10)
    constraint = Constraint(ConstraintKind.REGEX, "a*")
    job = made.scheduler.submit(replace(asked, sampling=replace(asked.sampling, constraint=constraint)))
    made.scheduler.on_events([Retired("a", "too many items", is_constraint=True)])
    _accepted, error = taken(job)
    assert isinstance(error, InvalidRequestError)
    assert error.reason is Reason.CONSTRAINT_INVALID
    assert error.metadata == {"field": "sampling.regex", "detail": "too many items"}
    assert num_held(made) == (0, 0)


def test_a_failed_step_is_told_and_frees_all(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 10)
    made.land("a", 4)
    made.retire("a", error="no memory")
    _accepted, _ready, error = taken(job)
    assert isinstance(error, UnavailableError)
    assert error.reason is Reason.PREFILL_FAILED
    assert error.message == "a prefill step failed: no memory"
    assert num_held(made) == (1, 1), "the exported block lives until the stream ends"
    made.scheduler.close(job)
    assert num_held(made) == (0, 0)


def test_the_longest_stream_of_messages_fits_the_outbox(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 12)
    for end in (4, 8):
        made.land("a", end)
    made.finish("a", 12)
    made.scheduler.on_events([LoopStopped("gone")])
    _accepted, *ready, error = taken(job)
    assert len(ready) == 3
    assert isinstance(error, UnavailableError)


def test_a_stopped_loop_fails_everybody(bench: MakeBench) -> None:
    made = bench(max_num_seqs=2)
    computing, partly, waiting = made.submit("a", 10), made.submit("b", 10), made.submit("c", 8)
    made.land("b", 8)
    made.scheduler.on_events([LoopStopped("AssertionError: boom")])
    for job in (computing, partly, waiting):
        error = taken(job)[-1]
        assert isinstance(error, UnavailableError)
        assert error.reason is Reason.ENGINE_FAILED
        assert error.message == "the engine has stopped: AssertionError: boom"
        made.scheduler.close(job)
    assert num_held(made) == (0, 0)
    assert made.scheduler.load() == Load(0, 0, num_waiting_tokens=0, num_free_blocks=8, num_blocks=8)
    assert made.loop.cancelled == []


def test_a_loop_that_was_asked_to_stop_says_so(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 10)
    made.scheduler.on_events([LoopStopped(None)])
    error = taken(job)[-1]
    assert isinstance(error, UnavailableError)
    assert error.message == "the engine has stopped: the service stops"


def test_a_stopped_loop_frees_what_was_closed_before(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 10)
    made.scheduler.close(job)
    taken(job)
    made.scheduler.on_events([LoopStopped("gone")])
    assert taken(job) == []
    assert made.scheduler.load().num_waiting_tokens == 0
    assert num_held(made) == (0, 0)


def test_nothing_is_taken_after_the_loop_has_stopped(bench: MakeBench) -> None:
    made = bench()
    made.scheduler.on_events([LoopStopped("gone")])
    with pytest.raises(UnavailableError, match="the engine has stopped: gone") as caught:
        made.submit("a", 10)
    assert caught.value.reason is Reason.ENGINE_FAILED
    assert made.loop.submitted == []


def test_two_requests_of_one_prefix_free_it_once(bench: MakeBench) -> None:
    made = bench()
    first = made.submit("a", 9)
    made.land("a", 8)
    second = made.submit("ab", 9)
    assert made.loop.submitted[1].num_computed_tokens == 8
    made.scheduler.close(first)
    made.scheduler.on_events([Retired("a")])
    made.finish("ab", 9)
    assert spans(handles_of(second)) == [(0, 8, False, None), (8, 9, True, 42)]
    made.scheduler.close(second)
    assert made.counts == BlockCounts(free=6, cached=2, in_use=0)
