import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import HandleError, KvTransferError, Reason
from shared.kv.pool import KvPool
from shared.kv.transports import blocks
from shared.kv.transports.blocks import MESSAGE_OVERHEAD_BYTES, checksum, copy_blocks, read_blocks, write_piece
from tests.unit.kv.support import BLOCK_BYTES, LAYOUT, fill, handle_of


def not_abandoned() -> bool:
    return False


def test_pieces_cross_block_edges_and_leave_room_for_the_message() -> None:
    with KvPool.anonymous(LAYOUT, 4, "e1") as pool:
        fill(pool, [1, 2, 3])
        pieces = list(read_blocks(pool, [3, 1], message_bytes=100 + MESSAGE_OVERHEAD_BYTES))
        assert [(offset, len(data)) for offset, data in pieces] == [(0, 100), (100, 100), (200, 56)]
        assert b"".join(data for _, data in pieces) == pool.block_view(3).tobytes() + pool.block_view(1).tobytes()


def test_default_messages_are_at_most_1_mib() -> None:
    assert blocks.MESSAGE_BYTES == 1 << 20
    with KvPool.anonymous(LAYOUT, 2, "e1") as pool:
        assert [offset for offset, _ in read_blocks(pool, [1])] == [0]


@given(piece_len=st.integers(1, 3 * BLOCK_BYTES + 1), order=st.permutations([1, 2, 3]))
def test_written_pieces_restore_the_blocks(piece_len: int, order: list[int]) -> None:
    with KvPool.anonymous(LAYOUT, 4, "e1") as source, KvPool.anonymous(LAYOUT, 5, "e2") as target:
        fill(source, [1, 2, 3])
        for offset, data in read_blocks(source, order, piece_len + MESSAGE_OVERHEAD_BYTES):
            write_piece(target, [4, 2, 1], offset, data)
        for source_id, target_id in zip(order, [4, 2, 1], strict=True):
            assert target.block_view(target_id) == source.block_view(source_id)
        assert not target.tensor[3].any()
        assert not target.tensor[0].any()


def test_checksum_is_the_crc_32_of_the_blocks_in_order() -> None:
    with KvPool.anonymous(LAYOUT, 3, "e1") as pool:
        fill(pool, [1, 2])
        assert checksum(pool, [2, 1]) == zlib.crc32(pool.block_view(2).tobytes() + pool.block_view(1).tobytes())
        assert checksum(pool, [2, 1]) != checksum(pool, [1, 2])


def test_copy_goes_to_the_parallel_blocks_only() -> None:
    with KvPool.anonymous(LAYOUT, 4, "e1") as source, KvPool.anonymous(LAYOUT, 4, "e2") as target:
        fill(source, [1, 2, 3])
        handle = handle_of(source, [3, 1], checksum=checksum(source, [3, 1]))
        copy_blocks(source, handle, target, [1, 2], not_abandoned)
        assert target.block_view(1) == source.block_view(3)
        assert target.block_view(2) == source.block_view(1)
        assert not target.tensor[3].any()


def test_a_block_recycled_before_the_copy_is_not_copied() -> None:
    with KvPool.anonymous(LAYOUT, 3, "e1") as source, KvPool.anonymous(LAYOUT, 3, "e2") as target:
        fill(source, [1, 2])
        handle = handle_of(source, [2])
        source.generations[2] += 1
        with pytest.raises(KvTransferError, match="block 2 of epoch e1 was recycled") as caught:
            copy_blocks(source, handle, target, [1], not_abandoned)
        assert caught.value.reason is Reason.KV_BLOCK_RECYCLED
        assert caught.value.metadata == {"block_id": "2", "expected": "0", "found": "1"}
        assert not target.tensor.any()


def test_a_block_recycled_during_the_copy_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner allocates the block anew, and overwrites it, when half of it is copied."""
    with KvPool.anonymous(LAYOUT, 3, "e1") as source, KvPool.anonymous(LAYOUT, 3, "e2") as target:
        fill(source, [1, 2])
        handle = handle_of(source, [1, 2])

        num_copies = 0

        def torn_copy(destination: memoryview, origin: memoryview) -> None:
            nonlocal num_copies
            num_copies += 1
            destination[:64] = origin[:64]
            if num_copies == 2:
                source.generations[2] += 1
                source.tensor[2] = -1
            destination[64:] = origin[64:]

        monkeypatch.setattr(blocks, "copy_bytes", torn_copy)
        with pytest.raises(KvTransferError) as caught:
            copy_blocks(source, handle, target, [1, 2], not_abandoned)
        assert caught.value.reason is Reason.KV_BLOCK_RECYCLED
        assert caught.value.metadata["block_id"] == "2"


def test_a_checksum_that_differs_is_an_error() -> None:
    with KvPool.anonymous(LAYOUT, 2, "e1") as source, KvPool.anonymous(LAYOUT, 2, "e2") as target:
        fill(source, [1])
        handle = handle_of(source, [1], checksum=checksum(source, [1]) ^ 1)
        with pytest.raises(KvTransferError) as caught:
            copy_blocks(source, handle, target, [1], not_abandoned)
        assert caught.value.reason is Reason.KV_CHECKSUM_MISMATCH


def test_ids_that_the_source_does_not_have_are_refused() -> None:
    with KvPool.anonymous(LAYOUT, 5, "e1") as wide, KvPool.anonymous(LAYOUT, 3, "e1") as source:
        with pytest.raises(HandleError) as caught, KvPool.anonymous(LAYOUT, 3, "e2") as target:
            copy_blocks(source, handle_of(wide, [4]), target, [1], not_abandoned)
        assert caught.value.reason is Reason.HANDLE_OUT_OF_RANGE


def test_an_abandoned_copy_stops_at_the_next_block() -> None:
    with KvPool.anonymous(LAYOUT, 3, "e1") as source, KvPool.anonymous(LAYOUT, 3, "e2") as target:
        fill(source, [1, 2])
        answers = iter([False, True])
        copy_blocks(source, handle_of(source, [1, 2]), target, [1, 2], lambda: next(answers))
        assert target.block_view(1) == source.block_view(1)
        assert not target.tensor[2].any()
