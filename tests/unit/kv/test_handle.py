from dataclasses import replace
from typing import Any

import pytest

from shared.errors import HandleError, Reason
from shared.kv.handle import KvHandle, ShmLocation
from tests.unit.kv.support import LAYOUT

# Tokens 8 … 17 at 4 a block: two full blocks and one with 2 tokens.
HANDLE = KvHandle(
    handle_id=bytes(16),
    epoch="e1",
    request_id="r1",
    first_token=8,
    end_token=18,
    is_final=True,
    block_ids=(5, 2, 9),
    block_generations=(1, 1, 4),
    layout=LAYOUT,
    location=ShmLocation("/dev/shm/baton-kv-e1"),
)


def test_the_last_block_counts_whole() -> None:
    assert HANDLE.num_blocks == 3
    assert HANDLE.num_bytes == 3 * 128


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"handle_id": bytes(15)}, Reason.HANDLE_MALFORMED),
        ({"first_token": 7}, Reason.HANDLE_MALFORMED),
        ({"first_token": -4}, Reason.HANDLE_MALFORMED),
        ({"end_token": 8}, Reason.HANDLE_MALFORMED),
        ({"end_token": 16}, Reason.HANDLE_MALFORMED),
        ({"end_token": 21}, Reason.HANDLE_MALFORMED),
        ({"block_generations": (1, 1)}, Reason.HANDLE_MALFORMED),
        ({"layout": replace(LAYOUT, block_size=0)}, Reason.HANDLE_MALFORMED),
        ({"block_ids": (5, 0, 9)}, Reason.HANDLE_OUT_OF_RANGE),
        ({"block_ids": (5, -1, 9)}, Reason.HANDLE_OUT_OF_RANGE),
        ({"block_ids": (5, 9, 9)}, Reason.HANDLE_REPEATED),
    ],
)
def test_a_handle_that_contradicts_itself_cannot_exist(change: dict[str, Any], reason: Reason) -> None:
    with pytest.raises(HandleError, match=f"KV handle {'00' * 16}|KV handle {'00' * 15}") as caught:
        replace(HANDLE, **change)
    assert caught.value.reason is reason
    assert caught.value.metadata["request_id"] == "r1"
