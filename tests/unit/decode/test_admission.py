import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from decode_service.admission import Admission
from shared.errors import InvalidRequestError, QueueFullError, Reason
from shared.kv.allocator import BlockAllocator, BlockCounts
from shared.worker.ledger import BlockLedger, Reservation
from tests.unit.decode.requests import embeddings_request, generation_request, many_request, vectors_of

ALL_FREE = BlockCounts(free=8, cached=0, in_use=0)


class Desk:
    """An admission over 8 blocks of 4 tokens; `granted` tells the order of grants."""

    def __init__(self, max_num_seqs: int = 2, max_queue_len: int = 4) -> None:
        self.ledger = BlockLedger(BlockAllocator(9), 4)
        self.admission = Admission(self.ledger, max_num_seqs, max_queue_len)
        self.granted: list[str] = []
        self.tasks: list[asyncio.Task[Reservation]] = []

    async def ask(self, request_id: str, num_blocks: int = 1, priority: int = 0) -> asyncio.Task[Reservation]:
        """Begins to wait for a request of so many blocks; returns when it waits or has been granted."""
        task = asyncio.create_task(self._reserve(request_id, num_blocks, priority))
        self.tasks.append(task)
        await asyncio.sleep(0)
        return task

    async def _reserve(self, request_id: str, num_blocks: int, priority: int) -> Reservation:
        prompt = (ord(request_id), 0, 0)
        request = generation_request(request_id, prompt, max_tokens=4 * num_blocks - 3, priority=priority)
        (reservation,) = await self.admission.reserve(request)
        self.granted.append(request_id)
        return reservation

    @property
    def numbers(self) -> tuple[int, int]:
        """Admitted and waiting."""
        return self.admission.num_admitted, self.admission.num_waiting


@asynccontextmanager
async def desk(max_num_seqs: int = 2, max_queue_len: int = 4) -> AsyncIterator[Desk]:
    made = Desk(max_num_seqs, max_queue_len)
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


async def test_prompt_and_completion_are_reserved_at_once() -> None:
    async with desk() as made:
        (reservation,) = await made.admission.reserve(generation_request(prompt=(1, 2, 3, 4, 5), max_tokens=4))
        assert len(reservation.block_table) == 3, "nine tokens in blocks of four"
        assert made.numbers == (1, 0)
        made.admission.release(reservation)
        assert made.numbers == (0, 0)
        assert made.ledger.counts() == ALL_FREE


async def test_no_more_are_admitted_than_there_are_rows() -> None:
    async with desk(max_num_seqs=2) as made:
        first = await made.ask("a")
        await made.ask("b")
        third = await made.ask("c")
        assert made.granted == ["a", "b"]
        assert made.numbers == (2, 1)
        made.admission.release(await first)
        await third
        assert made.numbers == (2, 0)


async def test_a_large_head_holds_the_rest_until_it_fits() -> None:
    async with desk(max_num_seqs=8) as made:
        first = await made.ask("a", num_blocks=6)
        await made.ask("b", num_blocks=3)
        await made.ask("c", num_blocks=2)
        assert made.granted == ["a"], "c would fit"
        made.admission.release(await first)
        await asyncio.gather(*made.tasks)
        assert made.granted == ["a", "b", "c"]


async def test_higher_priority_goes_first_then_arrival() -> None:
    async with desk(max_num_seqs=1) as made:
        first = await made.ask("a")
        for name, priority in (("b", 0), ("c", 7), ("d", 0), ("e", 7)):
            await made.ask(name, priority=priority)
        running = first
        for name in "ceb":
            made.admission.release(await running)
            running = made.tasks["abcde".index(name)]
        await running
        assert made.granted == ["a", "c", "e", "b"]


async def test_the_queue_is_bounded() -> None:
    async with desk(max_num_seqs=1, max_queue_len=2) as made:
        for name in "abc":
            await made.ask(name)
        with pytest.raises(QueueFullError, match="2 requests wait, which is the limit") as caught:
            await made.admission.reserve(generation_request("d"))
        assert caught.value.retry_after_s == 1.0
        assert caught.value.metadata == {"queue_len": "2", "max_queue_len": "2"}
        assert made.numbers == (1, 2)


async def test_what_the_pool_can_never_hold_is_refused_with_numbers() -> None:
    async with desk() as made:
        with pytest.raises(InvalidRequestError) as caught:
            await made.admission.reserve(generation_request(prompt=(1,) * 20, max_tokens=13))
        assert caught.value.reason is Reason.REQUEST_EXCEEDS_POOL
        assert caught.value.message == (
            "a prompt of 20 tokens, and completions to 33 tokens with it, need 9 KV blocks; the decode pool has 8"
        )
        assert caught.value.metadata == {
            "prompt_tokens": "20",
            "max_total_tokens": "33",
            "completions": "1",
            "needed_blocks": "9",
            "pool_blocks": "8",
        }
        await made.admission.reserve(generation_request(prompt=(1,) * 20, max_tokens=12))


async def test_completions_share_the_full_blocks_of_their_prompt() -> None:
    async with desk(max_num_seqs=3) as made:
        reservations = await made.admission.reserve(many_request(), num_completions=3)
        tables = [reservation.block_table for reservation in reservations]
        assert [len(table) for table in tables] == [3, 3, 3], "nine tokens in blocks of four"
        assert len({table[0] for table in tables}) == 1
        assert len({block for table in tables for block in table}) == 7
        assert made.numbers == (3, 0)
        for reservation, in_use in zip(reservations, (5, 3, 0), strict=True):
            made.admission.release(reservation)
            assert made.ledger.counts().in_use == in_use
        assert made.numbers == (0, 0)
        assert made.ledger.counts() == ALL_FREE


async def test_several_wait_for_as_many_rows_and_hold_the_rest_meanwhile() -> None:
    async with desk(max_num_seqs=4) as made:
        first, second = await made.ask("a"), await made.ask("b")
        many = asyncio.create_task(made.admission.reserve(many_request(), num_completions=3))
        await asyncio.sleep(0)
        follower = await made.ask("c")
        assert made.numbers == (2, 2), "two rows are free, and the head needs three"
        made.admission.release(await first)
        reservations = await many
        assert (made.granted, made.numbers) == (["a", "b"], (4, 1))
        made.admission.release(await second)
        await follower
        assert made.numbers == (4, 0)
        for reservation in reservations:
            made.admission.release(reservation)
        assert made.numbers == (1, 0)


async def test_several_wait_for_blocks_for_all_of_them_and_hold_none_meanwhile() -> None:
    async with desk(max_num_seqs=8) as made:
        first = await made.ask("a", num_blocks=2)
        many = asyncio.create_task(made.admission.reserve(many_request(), num_completions=3))
        await asyncio.sleep(0)
        assert made.ledger.counts() == BlockCounts(free=6, cached=0, in_use=2), "seven are needed"
        follower = await made.ask("b")
        assert made.numbers == (1, 2)
        made.admission.release(await first)
        assert len(await many) == 3
        await follower
        assert made.ledger.counts().in_use == 8


async def test_several_that_leave_in_the_turn_of_their_grant_give_all_back() -> None:
    async with desk(max_num_seqs=3) as made:
        first = await made.ask("a")
        many = asyncio.create_task(made.admission.reserve(many_request(), num_completions=3))
        await asyncio.sleep(0)
        made.admission.release(await first)
        assert made.numbers == (3, 0)
        many.cancel()
        await asyncio.wait({many})
        assert many.cancelled()
        assert made.numbers == (0, 0)
        assert made.ledger.counts() == ALL_FREE


async def test_several_that_the_pool_can_never_hold_are_refused_with_numbers() -> None:
    async with desk(max_num_seqs=4) as made:
        with pytest.raises(InvalidRequestError) as caught:
            await made.admission.reserve(many_request(4), num_completions=4)
        assert caught.value.reason is Reason.REQUEST_EXCEEDS_POOL
        assert caught.value.metadata == {
            "prompt_tokens": "6",
            "max_total_tokens": "9",
            "completions": "4",
            "needed_blocks": "9",
            "pool_blocks": "8",
        }
        assert made.numbers == (0, 0)
        assert len(await made.admission.reserve(many_request(4), num_completions=3)) == 3, "one had ended"


async def test_a_prompt_whose_logprobs_are_wanted_shares_no_cached_block() -> None:
    async with desk(max_num_seqs=4) as made:
        (first,) = await made.admission.reserve(many_request(1))
        made.ledger.commit(first, 6)
        whole = await made.admission.reserve(many_request(2, prompt_logprobs=0), num_completions=2)
        assert whole[0].num_cached_tokens == 0
        assert whole[0].block_table[0] == whole[1].block_table[0] != first.block_table[0]
        for reservation in (first, *whole):
            made.admission.release(reservation)
        assert made.ledger.counts().in_use == 0


async def test_a_waiter_that_leaves_leaves_the_queue() -> None:
    async with desk(max_num_seqs=1) as made:
        await made.ask("a")
        waiter = await made.ask("b")
        waiter.cancel()
        await asyncio.wait({waiter})
        assert waiter.cancelled()
        assert made.numbers == (1, 0)


async def test_a_head_that_leaves_lets_the_next_in() -> None:
    async with desk(max_num_seqs=8) as made:
        await made.ask("a", num_blocks=6)
        head = await made.ask("b", num_blocks=3)
        follower = await made.ask("c", num_blocks=2)
        head.cancel()
        await follower
        assert made.granted == ["a", "c"]


async def test_one_that_leaves_in_the_turn_of_its_grant_gives_it_back() -> None:
    async with desk(max_num_seqs=1) as made:
        first = await made.ask("a", num_blocks=8)
        waiter = await made.ask("b", num_blocks=8)
        made.admission.release(await first)
        waiter.cancel()
        await asyncio.wait({waiter})
        assert waiter.cancelled()
        assert made.numbers == (0, 0)
        assert made.ledger.counts() == ALL_FREE


async def test_one_that_left_just_before_its_grant_is_passed_over() -> None:
    async with desk(max_num_seqs=1) as made:
        first = await made.ask("a")
        leaving = await made.ask("b")
        follower = await made.ask("c")
        reservation = await first
        leaving.cancel()
        made.admission.release(reservation)
        await follower
        assert leaving.cancelled()
        assert made.granted == ["a", "c"]
        made.admission.release(await follower)
        assert made.numbers == (0, 0)
        assert made.ledger.counts() == ALL_FREE


async def test_a_cached_prefix_is_shared() -> None:
    async with desk() as made:
        prompt = (1, 2, 3, 4, 5)
        (first,) = await made.admission.reserve(generation_request("a", prompt))
        made.ledger.commit(first, 5)
        (second,) = await made.admission.reserve(generation_request("b", prompt))
        assert second.num_cached_tokens == 4
        assert second.block_table[0] == first.block_table[0]


async def test_a_cached_prefix_of_vectors_is_shared_with_equal_ones_only() -> None:
    async with desk(max_num_seqs=4) as made:
        (first,) = await made.admission.reserve(embeddings_request("a", vectors_of(1, 2, 3, 4, 5), max_tokens=1))
        made.ledger.commit(first, 5)
        (equal,) = await made.admission.reserve(embeddings_request("b", vectors_of(1, 2, 3, 4, 6), max_tokens=1))
        (other,) = await made.admission.reserve(embeddings_request("c", vectors_of(1, 2, 3, 5, 5), max_tokens=1))
        assert (equal.num_cached_tokens, other.num_cached_tokens) == (4, 0)
        assert equal.block_table[0] == first.block_table[0]


async def test_the_queue_is_bounded_also_while_vectors_are_hashed() -> None:
    """Both find room before their vectors are hashed, and one of them does not afterwards."""
    async with desk(max_num_seqs=1, max_queue_len=1) as made:
        (running,) = await made.admission.reserve(generation_request("a"))
        requests = [embeddings_request(name, vectors_of(1, 2, 3), max_tokens=1) for name in "bc"]
        asking = [asyncio.create_task(made.admission.reserve(request)) for request in requests]
        (refused,), (waiting,) = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        assert isinstance(refused.exception(), QueueFullError)
        assert made.numbers == (1, 1)
        made.admission.release(running)
        made.admission.release(*await waiting)
        assert made.ledger.counts() == ALL_FREE


async def test_leaving_while_vectors_are_hashed_leaves_nothing() -> None:
    async with desk() as made:
        asking = asyncio.create_task(made.admission.reserve(embeddings_request("a", vectors_of(1), max_tokens=1)))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()
        assert made.numbers == (0, 0)
        assert made.ledger.counts() == ALL_FREE


async def test_a_full_queue_refuses_vectors_before_they_are_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(max_num_seqs=1, max_queue_len=1) as made:
        await made.ask("a")
        await made.ask("b")
        monkeypatch.setattr(made.ledger, "prompt_hashes", None)
        with pytest.raises(QueueFullError):
            await made.admission.reserve(embeddings_request("c", vectors_of(1, 2, 3), max_tokens=1))
        assert made.numbers == (1, 1)
