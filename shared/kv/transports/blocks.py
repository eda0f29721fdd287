"""Copies, sums and streams of blocks' bytes. Blocking: the fetching side runs them in a `Copier`."""

import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from shared.errors import KvTransferError, Reason
from shared.kv.handle import KvHandle
from shared.kv.pool import KvPool, MappedPool
from shared.kv.transports.copier import Abandoned

MESSAGE_BYTES = 1 << 20
"""Most bytes of one message of FetchKv."""

MESSAGE_OVERHEAD_BYTES = 64
"""Room for the message's other fields (at most 17 bytes), rounded up so that data stay aligned to cache lines."""


def copy_bytes(destination: memoryview, source: memoryview | bytes) -> None:
    """Copy between equally long buffers without the interpreter's lock, so that the event loop runs meanwhile."""
    np.copyto(np.frombuffer(destination, np.uint8), np.frombuffer(source, np.uint8))


def checksum(pool: KvPool | MappedPool, block_ids: Sequence[int]) -> int:
    """CRC-32 of the blocks' bytes in order."""
    crc = 0
    for block_id in block_ids:
        crc = zlib.crc32(pool.block_view(block_id), crc)
    return crc


def check_checksum(handle: KvHandle, found: int) -> None:
    """Compare a CRC-32 with the handle's.

    Raises:
        KvTransferError: they differ (KV_CHECKSUM_MISMATCH).
    """
    if found != handle.checksum:
        raise KvTransferError(
            f"the KV of request {handle.request_id!r} has checksum {found:#010x}, not {handle.checksum:#010x}",
            Reason.KV_CHECKSUM_MISMATCH,
            {"request_id": handle.request_id, "expected": handle.checksum, "found": found},
        )


def copy_blocks(
    source: KvPool | MappedPool, handle: KvHandle, destination: KvPool, block_ids: Sequence[int], abandoned: Abandoned
) -> None:
    """Copy a handle's blocks from memory that its owner may recycle at any time.

    A block's generation is compared with the handle's before and after its copy. The owner raises it before it writes
    anything new, so equality after the copy proves that no byte of it was newer.

    Raises:
        HandleError: a block id is out of range.
        KvTransferError: a block was recycled (KV_BLOCK_RECYCLED), the checksum differs, or the source was closed.
    """
    blocks = zip(handle.block_ids, handle.block_generations, block_ids, strict=True)
    for source_id, generation, destination_id in blocks:
        if abandoned():
            return
        _check_generation(source, source_id, generation)
        copy_bytes(destination.block_view(destination_id), source.block_view(source_id))
        _check_generation(source, source_id, generation)
    if handle.checksum is not None:
        check_checksum(handle, checksum(destination, block_ids))


def read_blocks(
    pool: KvPool, block_ids: Sequence[int], message_bytes: int = MESSAGE_BYTES
) -> Iterator[tuple[int, bytes]]:
    """Cut the concatenation of blocks into (offset, bytes) pieces in order, each small enough for one message.

    Args:
        pool: where the blocks lie; the caller pins them while it iterates.
        block_ids: in the order of the concatenation.
        message_bytes: most bytes of a message, `MESSAGE_OVERHEAD_BYTES` of which are left free.
    """
    piece_len = message_bytes - MESSAGE_OVERHEAD_BYTES
    num_bytes = len(block_ids) * pool.layout.block_bytes
    for offset in range(0, num_bytes, piece_len):
        end = min(offset + piece_len, num_bytes)
        yield offset, b"".join(_slices(pool, block_ids, offset, end))


def write_piece(pool: KvPool, block_ids: Sequence[int], offset: int, data: bytes) -> None:
    """Put bytes at an offset of the concatenation of blocks; the reverse of `read_blocks`."""
    start = 0
    with memoryview(data) as view:
        for target in _slices(pool, block_ids, offset, offset + len(data)):
            copy_bytes(target, view[start : start + len(target)])
            start += len(target)


def _slices(pool: KvPool, block_ids: Sequence[int], start: int, end: int) -> Iterator[memoryview]:
    """The memory of bytes [start, end) of the concatenation of blocks."""
    block_bytes = pool.layout.block_bytes
    for index in range(start // block_bytes, -(-end // block_bytes)):
        block_start = index * block_bytes
        yield pool.block_view(block_ids[index])[max(start - block_start, 0) : end - block_start]


def _check_generation(source: KvPool | MappedPool, block_id: int, expected: int) -> None:
    found = source.generation(block_id)
    if found != expected:
        raise KvTransferError(
            f"block {block_id} of epoch {source.epoch} was recycled: generation {found}, exported as {expected}",
            Reason.KV_BLOCK_RECYCLED,
            {"block_id": block_id, "expected": expected, "found": found},
        )
