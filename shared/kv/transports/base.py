"""What every transport does, and the checks that come before any byte moves."""

from collections.abc import Sequence
from typing import Protocol

from shared.errors import HandleError, KvTransferError, Reason
from shared.kv.allocator import SCRATCH_BLOCK
from shared.kv.handle import KvHandle, Location
from shared.kv.pool import KvPool


class KvTransport(Protocol):
    """One way to move blocks; one object a process serves all peers. Used on the event loop."""

    name: str
    """As in configs and handshakes."""

    def export(self, block_ids: Sequence[int]) -> Location:
        """Where the fetching side finds these blocks of this process's pool. The caller pins them until `release`."""
        ...

    async def fetch(self, handle: KvHandle, destination: KvPool, block_ids: Sequence[int]) -> None:
        """Copy a handle's blocks into blocks of this process.

        When this returns, all bytes are there and unchanged. When it raises, or is cancelled, nothing writes to the
        destination any more, and what it holds must not be used.

        Args:
            handle: from the peer.
            destination: this process's pool.
            block_ids: blocks of `destination`, parallel to `handle.block_ids`.

        Raises:
            HandleError: the handle is stale, foreign, or names blocks that do not exist.
            KvTransferError: the bytes did not arrive, or were changed on the way.
            ValueError: `block_ids` are not as many different blocks of `destination`.
        """
        ...

    def release(self, handle_id: bytes) -> None:
        """Drop what `export` set up for a handle."""
        ...

    def close(self) -> None:
        """Let go of threads and mappings, after the copies that still run. Later fetches are refused."""
        ...


def check_fetch(handle: KvHandle, destination: KvPool, block_ids: Sequence[int]) -> None:
    """Check that a handle's blocks can be put into these blocks.

    Raises:
        KvTransferError: the layouts differ (KV_LAYOUT_MISMATCH; metadata: field, ours, theirs).
        ValueError: `block_ids` are not as many different blocks of `destination`, scratch not counted.
    """
    difference = destination.layout.difference(handle.layout)
    if difference is not None:
        field, ours, theirs = difference
        raise KvTransferError(
            f"the KV handle's layout has {field} {theirs}; here it is {ours}",
            Reason.KV_LAYOUT_MISMATCH,
            {"field": field, "ours": ours, "theirs": theirs},
        )
    if len(block_ids) != handle.num_blocks or len(set(block_ids)) != handle.num_blocks:
        raise ValueError(f"{handle.num_blocks} blocks cannot be put into {list(block_ids)}")
    if not SCRATCH_BLOCK < min(block_ids) <= max(block_ids) < destination.num_blocks:
        raise ValueError(f"{list(block_ids)} are not all in 1 … {destination.num_blocks - 1}")


def stale_epoch(handle: KvHandle, known: Sequence[str]) -> HandleError:
    """The error for a handle of a process that this one knows nothing of, or no more."""
    return HandleError(
        f"the KV handle is of epoch {handle.epoch!r}, which is not connected",
        Reason.EPOCH_STALE,
        {"epoch": handle.epoch, "connected_epochs": ",".join(known)},
    )
