import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from shared.errors import HandleError, KvTransferError, Reason
from shared.kv.handle import GrpcLocation, ShmLocation
from shared.kv.pool import KvPool
from shared.kv.transports import blocks
from shared.kv.transports.blocks import checksum
from shared.kv.transports.shm import ShmTransport
from tests.unit.kv.support import LAYOUT, fill, handle_of


@pytest.fixture
def source(shm_dir: Path) -> Iterator[KvPool]:
    with KvPool.shared(LAYOUT, 5, "source-epoch", shm_dir) as pool:
        fill(pool, [1, 2, 3, 4])
        yield pool


@pytest.fixture
def target() -> Iterator[KvPool]:
    with KvPool.anonymous(LAYOUT, 5, "target-epoch") as pool:
        yield pool


@pytest.fixture
def owner(source: KvPool, shm_dir: Path) -> Iterator[ShmTransport]:
    transport = ShmTransport(shm_dir, source)
    yield transport
    transport.close()


@pytest.fixture
def transport(source: KvPool, shm_dir: Path) -> Iterator[ShmTransport]:
    transport = ShmTransport(shm_dir)
    attach(transport, source)
    yield transport
    transport.close()


def attach(transport: ShmTransport, source: KvPool) -> None:
    assert source.segment is not None
    transport.attach(str(source.segment.path), source.layout, source.epoch, source.segment.proof)


async def test_fetch(source: KvPool, target: KvPool, owner: ShmTransport, transport: ShmTransport) -> None:
    handle = handle_of(source, [4, 2], owner.export([4, 2]), checksum(source, [4, 2]))
    await transport.fetch(handle, target, [1, 3])
    assert target.block_view(1) == source.block_view(4)
    assert target.block_view(3) == source.block_view(2)
    assert not target.tensor[[0, 2, 4]].any()
    owner.release(handle.handle_id)


async def test_a_block_recycled_during_the_copy_is_an_error(
    source: KvPool, target: KvPool, owner: ShmTransport, transport: ShmTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = handle_of(source, [4, 2], owner.export([4, 2]))

    def torn_copy(destination: memoryview, origin: memoryview) -> None:
        destination[:64] = origin[:64]
        source.generations[4] += 1
        source.tensor[4] = -1
        destination[64:] = origin[64:]

    monkeypatch.setattr(blocks, "copy_bytes", torn_copy)
    with pytest.raises(KvTransferError) as caught:
        await transport.fetch(handle, target, [1, 3])
    assert caught.value.reason is Reason.KV_BLOCK_RECYCLED
    assert caught.value.metadata == {"block_id": "4", "expected": "0", "found": "1"}


async def test_a_fetch_that_succeeds_beside_a_writer_is_never_torn(
    shm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread recycles a block whenever a copy of it begins: a fetch fails, or has one generation's bytes only."""
    layout = replace(LAYOUT, block_size=32, num_layers=8, num_kv_heads=4, head_dim=32)
    copy_bytes = blocks.copy_bytes
    copy_begins = threading.Event()
    is_written = threading.Semaphore(0)
    is_over = threading.Event()
    failures = set()

    def recycle(source: KvPool) -> None:
        while not is_over.is_set():
            copy_begins.wait()
            copy_begins.clear()
            source.generations[1] += 1
            copy_bytes(source.block_view(1), bytes([source.generations[1] % 256]) * layout.block_bytes)
            is_written.release()

    def announced_copy(destination: memoryview, origin: memoryview) -> None:
        copy_begins.set()
        copy_bytes(destination, origin)

    monkeypatch.setattr(blocks, "copy_bytes", announced_copy)
    with (
        KvPool.shared(layout, 2, "source-epoch", shm_dir) as source,
        KvPool.anonymous(layout, 2, "target-epoch") as target,
        closing(ShmTransport(shm_dir, source)) as transport,
    ):
        attach(transport, source)
        recycler = threading.Thread(target=recycle, args=(source,))
        recycler.start()
        try:
            for _ in range(200):
                handle = handle_of(source, [1], transport.export([1]))
                try:
                    await transport.fetch(handle, target, [1])
                except KvTransferError as error:
                    failures.add(error.reason)
                else:
                    assert target.block_view(1) == bytes([handle.block_generations[0] % 256]) * layout.block_bytes
                await asyncio.to_thread(is_written.acquire)
        finally:
            is_over.set()
            copy_begins.set()
            recycler.join()
    assert failures <= {Reason.KV_BLOCK_RECYCLED}


async def test_a_peer_that_came_back_has_a_new_epoch(
    source: KvPool, target: KvPool, owner: ShmTransport, transport: ShmTransport, shm_dir: Path
) -> None:
    old = handle_of(source, [1], owner.export([1]))
    transport.detach(source.epoch)
    transport.detach(source.epoch)
    with KvPool.shared(LAYOUT, 5, "second-epoch", shm_dir) as second:
        attach(transport, second)
        with pytest.raises(HandleError, match="epoch 'source-epoch', which is not connected") as caught:
            await transport.fetch(old, target, [1])
    assert caught.value.reason is Reason.EPOCH_STALE
    assert caught.value.metadata == {"epoch": "source-epoch", "connected_epochs": "second-epoch"}


async def test_fetches_from_several_peers(
    source: KvPool, target: KvPool, owner: ShmTransport, transport: ShmTransport, shm_dir: Path
) -> None:
    with KvPool.shared(LAYOUT, 3, "second-epoch", shm_dir) as second:
        fill(second, [2])
        attach(transport, second)
        attach(transport, second)
        second_owner = ShmTransport(shm_dir, second)
        await transport.fetch(handle_of(second, [2], second_owner.export([2])), target, [1])
        await transport.fetch(handle_of(source, [4], owner.export([4])), target, [2])
        assert target.block_view(1) == second.block_view(2)
        assert target.block_view(2) == source.block_view(4)
        second_owner.close()


async def test_what_the_handle_names_is_checked(
    source: KvPool, target: KvPool, owner: ShmTransport, transport: ShmTransport
) -> None:
    handle = handle_of(source, [1, 2], owner.export([1, 2]))
    for location in (ShmLocation("/dev/shm/baton-kv-other"), GrpcLocation()):
        with pytest.raises(HandleError) as foreign:
            await transport.fetch(replace(handle, location=location), target, [1, 2])
        assert foreign.value.reason is Reason.HANDLE_FOREIGN
    with pytest.raises(HandleError) as out_of_range:
        await transport.fetch(replace(handle, block_ids=(1, 5)), target, [1, 2])
    assert out_of_range.value.reason is Reason.HANDLE_OUT_OF_RANGE
    with pytest.raises(HandleError):
        owner.export([5])
    assert not target.tensor.any()


async def test_an_offer_that_cannot_be_proved_attaches_nothing(
    source: KvPool, target: KvPool, owner: ShmTransport, shm_dir: Path, tmp_path: Path
) -> None:
    assert source.segment is not None
    path, proof = str(source.segment.path), source.segment.proof
    blind = ShmTransport(tmp_path)
    with pytest.raises(KvTransferError, match="not named"):
        blind.attach(path, LAYOUT, source.epoch, proof)
    liar = ShmTransport(shm_dir)
    with pytest.raises(KvTransferError, match="proof"):
        liar.attach(path, LAYOUT, source.epoch, bytes(16))
    for transport in (blind, liar):
        with pytest.raises(HandleError):
            await transport.fetch(handle_of(source, [1], owner.export([1])), target, [1])
        with pytest.raises(ValueError, match="no shared pool"):
            transport.export([1])
        transport.close()


async def test_detaching_ends_a_copy_that_runs(
    source: KvPool, target: KvPool, owner: ShmTransport, transport: ShmTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_bytes = blocks.copy_bytes

    def copy_then_detach(destination: memoryview, origin: memoryview) -> None:
        copy_bytes(destination, origin)
        transport.detach(source.epoch)

    monkeypatch.setattr(blocks, "copy_bytes", copy_then_detach)
    with pytest.raises(KvTransferError, match="the pool of epoch source-epoch is closed"):
        await transport.fetch(handle_of(source, [1, 2], owner.export([1, 2])), target, [1, 2])
