"""The fetching side alone, against owners that send whatever a test wants."""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.errors import HandleError, KvTransferError, Reason
from shared.kv.handle import KvHandle, LocalLocation
from shared.kv.pool import KvPool
from shared.kv.transports.grpc import GrpcTransport
from tests.unit.kv.support import BLOCK_BYTES, LAYOUT, handle_of

BYTES = bytes(index % 251 for index in range(2 * BLOCK_BYTES))
"""What two blocks hold at the owner."""


@pytest.fixture
def target() -> Iterator[KvPool]:
    with KvPool.anonymous(LAYOUT, 5, "target-epoch") as pool:
        yield pool


class Owner:
    """Sends the given messages, and notes whether the call was closed."""

    def __init__(self, messages: Sequence[tuple[int, bytes]]) -> None:
        self._messages = messages
        self.num_open = 0

    async def open_fetch(self, _handle: KvHandle) -> AsyncGenerator[tuple[int, bytes], None]:
        self.num_open += 1
        try:
            for message in self._messages:
                yield message
        finally:
            self.num_open -= 1


def a_handle(checksum: int | None = None) -> KvHandle:
    with KvPool.anonymous(LAYOUT, 3, "owner-epoch") as pool:
        return handle_of(pool, [2, 1], checksum=checksum)


async def fetch(owner: Owner, handle: KvHandle, target: KvPool, message_bytes: int = 1 << 20) -> None:
    transport = GrpcTransport(owner.open_fetch, message_bytes=message_bytes)
    try:
        await transport.fetch(handle, target, [4, 1])
    finally:
        transport.close()
        assert owner.num_open == 0, "the call is still open"


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.sets(st.integers(1, len(BYTES) - 1), max_size=6), has_checksum=st.booleans())
def test_messages_of_any_size_arrive_in_place(target: KvPool, cuts: set[int], has_checksum: bool) -> None:
    edges = [0, *sorted(cuts), len(BYTES)]
    messages = [(start, BYTES[start:end]) for start, end in pairwise(edges)]
    target.tensor.zero_()
    asyncio.run(fetch(Owner(messages), a_handle(zlib.crc32(BYTES) if has_checksum else None), target))
    assert target.block_view(4) == BYTES[:BLOCK_BYTES]
    assert target.block_view(1) == BYTES[BLOCK_BYTES:]
    assert not target.tensor[[0, 2, 3]].any()


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([(0, BYTES[:100])], "ended after 100 of 256 bytes"),
        ([], "ended after 0 of 256 bytes"),
        ([(100, BYTES[100:])], "bytes of offset 100 came where 0 was due"),
        ([(0, BYTES[:100]), (101, BYTES[101:])], "bytes of offset 101 came where 100 was due"),
        ([(0, BYTES[:100]), (0, BYTES[:100])], "bytes of offset 0 came where 100 was due"),
        ([(0, BYTES[:100]), (100, BYTES[100:] + b"x")], "more than the 256 bytes"),
        ([(0, BYTES), (256, b"x")], "more than the 256 bytes"),
        ([(0, BYTES[:100]), (100, b"")], "a message has 0 bytes of data; 1 to 256 are allowed"),
        ([(0, bytes(257))], "a message has 257 bytes of data"),
    ],
)
async def test_what_the_handle_does_not_say_is_refused(
    target: KvPool, messages: list[tuple[int, bytes]], said: str
) -> None:
    with pytest.raises(KvTransferError, match=said) as caught:
        await fetch(Owner(messages), a_handle(), target, message_bytes=256)
    assert caught.value.reason is Reason.KV_TRANSFER_FAILED
    assert caught.value.metadata == {"request_id": "r1", "epoch": "owner-epoch"}


async def test_bytes_past_the_end_are_written_nowhere(target: KvPool) -> None:
    with pytest.raises(KvTransferError):
        await fetch(Owner([(0, bytes([255]) * 257)]), a_handle(), target)
    assert not target.tensor.any()


async def test_a_flipped_bit_is_found_by_the_checksum(target: KvPool) -> None:
    flipped = bytes([BYTES[0] ^ 1]) + BYTES[1:]
    with pytest.raises(KvTransferError) as caught:
        await fetch(Owner([(0, flipped)]), a_handle(zlib.crc32(BYTES)), target)
    assert caught.value.reason is Reason.KV_CHECKSUM_MISMATCH


async def test_the_owners_own_error_comes_through_and_closes_the_call(target: KvPool) -> None:
    class FailingOwner(Owner):
        async def open_fetch(self, handle: KvHandle) -> AsyncGenerator[tuple[int, bytes], None]:
            async for message in super().open_fetch(handle):
                yield message
            raise HandleError("released", Reason.HANDLE_RELEASED)

    with pytest.raises(HandleError) as caught:
        await fetch(FailingOwner([(0, BYTES)]), a_handle(), target)
    assert caught.value.reason is Reason.HANDLE_RELEASED


async def test_cancelling_a_fetch_closes_the_call(target: KvPool) -> None:
    waiting = asyncio.Event()

    class SilentOwner(Owner):
        async def open_fetch(self, _handle: KvHandle) -> AsyncGenerator[tuple[int, bytes], None]:
            self.num_open += 1
            try:
                yield 0, BYTES[:10]
                waiting.set()
                await asyncio.Event().wait()
            finally:
                self.num_open -= 1

    owner = SilentOwner([])
    task = asyncio.create_task(fetch(owner, a_handle(), target))
    await waiting.wait()
    assert owner.num_open == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert owner.num_open == 0


async def test_no_call_is_opened_for_what_cannot_be_fetched(target: KvPool) -> None:
    opened: list[KvHandle] = []

    async def open_fetch(handle: KvHandle) -> AsyncGenerator[tuple[int, bytes], None]:
        opened.append(handle)
        yield 0, BYTES

    transport = GrpcTransport(open_fetch)
    with pytest.raises(HandleError) as caught:
        await transport.fetch(replace(a_handle(), location=LocalLocation()), target, [1, 2])
    assert caught.value.reason is Reason.HANDLE_FOREIGN
    with pytest.raises(KvTransferError):
        await transport.fetch(replace(a_handle(), layout=replace(LAYOUT, head_dim=4)), target, [1, 2])
    with pytest.raises(ValueError, match="cannot be put into"):
        await transport.fetch(a_handle(), target, [1])
    transport.close()
    with pytest.raises(KvTransferError, match="closed"):
        await transport.fetch(a_handle(), target, [1, 2])
    assert [handle.handle_id for handle in opened] == [a_handle().handle_id]


async def test_each_role_needs_its_half(target: KvPool) -> None:
    exporting = GrpcTransport(pool=target)
    exporting.export([4])
    with pytest.raises(HandleError):
        exporting.export([5])
    with pytest.raises(ValueError, match="no way to open a fetch"):
        await exporting.fetch(a_handle(), target, [1, 2])
    exporting.close()
    fetching = GrpcTransport(Owner([]).open_fetch)
    with pytest.raises(ValueError, match="no pool to export from"):
        fetching.export([1])
    fetching.release(bytes(16))
    fetching.close()
