"""Which request holds which blocks: reservations over the allocator and the prefix cache.

Used on the event loop only. A reservation holds one reference on each of its blocks from `reserve` to `release`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.kv.allocator import BlockAllocator, BlockCounts
from shared.kv.prefix_cache import PrefixCache, block_hashes


@dataclass
class Reservation:
    """Blocks for all tokens that one request may ever have here.

    Attributes:
        block_table: the blocks, in token order; the first ones may be shared with other requests.
        num_cached_tokens: tokens of the prompt whose KV the first blocks held at the start.
        num_committed_blocks: blocks that others may share by now.
    """

    block_table: tuple[int, ...]
    block_hashes: list[bytes]
    num_cached_tokens: int
    num_committed_blocks: int


class BlockLedger:
    """Reserves, commits and releases blocks of one pool."""

    def __init__(self, allocator: BlockAllocator, block_size: int) -> None:
        self._allocator = allocator
        self._cache = PrefixCache(allocator, block_size)
        self._block_size = block_size

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self._block_size

    @property
    def num_free(self) -> int:
        """Blocks that a new request could get, idle cached ones included."""
        return self._allocator.num_free

    @property
    def max_reservation(self) -> int:
        """Most blocks that a request can ever get: all but the scratch block."""
        return self._allocator.num_blocks - 1

    def counts(self) -> BlockCounts:
        """Blocks by state."""
        return self._allocator.counts()

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-num_tokens // self._block_size)

    def reserve(
        self,
        prompt_token_ids: Sequence[int],
        total_len: int,
        cache_salt: str,
        input_embeddings: npt.NDArray[np.float32] | None = None,
    ) -> Reservation | None:
        """Takes blocks for `total_len` tokens, shared ones for the cached prefix; None where the pool has too few.

        At least the prompt's last token is left to compute, since its logits are wanted.
        """
        hashes = self.prompt_hashes(prompt_token_ids, cache_salt, input_embeddings)
        return self.reserve_hashed(hashes, len(prompt_token_ids), total_len)

    def prompt_hashes(
        self,
        prompt_token_ids: Sequence[int],
        cache_salt: str,
        input_embeddings: npt.NDArray[np.float32] | None = None,
    ) -> list[bytes]:
        """What `reserve` finds a prompt by. Any thread may compute it: megabytes of vectors take milliseconds."""
        return block_hashes(prompt_token_ids, cache_salt, self._block_size, input_embeddings)

    def reserve_hashed(
        self, hashes: list[bytes], prompt_len: int, total_len: int, *, reuse: bool = True
    ) -> Reservation | None:
        """`reserve` for a prompt whose `prompt_hashes` are known; without `reuse` none of its blocks is cached."""
        num_reusable = (prompt_len - 1) // self._block_size if reuse else 0
        shared = self._cache.match(hashes[:num_reusable])
        num_new = self.num_blocks_for(total_len) - len(shared)
        if not self._allocator.can_allocate(num_new):
            self._allocator.release(shared)
            return None
        block_table = (*shared, *self._allocator.allocate(num_new))
        return Reservation(block_table, hashes, len(shared) * self._block_size, len(shared))

    def fork(self, reservation: Reservation, prompt_len: int, total_len: int) -> Reservation | None:
        """Takes blocks for one more completion of a reservation's prompt; None where the pool has too few.

        The prompt's full blocks are shared, whether their KV is here yet or not. The block that it ends in, if it is
        not full, is new, and the caller has to fill it.
        """
        num_shared = prompt_len // self._block_size
        num_new = self.num_blocks_for(total_len) - num_shared
        if not self._allocator.can_allocate(num_new):
            return None
        shared = reservation.block_table[:num_shared]
        self._allocator.retain(shared)
        block_table = (*shared, *self._allocator.allocate(num_new))
        # What is shared is the first reservation's to commit.
        return Reservation(
            block_table, reservation.block_hashes[:num_shared], num_shared * self._block_size, num_shared
        )

    def commit(self, reservation: Reservation, num_computed_tokens: int) -> None:
        """Lets others share the full prompt blocks among the first `num_computed_tokens` tokens."""
        end = min(num_computed_tokens // self._block_size, len(reservation.block_hashes))
        start = reservation.num_committed_blocks
        if end > start:
            self._cache.insert(reservation.block_hashes[start:end], reservation.block_table[start:end])
            reservation.num_committed_blocks = end

    def share(
        self,
        reservation: Reservation,
        token_ids: Sequence[int],
        cache_salt: str,
        input_embeddings: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Lets others share every full block: `token_ids`, of prompt and completion, all have their KV in the pool."""
        reservation.block_hashes = block_hashes(
            token_ids, cache_salt, self._block_size, input_embeddings, known=reservation.block_hashes
        )
        self.commit(reservation, len(token_ids))

    def retain(self, block_ids: Sequence[int]) -> None:
        """Adds a reference: an exported or fetched block outlives its reservation."""
        self._allocator.retain(block_ids)

    def release_blocks(self, block_ids: Sequence[int]) -> None:
        """Takes back a reference of `retain`."""
        self._allocator.release(block_ids)

    def release(self, reservation: Reservation) -> None:
        """Gives the reservation's references back."""
        self._allocator.release(reservation.block_table)
