import pytest

from shared.kv.allocator import BlockAccountingError, BlockAllocator, BlockCounts, OutOfBlocksError


def test_block_0_is_never_allocated() -> None:
    allocator = BlockAllocator(4)
    assert sorted(allocator.allocate(3)) == [1, 2, 3]
    assert allocator.counts() == BlockCounts(free=0, cached=0, in_use=3)


def test_too_many_allocates_nothing() -> None:
    allocator = BlockAllocator(4)
    allocator.allocate(1)
    assert allocator.can_allocate(2)
    assert not allocator.can_allocate(3)
    with pytest.raises(OutOfBlocksError, match="3 blocks wanted, 2 free") as caught:
        allocator.allocate(3)
    assert (caught.value.num_wanted, caught.value.num_free) == (3, 2)
    assert allocator.counts() == BlockCounts(free=2, cached=0, in_use=1)


def test_a_block_is_free_when_its_last_reference_goes() -> None:
    allocator = BlockAllocator(2)
    block_ids = allocator.allocate(1)
    allocator.retain(block_ids)
    allocator.release(block_ids)
    assert allocator.num_free == 0
    allocator.release(block_ids)
    assert allocator.num_free == 1


def test_each_allocation_is_a_new_generation() -> None:
    generations = [0, 10, 20]
    allocator = BlockAllocator(3, generations)
    allocator.release(allocator.allocate(2))
    assert generations == [0, 11, 21]
    allocator.release(allocator.allocate(2))
    assert generations == [0, 12, 22]


def test_released_content_keeps_its_generation_until_it_is_allocated_again() -> None:
    generations = [0, 0]
    allocator = BlockAllocator(2, generations)
    allocator.release(allocator.allocate(1))
    assert generations == [0, 1]


def test_double_release_is_refused() -> None:
    allocator = BlockAllocator(3)
    first, second = allocator.allocate(2)
    allocator.release([first])
    with pytest.raises(BlockAccountingError, match=f"block {first} is released more often"):
        allocator.release([first])
    with pytest.raises(BlockAccountingError):
        allocator.release([second, second])
    assert allocator.counts() == BlockCounts(free=2, cached=0, in_use=0)


def test_a_free_block_cannot_be_retained_or_kept() -> None:
    allocator = BlockAllocator(2)
    with pytest.raises(BlockAccountingError, match="block 1 is free"):
        allocator.retain([1])
    with pytest.raises(BlockAccountingError, match="block 1 is not in use"):
        allocator.keep(1)


@pytest.mark.parametrize("block_id", [-1, 0, 3])
def test_ids_outside_the_pool_and_the_scratch_block_are_refused(block_id: int) -> None:
    allocator = BlockAllocator(3)
    for use in (allocator.retain, allocator.release):
        with pytest.raises(BlockAccountingError, match=r"is not one of 1 … 2"):
            use([block_id])


def test_kept_blocks_stay_idle_and_the_least_recently_released_goes_first() -> None:
    allocator = BlockAllocator(4)
    evicted: list[int] = []
    allocator.on_evict(evicted.append)
    a, b, c = allocator.allocate(3)
    for block_id in (a, b, c):
        allocator.keep(block_id)
    allocator.release([b])
    allocator.release([a])
    assert allocator.counts() == BlockCounts(free=0, cached=2, in_use=1)
    allocator.retain([b])
    allocator.release([b])
    assert allocator.allocate(1) == [a]
    assert evicted == [a]
    allocator.release([a])
    assert allocator.allocate(1) == [a], "an evicted block is kept no more, and free ones go before idle ones"
    assert allocator.allocate(1) == [b]
    assert not allocator.can_allocate(1), "c is kept and in use: never evicted"


def test_of_a_prefix_the_end_goes_first() -> None:
    allocator = BlockAllocator(4)
    table = allocator.allocate(3)
    for block_id in table:
        allocator.keep(block_id)
    allocator.release(table)
    assert [allocator.allocate(1)[0] for _ in range(3)] == [table[2], table[1], table[0]]


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="num_blocks is 1"):
        BlockAllocator(1)
    with pytest.raises(ValueError, match="2 generations for 3 blocks"):
        BlockAllocator(3, [0, 0])
    with pytest.raises(BlockAccountingError):
        BlockAllocator(3).allocate(-1)


def test_an_allocator_has_one_listener() -> None:
    allocator = BlockAllocator(3)
    allocator.on_evict(lambda _: None)
    with pytest.raises(BlockAccountingError, match="two caches"):
        allocator.on_evict(lambda _: None)
