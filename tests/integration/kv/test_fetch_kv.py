"""The grpc transport against a real server that serves FetchKv from a real pool."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import torch

from baton.v1.prefill_pb2 import FetchKvRequest, FetchKvResponse
from baton.v1.prefill_pb2_grpc import PrefillServiceStub
from shared.errors import HandleError, KvTransferError, Reason
from shared.kv.handle import KvHandle
from shared.kv.layout import KvLayout
from shared.kv.pool import KvPool
from shared.kv.transports.blocks import checksum, read_blocks
from shared.kv.transports.grpc import GrpcTransport
from shared.rpc.status import status_code, trailing_metadata
from tests.unit.kv.support import handle_of

if TYPE_CHECKING:
    from baton.v1.prefill_pb2_grpc import PrefillServiceAsyncStub

LAYOUT = KvLayout("token_major", "bfloat16", block_size=32, num_layers=8, num_kv_heads=4, head_dim=64)
"""262,144 bytes a block: nine blocks need three messages, which end inside blocks."""

WAIT_S = 10.0

Running = tuple[grpc.aio.Server, "PrefillServiceAsyncStub"]


class FetchKvServer:
    """FetchKv over one pool and one handle, with the failures that a test asks for."""

    def __init__(self, pool: KvPool) -> None:
        self.pool = pool
        self.handle: KvHandle | None = None
        self.num_messages = 0
        self.hangs_after: int | None = None
        self.shifts_offsets = False
        self.released_after: int | None = None
        self.is_hanging = asyncio.Event()
        self.was_left = asyncio.Event()

    async def fetch_kv(
        self, request: FetchKvRequest, context: grpc.aio.ServicerContext[FetchKvRequest, FetchKvResponse]
    ) -> AsyncIterator[FetchKvResponse]:
        handle = self.handle
        if handle is None or request.handle_id != handle.handle_id:
            await self._abort(context, Reason.HANDLE_UNKNOWN)
        assert handle is not None
        try:
            for offset, data in read_blocks(self.pool, handle.block_ids):
                if self.num_messages == self.hangs_after:
                    self.is_hanging.set()
                    await asyncio.Event().wait()
                if self.num_messages == self.released_after:
                    await self._abort(context, Reason.HANDLE_RELEASED)
                self.num_messages += 1
                yield FetchKvResponse(offset=offset + self.shifts_offsets, data=data)
        finally:
            self.was_left.set()

    async def _abort(self, context: grpc.aio.ServicerContext[Any, Any], reason: Reason) -> None:
        error = HandleError("refused by the owner", reason, {"handle_id": "00"})
        await context.abort(status_code(error), error.message, trailing_metadata(error))


@pytest.fixture
async def server() -> AsyncIterator[FetchKvServer]:
    with KvPool.anonymous(LAYOUT, 12, "owner-epoch") as pool:
        pool.tensor.normal_(generator=torch.Generator().manual_seed(1))
        yield FetchKvServer(pool)


@pytest.fixture
async def running(server: FetchKvServer) -> AsyncIterator[Running]:
    handler = grpc.unary_stream_rpc_method_handler(
        server.fetch_kv,
        request_deserializer=FetchKvRequest.FromString,
        response_serializer=FetchKvResponse.SerializeToString,
    )
    rpc = grpc.aio.server()
    rpc.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("baton.v1.PrefillService", {"FetchKv": handler}),)
    )
    port = rpc.add_insecure_port("127.0.0.1:0")
    await rpc.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield rpc, PrefillServiceStub(channel)
    await rpc.stop(None)


@pytest.fixture
def target() -> Iterator[KvPool]:
    with KvPool.anonymous(LAYOUT, 12, "target-epoch") as pool:
        yield pool


@pytest.fixture
def transport(running: Running) -> Iterator[GrpcTransport]:
    _, stub = running

    async def open_fetch(handle: KvHandle) -> AsyncGenerator[tuple[int, bytes], None]:
        call = stub.FetchKv(
            FetchKvRequest(handle_id=handle.handle_id, epoch=handle.epoch, request_id=handle.request_id)
        )
        try:
            async for message in call:
                yield message.offset, message.data
        finally:
            call.cancel()

    transport = GrpcTransport(open_fetch)
    yield transport
    transport.close()


SOURCE_IDS = [9, 1, 8, 2, 7, 3, 6, 4, 5]
TARGET_IDS = [2, 3, 4, 5, 6, 7, 8, 9, 10]


def export(server: FetchKvServer) -> KvHandle:
    server.handle = handle_of(server.pool, SOURCE_IDS, checksum=checksum(server.pool, SOURCE_IDS))
    return server.handle


async def test_blocks_arrive_as_they_were(server: FetchKvServer, target: KvPool, transport: GrpcTransport) -> None:
    await transport.fetch(export(server), target, TARGET_IDS)
    assert server.num_messages == 3
    assert torch.equal(target.tensor[TARGET_IDS], server.pool.tensor[SOURCE_IDS])
    assert not target.tensor[[0, 1, 11]].any()


async def test_fetches_run_beside_each_other(server: FetchKvServer, target: KvPool, transport: GrpcTransport) -> None:
    handle = export(server)
    with KvPool.anonymous(LAYOUT, 12, "other-epoch") as other:
        await asyncio.gather(*(transport.fetch(handle, pool, TARGET_IDS) for pool in (target, other)))
        assert torch.equal(target.tensor[TARGET_IDS], server.pool.tensor[SOURCE_IDS])
        assert torch.equal(other.tensor, target.tensor)


async def test_the_owners_reason_comes_through(server: FetchKvServer, target: KvPool, transport: GrpcTransport) -> None:
    handle = export(server)
    server.handle = None
    with pytest.raises(KvTransferError, match="FAILED_PRECONDITION: refused by the owner") as caught:
        await transport.fetch(handle, target, TARGET_IDS)
    numbers = {"request_id": "r1", "epoch": "owner-epoch", "handle_id": "00", "peer_reason": "HANDLE_UNKNOWN"}
    assert (caught.value.reason, caught.value.metadata) == (Reason.KV_TRANSFER_FAILED, numbers)
    assert not target.tensor.any()


async def test_a_status_after_the_last_byte_counts(
    server: FetchKvServer, target: KvPool, transport: GrpcTransport
) -> None:
    handle = export(server)
    server.released_after = 2
    with pytest.raises(KvTransferError) as caught:
        await transport.fetch(handle, target, TARGET_IDS)
    assert (caught.value.reason, caught.value.metadata["peer_reason"]) == (Reason.KV_TRANSFER_FAILED, "HANDLE_RELEASED")


async def test_a_fetch_that_fails_here_ends_the_call_there(
    server: FetchKvServer, target: KvPool, transport: GrpcTransport
) -> None:
    handle = export(server)
    server.shifts_offsets = True
    server.hangs_after = 1
    with pytest.raises(KvTransferError, match="bytes of offset 1 came where 0 was due"):
        await transport.fetch(handle, target, TARGET_IDS)
    await asyncio.wait_for(server.was_left.wait(), WAIT_S)


async def test_cancelling_a_fetch_ends_the_call_there(
    server: FetchKvServer, target: KvPool, transport: GrpcTransport
) -> None:
    handle = export(server)
    server.hangs_after = 2
    task = asyncio.create_task(transport.fetch(handle, target, TARGET_IDS))
    await asyncio.wait_for(server.is_hanging.wait(), WAIT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(server.was_left.wait(), WAIT_S)


async def test_an_owner_that_dies_is_a_failed_transfer(
    server: FetchKvServer,
    target: KvPool,
    transport: GrpcTransport,
    running: Running,
) -> None:
    handle = export(server)
    server.hangs_after = 1
    task = asyncio.create_task(transport.fetch(handle, target, TARGET_IDS))
    await asyncio.wait_for(server.is_hanging.wait(), WAIT_S)
    await running[0].stop(None)
    with pytest.raises(KvTransferError, match="fetching the KV of request 'r1' failed") as caught:
        await asyncio.wait_for(task, WAIT_S)
    assert caught.value.reason is Reason.KV_TRANSFER_FAILED
