import hashlib
import struct

import pytest

from shared.kv.allocator import BlockAccountingError, BlockAllocator, BlockCounts
from shared.kv.prefix_cache import PrefixCache, block_hashes


def test_hashes_are_chained_over_full_blocks() -> None:
    root = hashlib.sha256(b"salt").digest()
    first = hashlib.sha256(root + struct.pack("=3I", 7, 8, 9)).digest()
    second = hashlib.sha256(first + struct.pack("=3I", 1, 2, 2**32 - 1)).digest()
    assert block_hashes([7, 8, 9, 1, 2, 2**32 - 1, 5], "salt", 3) == [first, second]


@pytest.mark.parametrize(("num_tokens", "num_hashes"), [(0, 0), (1, 0), (3, 0), (4, 1), (7, 1), (8, 2)])
def test_only_full_blocks_have_a_hash(num_tokens: int, num_hashes: int) -> None:
    assert len(block_hashes(range(num_tokens), "", 4)) == num_hashes


def test_a_block_depends_on_what_is_before_it_and_on_the_salt() -> None:
    hashes = block_hashes([1, 2, 3, 4], "", 2)
    assert block_hashes([9, 2, 3, 4], "", 2)[1] != hashes[1]
    assert block_hashes([1, 2, 3, 4], "a", 2)[0] != hashes[0]
    assert block_hashes([1, 2, 9, 9], "", 2)[0] == hashes[0]


def test_match_finds_the_longest_prefix_and_retains_it() -> None:
    allocator = BlockAllocator(5)
    cache = PrefixCache(allocator, block_size=2)
    table = allocator.allocate(2)
    cache.insert(cache.block_hashes([1, 2, 3, 4], ""), table)
    allocator.release(table)
    assert allocator.counts() == BlockCounts(free=2, cached=2, in_use=0)

    assert cache.match(cache.block_hashes([1, 2, 9, 9], "")) == table[:1]
    assert allocator.counts() == BlockCounts(free=2, cached=1, in_use=1)
    assert cache.match(cache.block_hashes([1, 2, 3, 4, 5, 6], "")) == table
    assert [allocator.num_refs(block_id) for block_id in table] == [2, 1]
    assert cache.match(cache.block_hashes([3, 4], "")) == []
    assert cache.match(cache.block_hashes([1, 2], "other")) == []


def test_a_block_in_use_can_be_matched() -> None:
    allocator = BlockAllocator(3)
    cache = PrefixCache(allocator, block_size=1)
    table = allocator.allocate(1)
    cache.insert(cache.block_hashes([1], ""), table)
    assert cache.match(cache.block_hashes([1], "")) == table
    assert allocator.num_refs(table[0]) == 2


def test_an_existing_entry_stays() -> None:
    allocator = BlockAllocator(4)
    cache = PrefixCache(allocator, block_size=1)
    hashes = cache.block_hashes([1], "")
    first, second = allocator.allocate(1), allocator.allocate(1)
    cache.insert(hashes, first)
    cache.insert(hashes, second)
    cache.insert(hashes, first)
    assert len(cache) == 1
    allocator.release(second)
    assert allocator.counts() == BlockCounts(free=2, cached=0, in_use=1), "the duplicate is not kept"
    assert cache.match(hashes) == first


def test_evicted_blocks_are_forgotten() -> None:
    allocator = BlockAllocator(3)
    cache = PrefixCache(allocator, block_size=1)
    table = allocator.allocate(2)
    hashes = cache.block_hashes([1, 2], "")
    cache.insert(hashes, table)
    allocator.release(table)
    assert allocator.allocate(1) == table[1:]
    assert len(cache) == 1
    assert cache.match(hashes) == table[:1]


def test_a_pinned_prefix_survives_a_full_pool() -> None:
    allocator = BlockAllocator(3)
    cache = PrefixCache(allocator, block_size=1)
    hashes = cache.block_hashes([1], "")
    pinned = allocator.allocate(1)
    cache.insert(hashes, pinned)
    others = allocator.allocate(1)
    assert not allocator.can_allocate(1)
    allocator.release(others)
    assert allocator.allocate(1) == others
    assert cache.match(hashes) == pinned


def test_bad_inserts_are_refused() -> None:
    allocator = BlockAllocator(3)
    cache = PrefixCache(allocator, block_size=1)
    table = allocator.allocate(1)
    cache.insert([b"h1"], table)
    with pytest.raises(BlockAccountingError, match="cached with another content"):
        cache.insert([b"h2"], table)
    with pytest.raises(BlockAccountingError, match="block 2 is not in use"):
        cache.insert([b"h2"], [2])
    with pytest.raises(ValueError, match="shorter"):
        cache.insert([b"h1", b"h3"], table)
