"""Blocks between two pools of one process."""

from collections.abc import Sequence
from functools import partial

from shared.errors import HandleError, Reason
from shared.kv.handle import KvHandle, LocalLocation
from shared.kv.pool import KvPool
from shared.kv.transports.base import check_fetch, stale_epoch
from shared.kv.transports.blocks import copy_blocks
from shared.kv.transports.copier import Copier

_pools: dict[str, KvPool] = {}


def register_pool(pool: KvPool) -> None:
    """Let fetches in this process find a pool by its epoch.

    Raises:
        ValueError: another pool of this epoch is registered.
    """
    if _pools.setdefault(pool.epoch, pool) is not pool:
        raise ValueError(f"epoch {pool.epoch} has a registered pool already")


def unregister_pool(pool: KvPool) -> None:
    """Let fetches find a pool no more; without effect if it is not registered."""
    if _pools.get(pool.epoch) is pool:
        del _pools[pool.epoch]


def is_registered(epoch: str) -> bool:
    """Whether fetches in this process find a pool of this epoch."""
    return epoch in _pools


class LocalTransport:
    """Exports from and fetches from pools registered in this process.

    Args:
        pool: to export from; None where this object only fetches. `register_pool` makes it found.
    """

    name = "local"

    def __init__(self, pool: KvPool | None = None) -> None:
        self._pool = pool
        self._copier = Copier(self.name)

    def export(self, block_ids: Sequence[int]) -> LocalLocation:
        """The pool that is registered under the handle's epoch.

        Raises:
            HandleError: a block is not in the pool.
            ValueError: there is no pool.
        """
        if self._pool is None:
            raise ValueError("this transport has no pool to export from")
        self._pool.check_ids(block_ids)
        return LocalLocation()

    async def fetch(self, handle: KvHandle, destination: KvPool, block_ids: Sequence[int]) -> None:
        """See `KvTransport.fetch`."""
        source = _pools.get(handle.epoch)
        if source is None:
            raise stale_epoch(handle, list(_pools))
        if not isinstance(handle.location, LocalLocation):
            raise HandleError(f"the KV handle lies at {handle.location}, not in this process", Reason.HANDLE_FOREIGN)
        check_fetch(handle, destination, block_ids)
        source.check_ids(handle.block_ids)
        await self._copier.run(partial(copy_blocks, source, handle, destination, block_ids))

    def release(self, handle_id: bytes) -> None:
        """Nothing is kept for a handle."""

    def close(self) -> None:
        """See `KvTransport.close`."""
        self._copier.close()
