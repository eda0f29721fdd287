"""Properties of allocator and prefix cache together, against a model that keeps every holder's references."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.kv.allocator import BlockAccountingError, BlockAllocator, OutOfBlocksError
from shared.kv.prefix_cache import PrefixCache

NUM_BLOCKS = 8
BLOCK_SIZE = 2

Content = tuple[str, tuple[int, ...]]
"""What a block's KV depends on: the salt, and all tokens from the prompt's start to the block's end."""


class BlockAccounting(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.generations = [0] * NUM_BLOCKS
        self.allocator = BlockAllocator(NUM_BLOCKS, self.generations)
        self.cache = PrefixCache(self.allocator, BLOCK_SIZE)
        self.holders: list[list[int]] = []
        self.written: dict[int, Content] = {}
        self.num_allocations: Counter[int] = Counter()

    def references(self) -> Counter[int]:
        return Counter(block_id for holder in self.holders for block_id in holder)

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9), salt=st.sampled_from(["", "s"]))
    def admit_and_compute(self, tokens: list[int], salt: str) -> None:
        hashes = self.cache.block_hashes(tokens, salt)
        contents: list[Content] = [(salt, tuple(tokens[: end * BLOCK_SIZE])) for end in range(1, len(hashes) + 1)]
        matched = self.cache.match(hashes)
        assert [self.written[block_id] for block_id in matched] == contents[: len(matched)]
        self.holders.append(matched)

        num_new = -(-len(tokens) // BLOCK_SIZE) - len(matched)
        num_unreferenced = NUM_BLOCKS - 1 - len(self.references())
        assert self.allocator.can_allocate(num_new) == (num_new <= num_unreferenced)
        if num_new > num_unreferenced:
            with pytest.raises(OutOfBlocksError):
                self.allocator.allocate(num_new)
            self.allocator.release(self.holders.pop())
            return
        new = self.allocator.allocate(num_new)
        assert not self.references().keys() & set(new), "a referenced block was handed out"
        self.num_allocations.update(new)
        table = matched + new
        self.holders[-1] = table
        for block_id in new:
            self.written.pop(block_id, None)
        self.written.update(list(zip(table, contents, strict=False))[len(matched) :])
        self.cache.insert(hashes, table[: len(hashes)])

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        self.allocator.retain(holder)
        self.holders.append(list(holder))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.holders) - 1))
        self.allocator.release(self.holders.pop(index))

    @rule(block_id=st.integers(1, NUM_BLOCKS - 1))
    def release_once_too_often(self, block_id: int) -> None:
        if self.references()[block_id] == 0:
            with pytest.raises(BlockAccountingError):
                self.allocator.release([block_id])

    @invariant()
    def every_block_is_in_exactly_one_state(self) -> None:
        counts = self.allocator.counts()
        assert counts.free + counts.cached + counts.in_use == NUM_BLOCKS - 1
        assert min(counts.free, counts.cached, counts.in_use) >= 0
        assert counts.in_use == len(self.references())
        assert self.allocator.num_free == NUM_BLOCKS - 1 - len(self.references())

    @invariant()
    def references_are_those_of_the_holders(self) -> None:
        references = self.references()
        assert [self.allocator.num_refs(block_id) for block_id in range(1, NUM_BLOCKS)] == [
            references[block_id] for block_id in range(1, NUM_BLOCKS)
        ]

    @invariant()
    def a_generation_counts_allocations(self) -> None:
        assert self.generations == [self.num_allocations[block_id] for block_id in range(NUM_BLOCKS)]

    @invariant()
    def idle_cached_blocks_are_findable(self) -> None:
        assert self.allocator.counts().cached <= len(self.cache) <= NUM_BLOCKS - 1

    def teardown(self) -> None:
        for holder in self.holders:
            self.allocator.release(holder)
        assert self.allocator.num_free == NUM_BLOCKS - 1


BlockAccounting.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestBlockAccounting = BlockAccounting.TestCase
