from collections.abc import Callable

import pytest

from prefill_service.job import Accepted, Load
from shared.errors import DuplicateRequestError, QueueFullError, Reason
from shared.kv.allocator import BlockCounts
from tests.unit.prefill.bench import GREEDY, MAX_MODEL_LEN, Bench, taken

MakeBench = Callable[..., Bench]


def test_an_admitted_task_is_accepted_and_submitted(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 10, priority=3)
    assert taken(job) == [Accepted(0)]
    (sequence,) = made.loop.submitted
    assert sequence.request_id == "a"
    assert sequence.token_ids == [97, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert (sequence.prompt_len, sequence.num_computed_tokens) == (10, 0)
    assert sequence.block_table == (1, 2, 3), "ten tokens in blocks of four"
    assert sequence.sampling is GREEDY
    assert sequence.priority == 3
    assert sequence.max_total_len == MAX_MODEL_LEN


def test_no_more_run_than_there_are_rows(bench: MakeBench) -> None:
    made = bench(max_num_seqs=2)
    for name in "abc":
        made.submit(name, 4)
    assert made.loop.submitted_ids == ["a", "b"]
    made.finish("a", 4)
    assert made.loop.submitted_ids == ["a", "b", "c"]


def test_the_queue_is_bounded(bench: MakeBench) -> None:
    made = bench(max_num_seqs=1, max_queue_len=2)
    for name in "abc":
        made.submit(name, 4)
    with pytest.raises(QueueFullError, match="2 prompts wait for prefill, which is the limit") as caught:
        made.submit("d", 4)
    assert caught.value.reason is Reason.QUEUE_FULL
    assert caught.value.retry_after_s == 1.0
    assert caught.value.metadata == {"queue_len": "2", "max_queue_len": "2"}
    made.finish("a", 4)
    made.submit("d", 4)
    assert made.loop.submitted_ids == ["a", "b"], "a place in the queue, not a row"


def test_higher_priority_goes_first_then_arrival(bench: MakeBench) -> None:
    made = bench(max_num_seqs=1)
    made.submit("a", 4)
    made.submit("b", 4, priority=0)
    made.submit("c", 4, priority=5)
    made.submit("d", 4, priority=0)
    made.submit("e", 4, priority=5)
    for name in "aceb":
        made.finish(name, 4)
    assert made.loop.submitted_ids == ["a", "c", "e", "b", "d"]


def test_a_head_of_line_that_does_not_fit_holds_the_rest(bench: MakeBench) -> None:
    made = bench()
    big = made.submit("a", 24)
    made.submit("b", 12)
    made.submit("c", 4)
    assert made.counts == BlockCounts(free=2, cached=0, in_use=6)
    assert made.loop.submitted_ids == ["a"], "c would fit into two blocks, but b came before"
    made.finish("a", 24)
    assert made.loop.submitted_ids == ["a"], "the blocks of a are still exported"
    made.scheduler.close(big)
    assert made.loop.submitted_ids == ["a", "b", "c"]


def test_a_waiting_head_that_leaves_lets_the_next_in(bench: MakeBench) -> None:
    made = bench()
    made.submit("a", 24)
    head = made.submit("b", 12)
    made.submit("c", 4)
    made.scheduler.close(head)
    assert made.loop.submitted_ids == ["a", "c"]


def test_an_acknowledgement_makes_room_for_the_next(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 24)
    made.submit("b", 12)
    made.finish("a", 24)
    (handle_id,) = job.exports
    made.scheduler.acknowledge(job, handle_id)
    assert made.loop.submitted_ids == ["a", "b"]


def test_a_live_duplicate_is_refused_and_does_not_disturb_the_first(bench: MakeBench) -> None:
    made = bench()
    first = made.submit("a", 8)
    before = made.counts
    with pytest.raises(DuplicateRequestError, match="request 'a' is live on this prefill service") as caught:
        made.submit("a", 4)
    assert caught.value.metadata == {"request_id": "a"}
    assert made.counts == before
    made.finish("a", 8)
    assert [type(message).__name__ for message in taken(first)] == ["Accepted", "HandleReady"]


def test_an_id_is_in_use_until_its_last_step_is_over(bench: MakeBench) -> None:
    made = bench()
    made.scheduler.close(made.submit("a", 8))
    with pytest.raises(DuplicateRequestError):
        made.submit("a", 8)
    made.retire("a")
    made.submit("a", 8)
    assert made.loop.submitted_ids == ["a", "a"]


def test_an_id_may_be_used_again_after_its_stream(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 4)
    made.finish("a", 4)
    with pytest.raises(DuplicateRequestError):
        made.submit("a", 4)
    made.scheduler.close(job)
    made.submit("a", 4)
    assert made.loop.submitted_ids == ["a", "a"]


def test_load(bench: MakeBench) -> None:
    made = bench(max_num_seqs=1)
    made.submit("a", 10)
    made.submit("b", 5)
    assert made.scheduler.load() == Load(1, 1, num_waiting_tokens=15, num_free_blocks=5, num_blocks=8)
    made.land("a", 8)
    assert made.scheduler.load() == Load(1, 1, num_waiting_tokens=7, num_free_blocks=5, num_blocks=8)
    made.finish("a", 10)
    assert made.scheduler.load() == Load(1, 0, num_waiting_tokens=5, num_free_blocks=3, num_blocks=8)


def test_a_change_of_load_is_announced_once_each(bench: MakeBench) -> None:
    made = bench()
    for change in (
        lambda: made.submit("a", 4),
        lambda: made.land("a", 4),
        lambda: made.retire("a"),
        lambda: made.scheduler.close(made.submit("b", 4)),
    ):
        changed = made.scheduler.load_changed
        assert not changed.is_set()
        change()
        assert changed.is_set()


def test_tokens_are_counted(bench: MakeBench) -> None:
    made = bench()
    job = made.submit("a", 9)
    made.finish("a", 9)
    made.scheduler.close(job)
    made.submit("a", 9)
    samples = {sample.name: sample.value for metric in made.metrics.registry.collect() for sample in metric.samples}
    assert samples["baton_prefill_prompt_tokens_total"] == 18
    assert samples["baton_prefill_cached_tokens_total"] == 8, "the second time two full blocks are there"
    assert samples["baton_prefill_generated_tokens_total"] == 1
