import numpy as np
import numpy.typing as npt
import pytest

from shared.kv.allocator import BlockAllocator, BlockCounts
from shared.worker.ledger import BlockLedger, Reservation

BLOCK_SIZE = 4


def ledger(num_blocks: int = 9) -> BlockLedger:
    return BlockLedger(BlockAllocator(num_blocks), BLOCK_SIZE)


def reserve(account: BlockLedger, prompt: list[int], total_len: int, salt: str = "") -> Reservation:
    reservation = account.reserve(prompt, total_len, salt)
    assert reservation is not None
    return reservation


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_for_tokens(num_tokens: int, num_blocks: int) -> None:
    assert ledger().num_blocks_for(num_tokens) == num_blocks


def test_a_reservation_covers_prompt_and_completion() -> None:
    account = ledger()
    reservation = reserve(account, [1, 2, 3, 4, 5], total_len=13)
    assert len(reservation.block_table) == 4
    assert reservation.num_cached_tokens == 0
    assert account.counts() == BlockCounts(free=4, cached=0, in_use=4)
    account.release(reservation)
    assert account.counts() == BlockCounts(free=8, cached=0, in_use=0)


def test_too_little_room_reserves_nothing() -> None:
    account = ledger()
    reserve(account, [1], total_len=24)
    assert account.reserve([1], total_len=12, cache_salt="") is None
    assert account.num_free == 2


def test_committed_blocks_are_shared_and_the_last_token_is_always_left() -> None:
    account = ledger()
    first = reserve(account, [1, 2, 3, 4, 5, 6, 7, 8], total_len=8)
    account.commit(first, 8)
    same = reserve(account, [1, 2, 3, 4, 5, 6, 7, 8], total_len=8)
    assert same.num_cached_tokens == 4, "all eight are cached, but the last one's logits are wanted"
    assert same.block_table[0] == first.block_table[0]
    assert same.block_table[1] != first.block_table[1]
    longer = reserve(account, [1, 2, 3, 4, 5, 6, 7, 8, 9], total_len=9)
    assert longer.num_cached_tokens == 8
    assert longer.block_table[:2] == first.block_table


def test_only_computed_blocks_are_shared() -> None:
    account = ledger()
    first = reserve(account, list(range(12)), total_len=12)
    account.commit(first, 7)
    assert reserve(account, list(range(12)), total_len=12).num_cached_tokens == 4


def test_another_salt_shares_nothing() -> None:
    account = ledger()
    account.commit(reserve(account, [1, 2, 3, 4, 5], total_len=5, salt="a"), 5)
    assert reserve(account, [1, 2, 3, 4, 5], total_len=5, salt="b").num_cached_tokens == 0


def test_a_failed_reservation_returns_the_shared_blocks() -> None:
    account = ledger(num_blocks=5)
    first = reserve(account, [1, 2, 3, 4, 5], total_len=8)
    account.commit(first, 5)
    assert account.reserve([1, 2, 3, 4, 5], total_len=20, cache_salt="") is None
    account.release(first)
    assert account.counts() == BlockCounts(free=3, cached=1, in_use=0)


def test_a_conversation_goes_on_from_its_own_completion() -> None:
    account = ledger()
    turn = reserve(account, [1, 2, 3], total_len=8)
    account.share(turn, [1, 2, 3, 50, 51, 52, 53], cache_salt="")
    account.release(turn)
    assert reserve(account, [1, 2, 3, 50, 51, 52, 53, 60, 61], total_len=9).num_cached_tokens == 4


def test_a_retained_block_outlives_its_reservation() -> None:
    account = ledger()
    reservation = reserve(account, [1], total_len=1)
    account.retain(reservation.block_table)
    account.release(reservation)
    assert account.counts().in_use == 1
    account.release_blocks(reservation.block_table)
    assert account.counts() == BlockCounts(free=8, cached=0, in_use=0)


def rows(*values: float) -> npt.NDArray[np.float32]:
    """A vector of two equal values for each one given."""
    return np.repeat(np.array(values, np.float32)[:, None], 2, axis=1)


def test_equal_vectors_share_blocks_and_ids_never_do() -> None:
    account = ledger()
    placeholders, vectors = [0] * 5, rows(0, 0, 0, 0, 0)
    first = account.reserve(placeholders, 5, "", vectors)
    assert first is not None
    account.commit(first, 5)
    again = account.reserve(placeholders, 5, "", vectors.copy())
    other = account.reserve(placeholders, 5, "", rows(0, 0, 0, 1, 0))
    of_ids = account.reserve(placeholders, 5, "")
    assert again is not None
    assert other is not None
    assert of_ids is not None
    assert again.block_table[0] == first.block_table[0]
    assert (again.num_cached_tokens, other.num_cached_tokens, of_ids.num_cached_tokens) == (4, 0, 0)


def test_hashes_made_beforehand_reserve_the_same() -> None:
    account = ledger()
    first = account.reserve([0] * 5, 5, "s", rows(1, 2, 3, 4, 5))
    assert first is not None
    account.commit(first, 5)
    hashes = account.prompt_hashes([0] * 5, "s", rows(1, 2, 3, 4, 5))
    again = account.reserve_hashed(hashes, prompt_len=5, total_len=9)
    assert again is not None
    assert (len(again.block_table), again.num_cached_tokens) == (3, 4)


def test_a_block_of_vectors_and_generated_tokens_is_shared_as_both() -> None:
    account = ledger()
    vectors = rows(1, 2, 3, 4, 5, 6)
    turn = account.reserve([0] * 6, 12, "", vectors)
    assert turn is not None
    account.commit(turn, 6)
    account.share(turn, [0] * 6 + [50, 51, 52], "", vectors)
    account.release(turn)
    generated = account.prompt_hashes([0] * 6 + [50, 51, 9], "", vectors)
    found = account.reserve_hashed(generated, prompt_len=9, total_len=9)
    assert found is not None
    assert found.num_cached_tokens == 8
    for other in ([0] * 6 + [51, 50, 9], [0] * 9):
        reservation = account.reserve_hashed(account.prompt_hashes(other, "", vectors), prompt_len=9, total_len=9)
        assert reservation is not None
        assert reservation.num_cached_tokens == 4
