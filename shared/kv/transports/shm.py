"""Blocks by mapping the owner's pool: one memcpy, nothing serialized."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from shared.errors import HandleError, Reason
from shared.kv.handle import KvHandle, ShmLocation
from shared.kv.layout import KvLayout
from shared.kv.pool import KvPool, MappedPool, ShmSegment
from shared.kv.transports.base import check_fetch, stale_epoch
from shared.kv.transports.blocks import copy_blocks
from shared.kv.transports.copier import Copier


class ShmTransport:
    """Exports this process's shared pool, and fetches from those of the peers it is attached to.

    Args:
        directory: where segments of peers may lie.
        pool: to export from; None where this process only fetches.
    """

    name = "shm"

    def __init__(self, directory: Path, pool: KvPool | None = None) -> None:
        self._directory = directory
        self._pool = pool
        self._mapped: dict[str, tuple[ShmSegment, MappedPool]] = {}
        self._copier = Copier(self.name)

    def attach(self, path: str, layout: KvLayout, epoch: str, proof: bytes) -> None:
        """Map the segment that a peer offered at the handshake; success proves that both share its memory.

        Raises:
            KvTransferError: the segment is not what the peer said, or cannot be reached.
        """
        segment = ShmSegment(Path(path), proof)
        if epoch in self._mapped and self._mapped[epoch][0] == segment:
            return  # a second handshake with the same process; copies from it may be running
        mapped = MappedPool.open(segment.path, layout, epoch, proof, self._directory)
        self.detach(epoch)
        self._mapped[epoch] = (segment, mapped)
        self._copier.start(mapped.populate)

    def is_attached(self, epoch: str) -> bool:
        """Whether a peer's segment is mapped."""
        return epoch in self._mapped

    def detach(self, epoch: str) -> None:
        """Unmap a peer's segment, if it is mapped; a copy from it that still runs fails."""
        if epoch in self._mapped:
            self._mapped.pop(epoch)[1].close()

    def export(self, block_ids: Sequence[int]) -> ShmLocation:
        """The segment of this process's pool.

        Raises:
            HandleError: a block is not in the pool.
            ValueError: there is no shared pool.
        """
        if self._pool is None or self._pool.segment is None:
            raise ValueError("this process has no shared pool to export from")
        self._pool.check_ids(block_ids)
        return ShmLocation(str(self._pool.segment.path))

    async def fetch(self, handle: KvHandle, destination: KvPool, block_ids: Sequence[int]) -> None:
        """See `KvTransport.fetch`."""
        if handle.epoch not in self._mapped:
            raise stale_epoch(handle, list(self._mapped))
        segment, source = self._mapped[handle.epoch]
        if handle.location != ShmLocation(str(segment.path)):
            raise HandleError(
                f"the KV handle lies at {handle.location}; the handshake with its epoch was about {segment.path}",
                Reason.HANDLE_FOREIGN,
                {"epoch": handle.epoch},
            )
        check_fetch(handle, destination, block_ids)
        source.check_ids(handle.block_ids)
        await self._copier.run(partial(copy_blocks, source, handle, destination, block_ids))

    def release(self, handle_id: bytes) -> None:
        """Nothing is kept for a handle."""

    def close(self) -> None:
        """See `KvTransport.close`."""
        self._copier.close()
        for epoch in list(self._mapped):
            self.detach(epoch)
