from dataclasses import replace

import pytest

from prefill_service.exports import ExportTable
from shared.errors import HandleError, Reason
from shared.kv.handle import GrpcLocation, KvHandle
from tests.unit.kv.support import LAYOUT

ID = bytes(range(16))
HANDLE = KvHandle(
    handle_id=ID,
    epoch="now",
    request_id="a",
    first_token=0,
    end_token=4,
    is_final=True,
    block_ids=(1,),
    block_generations=(1,),
    layout=LAYOUT,
    location=GrpcLocation(),
)


def table(*handles: KvHandle) -> ExportTable:
    exports = ExportTable("now")
    for handle in handles:
        exports.add(handle)
    return exports


def refusal(exports: ExportTable, handle_id: bytes = ID, epoch: str = "now", request_id: str = "a") -> HandleError:
    with pytest.raises(HandleError) as caught:
        exports.find(handle_id, epoch, request_id)
    return caught.value


def numbered(number: int) -> KvHandle:
    return replace(HANDLE, handle_id=number.to_bytes(16, "big"))


def test_a_live_handle_is_found() -> None:
    exports = table(HANDLE)
    assert exports.find(ID, "now", "a") is HANDLE
    assert len(exports) == 1


def test_an_id_that_was_never_issued_is_unknown() -> None:
    error = refusal(table(HANDLE), handle_id=b"made up")
    assert error.reason is Reason.HANDLE_UNKNOWN
    assert error.metadata == {"handle_id": b"made up".hex()}


def test_a_released_handle_is_told_apart_from_an_unknown_one() -> None:
    exports = table(HANDLE)
    exports.remove(HANDLE)
    error = refusal(exports)
    assert error.reason is Reason.HANDLE_RELEASED
    assert error.metadata == {"handle_id": "000102030405060708090a0b0c0d0e0f"}
    assert len(exports) == 0


def test_another_requests_handle_is_foreign() -> None:
    assert refusal(table(HANDLE), request_id="b").reason is Reason.HANDLE_FOREIGN


def test_an_old_epoch_is_stale_even_where_the_id_is_live() -> None:
    error = refusal(table(HANDLE), epoch="before")
    assert error.reason is Reason.EPOCH_STALE
    assert error.metadata == {"epoch": "before", "current_epoch": "now"}


def test_the_last_4096_released_ids_are_remembered() -> None:
    exports = table()
    for number in range(4097):
        exports.add(numbered(number))
        exports.remove(numbered(number))
    assert refusal(exports, handle_id=numbered(0).handle_id).reason is Reason.HANDLE_UNKNOWN, "the oldest is forgotten"
    assert refusal(exports, handle_id=numbered(1).handle_id).reason is Reason.HANDLE_RELEASED
    assert refusal(exports, handle_id=numbered(4096).handle_id).reason is Reason.HANDLE_RELEASED


def test_ids_are_128_random_bits() -> None:
    ids = {ExportTable.new_id() for _ in range(100)}
    assert len(ids) == 100
    assert {len(handle_id) for handle_id in ids} == {16}
