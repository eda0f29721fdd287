"""Handles that are out: which blocks each one pins, for whom, and what became of it."""

import secrets
from collections import OrderedDict

from shared.errors import HandleError, Reason
from shared.kv.handle import KvHandle

_MAX_REMEMBERED = 4096
"""Released handle ids remembered, so that a late use is told apart from a made-up one."""


class ExportTable:
    """Live handles by id. Pure accounting: pinning the blocks is the caller's."""

    def __init__(self, epoch: str) -> None:
        self._epoch = epoch
        self._live: dict[bytes, KvHandle] = {}
        self._released: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._live)

    @staticmethod
    def new_id() -> bytes:
        """128 random bits."""
        return secrets.token_bytes(16)

    def add(self, handle: KvHandle) -> None:
        """Makes a handle live."""
        assert handle.handle_id not in self._live
        self._live[handle.handle_id] = handle

    def find(self, handle_id: bytes, epoch: str, request_id: str) -> KvHandle:
        """The live handle with this id.

        Raises:
            HandleError: the epoch is another process's (EPOCH_STALE), the handle was released (HANDLE_RELEASED), was
                never issued (HANDLE_UNKNOWN), or belongs to another request (HANDLE_FOREIGN).
        """
        if epoch != self._epoch:
            raise HandleError(
                f"the handle is of epoch {epoch!r}; this process is {self._epoch!r}",
                Reason.EPOCH_STALE,
                {"epoch": epoch, "current_epoch": self._epoch},
            )
        handle = self._live.get(handle_id)
        metadata = {"handle_id": handle_id.hex()}
        if handle is None and handle_id in self._released:
            raise HandleError("the handle was released", Reason.HANDLE_RELEASED, metadata)
        if handle is None:
            raise HandleError("no such handle was issued", Reason.HANDLE_UNKNOWN, metadata)
        if handle.request_id != request_id:
            raise HandleError("the handle belongs to another request", Reason.HANDLE_FOREIGN, metadata)
        return handle

    def remove(self, handle: KvHandle) -> None:
        """Ends a live handle."""
        del self._live[handle.handle_id]
        self._released[handle.handle_id] = None
        if len(self._released) > _MAX_REMEMBERED:
            self._released.popitem(last=False)
