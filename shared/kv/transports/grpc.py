"""Blocks as bytes over PrefillService.FetchKv: works anywhere, and trusts nothing that arrives."""

import zlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial

import grpc

from shared.errors import HandleError, KvTransferError, Reason
from shared.kv.handle import GrpcLocation, KvHandle
from shared.kv.pool import KvPool
from shared.kv.transports.base import check_fetch
from shared.kv.transports.blocks import MESSAGE_BYTES, check_checksum, write_piece
from shared.kv.transports.copier import Abandoned, Copier
from shared.rpc.status import peer_error

OpenFetch = Callable[[KvHandle], AsyncGenerator[tuple[int, bytes], None]]
"""Opens the FetchKv call of a handle and yields its messages as (offset, data); closing it cancels the call."""


class GrpcTransport:
    """Fetches blocks through a call to the process that owns them.

    Args:
        open_fetch: see `OpenFetch`; None where this process only exports.
        pool: to export from; None where this process only fetches.
        message_bytes: longest data that a message may have.
    """

    name = "grpc"

    def __init__(
        self, open_fetch: OpenFetch | None = None, pool: KvPool | None = None, message_bytes: int = MESSAGE_BYTES
    ) -> None:
        self._open_fetch = open_fetch
        self._pool = pool
        self._message_bytes = message_bytes
        self._copier = Copier(self.name)

    def export(self, block_ids: Sequence[int]) -> GrpcLocation:
        """The FetchKv call of this process.

        Raises:
            HandleError: a block is not in the pool.
            ValueError: there is no pool.
        """
        if self._pool is None:
            raise ValueError("this transport has no pool to export from")
        self._pool.check_ids(block_ids)
        return GrpcLocation()

    async def fetch(self, handle: KvHandle, destination: KvPool, block_ids: Sequence[int]) -> None:
        """See `KvTransport.fetch`. The call is read to its end, because its status may still be an error then."""
        if self._open_fetch is None:
            raise ValueError("this transport has no way to open a fetch")
        if not isinstance(handle.location, GrpcLocation):
            raise HandleError(f"the KV handle lies at {handle.location}, not behind a call", Reason.HANDLE_FOREIGN)
        check_fetch(handle, destination, block_ids)
        num_received = 0
        crc = None if handle.checksum is None else 0
        async with aclosing(self._open_fetch(handle)) as pieces:
            try:
                async for offset, data in pieces:
                    self._check_piece(handle, num_received, offset, len(data))
                    crc = await self._copier.run(partial(_store, destination, block_ids, offset, data, crc))
                    num_received += len(data)
            except grpc.aio.AioRpcError as error:
                raise _failure(handle, error) from error
        if num_received != handle.num_bytes:
            raise _violation(handle, f"it ended after {num_received} of {handle.num_bytes} bytes")
        if crc is not None:
            check_checksum(handle, crc)

    def release(self, handle_id: bytes) -> None:
        """Nothing is kept for a handle."""

    def close(self) -> None:
        """See `KvTransport.close`."""
        self._copier.close()

    def _check_piece(self, handle: KvHandle, num_received: int, offset: int, piece_len: int) -> None:
        if offset != num_received:
            raise _violation(handle, f"bytes of offset {offset} came where {num_received} was due")
        if not 0 < piece_len <= self._message_bytes:
            raise _violation(handle, f"a message has {piece_len} bytes of data; 1 to {self._message_bytes} are allowed")
        if offset + piece_len > handle.num_bytes:
            raise _violation(handle, f"it has more than the {handle.num_bytes} bytes of its blocks")


def _store(
    destination: KvPool, block_ids: Sequence[int], offset: int, data: bytes, crc: int | None, _abandoned: Abandoned
) -> int | None:
    """Write one piece; returns the CRC-32 of all bytes so far where one is wanted."""
    write_piece(destination, block_ids, offset, data)
    return None if crc is None else zlib.crc32(data, crc)


def _violation(handle: KvHandle, detail: str) -> KvTransferError:
    return KvTransferError(
        f"the KV of request {handle.request_id!r} did not arrive as its handle says: {detail}",
        metadata={"request_id": handle.request_id, "epoch": handle.epoch},
    )


def _failure(handle: KvHandle, error: grpc.aio.AioRpcError) -> KvTransferError:
    """The failed call as a transfer error, with the peer's own reason in the metadata where it gave one."""
    peer = peer_error(error)
    told = {} if peer is None else {**peer.metadata, "peer_reason": peer.reason}
    return KvTransferError(
        f"fetching the KV of request {handle.request_id!r} failed: {error.code().name}: {error.details()}",
        metadata={"request_id": handle.request_id, "epoch": handle.epoch, **told},
    )
