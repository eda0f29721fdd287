"""Blocks of several completions of one prompt."""

import pytest

from shared.kv.allocator import BlockAllocator, BlockCounts
from shared.worker.ledger import BlockLedger, Reservation

BLOCK_SIZE = 4
PROMPT = [1, 2, 3, 4, 5, 6]


def ledger(num_blocks: int = 9) -> BlockLedger:
    return BlockLedger(BlockAllocator(num_blocks), BLOCK_SIZE)


def reserve(account: BlockLedger, total_len: int, prompt: list[int] = PROMPT) -> Reservation:
    reservation = account.reserve(prompt, total_len, "")
    assert reservation is not None
    return reservation


def fork(account: BlockLedger, first: Reservation, total_len: int, prompt: list[int] = PROMPT) -> Reservation:
    forked = account.fork(first, len(prompt), total_len)
    assert forked is not None
    return forked


def test_full_blocks_are_shared_and_the_open_one_is_not() -> None:
    account = ledger()
    first = reserve(account, total_len=10)
    second = fork(account, first, total_len=10)
    assert len(first.block_table) == len(second.block_table) == 3
    assert second.block_table[0] == first.block_table[0]
    assert not set(second.block_table[1:]) & set(first.block_table)
    assert account.counts() == BlockCounts(free=3, cached=0, in_use=5)


def test_a_prompt_that_fills_its_blocks_shares_them_all() -> None:
    account = ledger()
    first = reserve(account, 10, [1, 2, 3, 4, 5, 6, 7, 8])
    second = fork(account, first, 10, [1, 2, 3, 4, 5, 6, 7, 8])
    assert second.block_table[:2] == first.block_table[:2]
    assert second.block_table[2] != first.block_table[2]


def test_too_few_blocks_take_none() -> None:
    account = ledger(num_blocks=5)
    first = reserve(account, total_len=10)
    assert account.fork(first, len(PROMPT), 10) is None
    assert account.counts() == BlockCounts(free=1, cached=0, in_use=3)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_released_in_any_order_all_come_back(order: tuple[int, ...]) -> None:
    account = ledger()
    first = reserve(account, total_len=9)
    account.commit(first, 6)
    reservations = [first, fork(account, first, 9), fork(account, first, 9)]
    for place in order:
        account.release(reservations[place])
    assert account.counts() == BlockCounts(free=7, cached=1, in_use=0), "the prompt's full block stays in the cache"


def test_what_a_completion_has_generated_is_shared_with_later_requests() -> None:
    account = ledger()
    first = reserve(account, total_len=10)
    account.commit(first, 6)
    second = fork(account, first, total_len=10)
    account.share(second, [*PROMPT, 70, 80, 90], "")
    account.share(first, [*PROMPT, 7, 8, 9], "")
    account.release(first)
    account.release(second)
    for generated in ([7, 8], [70, 80]):
        assert reserve(account, 12, [*PROMPT, *generated, 1]).num_cached_tokens == 8
    assert reserve(account, 12, [*PROMPT, 7, 80, 1]).num_cached_tokens == 4


def test_a_prompt_that_is_computed_whole_reuses_nothing_and_is_shared_all_the_same() -> None:
    account = ledger()
    hashes = account.prompt_hashes(PROMPT, "")
    first = account.reserve_hashed(hashes, 6, 8)
    assert first is not None
    account.commit(first, 6)
    whole = account.reserve_hashed(hashes, 6, 8, reuse=False)
    assert whole is not None
    assert whole.num_cached_tokens == 0
    assert not set(whole.block_table) & set(first.block_table)
    account.commit(whole, 6)
    account.release(first)
    account.release(whole)
    assert reserve(account, 8).num_cached_tokens == 4
