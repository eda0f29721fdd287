"""The memory of KV blocks: one process's own, and read-only views of another's."""

import mmap
import os
import secrets
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from shared.errors import HandleError, KvTransferError, Reason
from shared.kv.dtypes import torch_dtype
from shared.kv.layout import KvLayout
from shared.kv.segment import (
    GENERATION_BYTES,
    PROOF_LEN,
    Arrangement,
    Header,
    ShmSegment,
    create_segment,
    open_segment,
    sweep_stale_segments,
)

_MADV_POPULATE_READ = 22
"""Of Linux 5.14 and later, include/uapi/asm-generic/mman-common.h; the mmap module has no name for it yet."""
_POPULATE_BYTES = 8 << 20
"""At a time: half a millisecond, for which the interpreter's lock is held."""

__all__ = ["KvPool", "MappedPool", "ShmSegment", "sweep_stale_segments"]


class _Blocks:
    """Views of a mapping in which a pool is arranged."""

    def __init__(self, memory: mmap.mmap, layout: KvLayout, num_blocks: int, epoch: str) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self.epoch = epoch
        self._arrangement = Arrangement.of(layout, num_blocks)
        self._memory = memory
        self._block_bytes = layout.block_bytes
        with memoryview(memory) as view:
            generations = view[self._arrangement.generations_offset :][: num_blocks * GENERATION_BYTES]
            self.generations: memoryview[int] = generations.cast("q")
            self._data = view[self._arrangement.data_offset :]

    def check_ids(self, block_ids: Sequence[int]) -> None:
        """Check that all blocks are in the pool.

        Raises:
            HandleError: one is not (HANDLE_OUT_OF_RANGE; metadata: block_id, num_blocks).
        """
        for block_id in block_ids:
            if not 0 <= block_id < self.num_blocks:
                raise HandleError(
                    f"block {block_id} is not one of the {self.num_blocks} of epoch {self.epoch}",
                    Reason.HANDLE_OUT_OF_RANGE,
                    {"block_id": block_id, "num_blocks": self.num_blocks},
                )

    def block_view(self, block_id: int) -> memoryview:
        """The bytes of one block, in place.

        Raises:
            HandleError: there is no such block.
            KvTransferError: the pool is closed.
        """
        self.check_ids((block_id,))
        try:
            return self._data[block_id * self._block_bytes : (block_id + 1) * self._block_bytes]
        except ValueError as error:  # the view is released
            raise self._closed() from error

    def generation(self, block_id: int) -> int:
        """How often a block was allocated until now.

        Raises:
            HandleError: there is no such block.
            KvTransferError: the pool is closed.
        """
        self.check_ids((block_id,))
        try:
            return self.generations[block_id]
        except ValueError as error:  # the view is released
            raise self._closed() from error

    def close(self) -> None:
        """Give the memory back; repeating it does nothing.

        Where a tensor or a block view is still alive somewhere, the memory goes with the last of them.
        """
        self.generations.release()
        self._data.release()
        with suppress(BufferError):
            self._memory.close()

    def _closed(self) -> KvTransferError:
        return KvTransferError(f"the pool of epoch {self.epoch} is closed", metadata={"epoch": self.epoch})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class KvPool(_Blocks):
    """This process's blocks. Made by `anonymous` or `shared`; block 0 is scratch.

    Attributes:
        tensor: [num_blocks, num_layers, 2, num_kv_heads, block_size * head_dim] of the layout's dtype, zero at first:
            a stale NaN times 0 would not be neutral where padding reads it. Gone after `close`.
        generations: one int64 a block, for `BlockAllocator`; other processes can read a shared pool's.
        segment: where a shared pool lies; None for an anonymous one.
    """

    def __init__(self, memory: mmap.mmap, layout: KvLayout, num_blocks: int, epoch: str) -> None:
        super().__init__(memory, layout, num_blocks, epoch)
        self.segment: ShmSegment | None = None
        self._fd: int | None = None
        # The tensor gets a view of its own that nobody releases, so that the memory cannot be unmapped under it.
        data = memoryview(memory)[self._arrangement.data_offset :]
        self.tensor = torch.frombuffer(data, dtype=torch_dtype(layout.dtype)).view(num_blocks, *layout.block_shape)
        # Touches every page, so that no step pays for page faults.
        self.tensor.zero_()

    @classmethod
    def anonymous(cls, layout: KvLayout, num_blocks: int, epoch: str) -> Self:
        """A pool in memory of this process alone.

        Raises:
            OSError: the memory is not there.
        """
        num_bytes = Arrangement.of(layout, num_blocks).num_bytes
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        return cls(memory, layout, num_blocks, epoch)

    @classmethod
    def shared(cls, layout: KvLayout, num_blocks: int, epoch: str, directory: Path) -> Self:
        """A pool in a file `baton-kv-<epoch>` that other processes of this user can map.

        Args:
            layout: of the blocks.
            num_blocks: the scratch block included.
            epoch: random id of this process: 1 to 64 letters, digits and dashes.
            directory: of a tmpfs, such as /dev/shm.

        Raises:
            KvTransferError: the directory has no room (metadata: bytes_needed, bytes_available) or cannot hold it.
            ValueError: the epoch has other characters.
        """
        header = Header(layout.digest(), num_blocks, epoch, secrets.token_bytes(PROOF_LEN))
        num_bytes = Arrangement.of(layout, num_blocks).num_bytes
        fd, path = create_segment(directory, header, num_bytes)
        with ExitStack() as undo:
            undo.callback(os.close, fd)
            undo.callback(path.unlink, missing_ok=True)
            pool = cls(mmap.mmap(fd, num_bytes), layout, num_blocks, epoch)
            undo.pop_all()
        pool.segment = ShmSegment(path, header.proof)
        pool._fd = fd
        return pool

    def close(self) -> None:
        """Remove the file and give the memory back; repeating it does nothing."""
        if self.segment is not None:
            self.segment.path.unlink(missing_ok=True)
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        with suppress(AttributeError):
            del self.tensor
        super().close()


class MappedPool(_Blocks):
    """Another process's shared pool, mapped read-only. Made by `open`."""

    @classmethod
    def open(cls, path: Path, layout: KvLayout, epoch: str, proof: bytes, directory: Path) -> Self:
        """Map the segment at `path` if it is what its owner's handshake said.

        Args:
            path: from the handshake.
            layout: of this process; the segment's must be equal.
            epoch: of the owner.
            proof: from the handshake; the segment's header must hold the same bytes.
            directory: this process's own shm directory; a path elsewhere is refused.

        Raises:
            KvTransferError: the file is elsewhere, a link, truncated or not a segment, or has another version, layout,
                epoch or proof.
        """
        try:
            expected = Header(layout.digest(), 0, epoch, proof)
        except ValueError as error:
            raise KvTransferError(f"the peer's shared-memory offer is malformed: {error}") from error
        memory, num_blocks = open_segment(directory, path, expected, layout)
        return cls(memory, layout, num_blocks, epoch)

    def populate(self) -> None:
        """Maps all pages now, so that no copy pays for page faults, which would take a third of its time.

        Blocking; ends early where the pool is closed meanwhile, or the kernel cannot do it.
        """
        with suppress(ValueError, OSError):  # closed; a kernel before 5.14
            for start in range(0, len(self._memory), _POPULATE_BYTES):
                num_bytes = min(_POPULATE_BYTES, len(self._memory) - start)
                self._memory.madvise(_MADV_POPULATE_READ, start, num_bytes)
