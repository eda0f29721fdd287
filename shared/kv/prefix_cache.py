"""Finds blocks whose KV is already computed, by chained hashes of the tokens they hold. Pure accounting."""

import hashlib
import struct
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shared.kv.allocator import BlockAccountingError, BlockAllocator

_VECTORS = b"vectors"


def block_hashes(
    token_ids: Sequence[int],
    cache_salt: str,
    block_size: int,
    input_embeddings: npt.NDArray[np.float32] | None = None,
    known: Sequence[bytes] = (),
) -> list[bytes]:
    """Hash of each full block of a prompt: SHA-256 over the hash of the block before it and its own token ids.

    So equal hashes mean equal tokens from the prompt's start, which is what KV depends on. SHA-256, because a
    collision that a caller could construct would hand it another caller's KV.

    A block that begins with vectors is hashed over the word "vectors", their number and size, their bytes, and the ids
    of its other tokens: longer than any block of ids, so that the two kinds never meet. A text and its own embeddings
    therefore share nothing; equal vectors do.

    Args:
        token_ids: the prompt, each id in [0, 2**32).
        cache_salt: stands before the first block, so that prompts of different salts share nothing.
        block_size: tokens a block; tokens after the last full block are ignored.
        input_embeddings: [n, hidden_size] vectors of the first n tokens, whose ids mean nothing.
        known: hashes of the first blocks, where they were computed before.
    """
    num_blocks = len(token_ids) // block_size
    hashes = list(known[:num_blocks])
    parent = hashes[-1] if hashes else hashlib.sha256(cache_salt.encode()).digest()
    for start in range(len(hashes) * block_size, num_blocks * block_size, block_size):
        end = start + block_size
        vectors = None if input_embeddings is None else input_embeddings[start:end]
        parent = _block_hash(parent, token_ids[start:end], vectors)
        hashes.append(parent)
    return hashes


def _block_hash(parent: bytes, token_ids: Sequence[int], vectors: npt.NDArray[np.float32] | None) -> bytes:
    block = hashlib.sha256(parent)
    if vectors is not None and len(vectors):
        block.update(_VECTORS + struct.pack("=2I", *vectors.shape))
        block.update(np.ravel(vectors).data)
        token_ids = token_ids[len(vectors) :]
    block.update(array("I", token_ids).tobytes())
    return block.digest()


class PrefixCache:
    """Maps hashes of full blocks to blocks of one allocator.

    Holds no references: an entry lives until the allocator evicts its block, which it does only when nobody refers to
    it and the space is needed, least recently used first.
    """

    def __init__(self, allocator: BlockAllocator, block_size: int) -> None:
        self._allocator = allocator
        self._block_size = block_size
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        allocator.on_evict(self._forget)

    def __len__(self) -> int:
        return len(self._block_of)

    def block_hashes(self, token_ids: Sequence[int], cache_salt: str) -> list[bytes]:
        """`block_hashes` with this cache's block size."""
        return block_hashes(token_ids, cache_salt, self._block_size)

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Blocks of the longest cached prefix, each with a reference for the caller, who releases it.

        A caller that must compute at least one token gives the hashes of the tokens before it only.
        """
        block_ids = []
        for block_hash in hashes:
            block_id = self._block_of.get(block_hash)
            if block_id is None:
                break
            block_ids.append(block_id)
        self._allocator.retain(block_ids)
        return block_ids

    def insert(self, hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Make full, computed blocks findable. Where a hash has a block already, that one stays.

        Args:
            hashes: of the blocks' content, from `block_hashes`.
            block_ids: parallel to `hashes`; the caller holds references on them.

        Raises:
            BlockAccountingError: a block is not in use, or stands in the cache with another content.
            ValueError: the two are not parallel.
        """
        for block_hash, block_id in zip(hashes, block_ids, strict=True):
            if block_hash in self._block_of:
                continue
            if block_id in self._hash_of:
                raise BlockAccountingError(f"block {block_id} is cached with another content")
            self._allocator.keep(block_id)
            self._block_of[block_hash] = block_id
            self._hash_of[block_id] = block_hash

    def _forget(self, block_id: int) -> None:
        del self._block_of[self._hash_of.pop(block_id)]
