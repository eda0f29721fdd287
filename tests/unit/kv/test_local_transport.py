from collections.abc import Iterator
from dataclasses import replace

import pytest

from shared.errors import HandleError, KvTransferError, Reason
from shared.kv.handle import GrpcLocation, LocalLocation
from shared.kv.pool import KvPool
from shared.kv.transports.local import LocalTransport, is_registered, register_pool, unregister_pool
from tests.unit.kv.support import LAYOUT, fill, handle_of


@pytest.fixture
def source() -> Iterator[KvPool]:
    with KvPool.anonymous(LAYOUT, 4, "source-epoch") as pool:
        fill(pool, [1, 2, 3])
        register_pool(pool)
        yield pool
        unregister_pool(pool)


@pytest.fixture
def target() -> Iterator[KvPool]:
    with KvPool.anonymous(LAYOUT, 4, "target-epoch") as pool:
        yield pool


@pytest.fixture
def transport() -> Iterator[LocalTransport]:
    transport = LocalTransport()
    yield transport
    transport.close()


async def test_copies_between_pools_of_one_process(source: KvPool, target: KvPool, transport: LocalTransport) -> None:
    owner = LocalTransport(source)
    handle = handle_of(source, [2, 3], owner.export([2, 3]))
    await transport.fetch(handle, target, [3, 1])
    assert target.block_view(3) == source.block_view(2)
    assert target.block_view(1) == source.block_view(3)
    owner.release(handle.handle_id)
    owner.close()


async def test_an_unregistered_epoch_is_stale(source: KvPool, target: KvPool, transport: LocalTransport) -> None:
    handle = handle_of(source, [1], LocalLocation())
    assert is_registered(source.epoch)
    unregister_pool(source)
    unregister_pool(source)
    assert not is_registered(source.epoch)
    with pytest.raises(HandleError) as caught:
        await transport.fetch(handle, target, [1])
    assert caught.value.reason is Reason.EPOCH_STALE
    register_pool(source)
    await transport.fetch(handle, target, [1])


async def test_an_epoch_names_one_pool(source: KvPool) -> None:
    register_pool(source)
    with KvPool.anonymous(LAYOUT, 2, source.epoch) as other:
        with pytest.raises(ValueError, match="registered pool already"):
            register_pool(other)
        unregister_pool(other)
    with pytest.raises(ValueError, match="registered"), KvPool.anonymous(LAYOUT, 2, source.epoch) as other:
        register_pool(other)


async def test_bad_fetches_are_refused_before_a_byte_moves(
    source: KvPool, target: KvPool, transport: LocalTransport
) -> None:
    handle = handle_of(source, [1, 2], LocalLocation())
    with pytest.raises(HandleError) as foreign:
        await transport.fetch(replace(handle, location=GrpcLocation()), target, [1, 2])
    assert foreign.value.reason is Reason.HANDLE_FOREIGN
    with pytest.raises(HandleError) as out_of_range:
        await transport.fetch(replace(handle, block_ids=(1, 4)), target, [1, 2])
    assert out_of_range.value.reason is Reason.HANDLE_OUT_OF_RANGE
    with pytest.raises(
        KvTransferError, match="the KV handle's layout has dtype bfloat16; here it is float32"
    ) as layout:
        await transport.fetch(replace(handle, layout=replace(LAYOUT, dtype="bfloat16")), target, [1, 2])
    assert layout.value.reason is Reason.KV_LAYOUT_MISMATCH
    assert layout.value.metadata == {"field": "dtype", "ours": "float32", "theirs": "bfloat16"}
    for block_ids in ([1], [1, 1], [0, 1], [1, 4], [1, -1], [1, 2, 3]):
        with pytest.raises(ValueError, match=r"cannot be put into|are not all in"):
            await transport.fetch(handle, target, block_ids)
    assert not target.tensor.any()


async def test_exports_are_checked(source: KvPool, transport: LocalTransport) -> None:
    owner = LocalTransport(source)
    with pytest.raises(HandleError):
        owner.export([4])
    owner.close()
    with pytest.raises(ValueError, match="no pool to export from"):
        transport.export([1])
