"""Who owns each block of a pool. Pure accounting: no memory, no clock; touched on the event loop only."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

SCRATCH_BLOCK = 0
"""Padding writes here. Owned by no request, never allocated."""


class Generations(Protocol):
    """A mutable array of one int a block: a list, or the int64 view of a pool that other processes can read."""

    def __len__(self) -> int: ...
    def __getitem__(self, block_id: int, /) -> int: ...
    def __setitem__(self, block_id: int, generation: int, /) -> None: ...


class OutOfBlocksError(Exception):
    """More blocks were asked for than are free or idle in the cache; nothing was allocated."""

    def __init__(self, num_wanted: int, num_free: int) -> None:
        super().__init__(f"{num_wanted} blocks wanted, {num_free} free")
        self.num_wanted = num_wanted
        self.num_free = num_free


class BlockAccountingError(Exception):
    """A block was used in a way that its state forbids (double release, retain of a free block): a bug of the caller.

    Not an assert, because a wrong count here is another request's KV, also under `python -O`.
    """


@dataclass(frozen=True)
class BlockCounts:
    """Blocks by state; the sum is always `num_blocks - 1`."""

    free: int
    cached: int
    """Not referenced, but their content is kept for the prefix cache until the space is needed."""
    in_use: int


class BlockAllocator:
    """Reference counts of the blocks 1 … num_blocks - 1.

    Args:
        num_blocks: blocks of the pool, the scratch block included.
        generations: one int a block, raised at each allocation of it; a fresh list if None.

    Raises:
        ValueError: fewer than 2 blocks, or not one generation for each.
    """

    def __init__(self, num_blocks: int, generations: Generations | None = None) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks is {num_blocks}; a scratch block and at least one other are needed")
        self.num_blocks = num_blocks
        self.generations: Generations = [0] * num_blocks if generations is None else generations
        if len(self.generations) != num_blocks:
            raise ValueError(f"{len(self.generations)} generations for {num_blocks} blocks")
        self._free = list(range(num_blocks - 1, SCRATCH_BLOCK, -1))
        self._num_refs = [0] * num_blocks
        self._kept: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._on_evict: Callable[[int], None] | None = None

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can hand out: free ones and idle cached ones."""
        return len(self._free) + len(self._idle)

    def can_allocate(self, num_wanted: int) -> bool:
        """Whether `allocate(num_wanted)` would succeed."""
        return num_wanted <= self.num_free

    def allocate(self, num_wanted: int) -> list[int]:
        """Hand out blocks with one reference each, evicting the least recently used idle cached ones if need be.

        Raises:
            OutOfBlocksError: fewer are free; nothing was changed.
        """
        if num_wanted < 0:
            raise BlockAccountingError(f"allocate({num_wanted})")
        if not self.can_allocate(num_wanted):
            raise OutOfBlocksError(num_wanted, self.num_free)
        return [self._take() for _ in range(num_wanted)]

    def retain(self, block_ids: Sequence[int]) -> None:
        """Add a reference to each block.

        Raises:
            BlockAccountingError: a block is free, and so its content belongs to nobody.
        """
        for block_id in block_ids:
            self._check_id(block_id)
            if not self._num_refs[block_id] and block_id not in self._idle:
                raise BlockAccountingError(f"block {block_id} is free and cannot be retained")
            self._idle.pop(block_id, None)
            self._num_refs[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Drop a reference of each block; those without any become free, or idle if the cache keeps them.

        Blocks are given in token order and released from the last: of a prefix, the end is evicted before the start,
        without which it could not be matched.

        Raises:
            BlockAccountingError: a block has no reference left to drop.
        """
        for block_id in reversed(block_ids):
            if not self.num_refs(block_id):
                raise BlockAccountingError(f"block {block_id} is released more often than it was retained")
            self._num_refs[block_id] -= 1
            if self._num_refs[block_id]:
                continue
            if block_id in self._kept:
                self._idle[block_id] = None
            else:
                self._free.append(block_id)

    def num_refs(self, block_id: int) -> int:
        """References held on a block."""
        self._check_id(block_id)
        return self._num_refs[block_id]

    def counts(self) -> BlockCounts:
        """Blocks by state."""
        cached = len(self._idle)
        free = len(self._free)
        return BlockCounts(free=free, cached=cached, in_use=self.num_blocks - 1 - free - cached)

    def keep(self, block_id: int) -> None:
        """Keep the content of a block when its last reference goes, until the space is needed.

        Raises:
            BlockAccountingError: the block is not in use.
        """
        if not self.num_refs(block_id):
            raise BlockAccountingError(f"block {block_id} is not in use; its content cannot be kept")
        self._kept.add(block_id)

    def on_evict(self, callback: Callable[[int], None]) -> None:
        """Have `callback(block_id)` called as each kept block is evicted. There is one listener: the prefix cache."""
        if self._on_evict is not None:
            raise BlockAccountingError("two caches on one allocator")
        self._on_evict = callback

    def _take(self) -> int:
        block_id = self._free.pop() if self._free else self._evict()
        self._num_refs[block_id] = 1
        self.generations[block_id] += 1
        return block_id

    def _evict(self) -> int:
        block_id, _ = self._idle.popitem(last=False)
        self._kept.discard(block_id)
        if self._on_evict is not None:
            self._on_evict(block_id)
        return block_id

    def _check_id(self, block_id: int) -> None:
        if not SCRATCH_BLOCK < block_id < self.num_blocks:
            raise BlockAccountingError(f"block {block_id} is not one of 1 … {self.num_blocks - 1}")
