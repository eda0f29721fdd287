"""The file format of a pool in shared memory, and the files' lives.

A segment is a file in a tmpfs: one header page, one int64 generation for each block, then, from a page boundary, the
blocks. Its owner holds an exclusive flock as long as it lives, so that a file whose lock can be had is the leaving of
a process that died. The file is locked before it gets a name: a sweep never sees one that is live and unlocked.
"""

import errno
import fcntl
import mmap
import os
import re
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shared.errors import KvTransferError, Reason
from shared.kv.layout import KvLayout

SEGMENT_PREFIX = "baton-kv-"
PROOF_LEN = 16
GENERATION_BYTES = 8

_MAGIC = b"BATON-KV"
_VERSION = 1
_EPOCH = re.compile(r"[A-Za-z0-9-]{1,64}")
_HEADER = struct.Struct("<8sIQ32s64s16s")  # magic, version, num_blocks, layout digest, epoch (zero-padded), proof


@dataclass(frozen=True)
class ShmSegment:
    """What a peer needs to map a segment and to know that it is the one that was offered."""

    path: Path
    proof: bytes
    """`PROOF_LEN` random bytes in the header: who reads the same bytes there shares the memory."""


@dataclass(frozen=True)
class Arrangement:
    """Where things lie in a pool's memory, in bytes from its start."""

    generations_offset: int
    data_offset: int
    num_bytes: int

    @classmethod
    def of(cls, layout: KvLayout, num_blocks: int) -> "Arrangement":
        """The arrangement of `num_blocks` blocks, the same for every kind of pool."""
        generations_offset = mmap.PAGESIZE
        generations_end = generations_offset + num_blocks * GENERATION_BYTES
        data_offset = -(-generations_end // mmap.PAGESIZE) * mmap.PAGESIZE
        return cls(generations_offset, data_offset, data_offset + num_blocks * layout.block_bytes)


@dataclass(frozen=True)
class Header:
    """First bytes of a segment.

    Raises:
        ValueError: the epoch cannot be part of a file name, or the proof has the wrong length.
    """

    layout_digest: bytes
    num_blocks: int
    epoch: str
    proof: bytes

    def __post_init__(self) -> None:
        if not _EPOCH.fullmatch(self.epoch):
            raise ValueError(f"epoch {self.epoch!r} is not 1 to 64 letters, digits and dashes")
        if len(self.proof) != PROOF_LEN:
            raise ValueError(f"proof has {len(self.proof)} bytes, not {PROOF_LEN}")

    def pack(self) -> bytes:
        """The header's bytes."""
        return _HEADER.pack(_MAGIC, _VERSION, self.num_blocks, self.layout_digest, self.epoch.encode(), self.proof)


def create_segment(directory: Path, header: Header, num_bytes: int) -> tuple[int, Path]:
    """Create, lock, fill with zeros and only then name a segment file, mode 0600.

    All its space is taken at once: a tmpfs that is too small is an error now, not a SIGBUS at some later write.

    Returns:
        The open file descriptor, which holds the lock, and the path. The caller closes the one and unlinks the other.

    Raises:
        KvTransferError: the space is not there (metadata: bytes_needed, bytes_available), or the directory is missing,
            not writable, or of a file system without unnamed files.
    """
    path = directory / (SEGMENT_PREFIX + header.epoch)
    try:
        _check_space(directory, num_bytes)
        fd = os.open(directory, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(fd, 0, num_bytes)
            os.pwrite(fd, header.pack(), 0)
            with _directory_fd(directory) as directory_fd:
                # With a directory descriptor Python calls linkat(AT_SYMLINK_FOLLOW), which names the unnamed file.
                os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=directory_fd, follow_symlinks=True)
        except OSError:
            os.close(fd)
            raise
    except OSError as error:
        available = _bytes_available(directory) if directory.is_dir() else 0
        raise KvTransferError(
            f"no shared-memory segment in {directory}: {error.strerror}; {num_bytes} bytes are needed, "
            f"{available} are available",
            metadata={"directory": directory, "bytes_needed": num_bytes, "bytes_available": available},
        ) from error
    return fd, path


def open_segment(directory: Path, path: Path, expected: Header, layout: KvLayout) -> tuple[mmap.mmap, int]:
    """Map another process's segment for reading, if it is what its owner said.

    Args:
        directory: where this process expects segments; a path anywhere else is refused.
        path: from the peer.
        expected: what the header must say; its num_blocks is not compared but read from the file.
        layout: of this process.

    Returns:
        The read-only mapping and its number of blocks.

    Raises:
        KvTransferError: the path lies elsewhere or is no regular file, or the header or the size is not as expected.
    """
    if path.parent != directory or not path.name.startswith(SEGMENT_PREFIX):
        raise _not_usable(path, f"not named {directory}/{SEGMENT_PREFIX}…")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _not_usable(path, f"cannot be opened ({error.strerror})") from error
    except ValueError as error:
        raise _not_usable(path, f"cannot be opened ({error})") from error
    try:
        num_blocks, num_bytes = _check_file(fd, path, expected, layout)
        return mmap.mmap(fd, num_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ), num_blocks
    finally:
        os.close(fd)


def sweep_stale_segments(directory: Path) -> list[Path]:
    """Remove the segments of processes that died without removing them: those whose lock can be had.

    Files of live processes, of other users and of other programs stay.

    Returns:
        The removed paths.
    """
    return [path for path in sorted(directory.glob(SEGMENT_PREFIX + "*")) if _remove_if_stale(path)]


def _remove_if_stale(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # gone meanwhile, a link, or another user's
        return False
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another sweep may have removed it, and a new process taken the name, between open and lock.
        if not os.path.samestat(os.fstat(fd), path.lstat()):
            return False
        path.unlink()
    except (BlockingIOError, FileNotFoundError, PermissionError):
        return False
    else:
        return True
    finally:
        os.close(fd)


def _check_file(fd: int, path: Path, expected: Header, layout: KvLayout) -> tuple[int, int]:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise _not_usable(path, "not a regular file")
    raw = os.pread(fd, _HEADER.size, 0)
    if len(raw) < _HEADER.size:
        raise _not_usable(path, f"truncated to {len(raw)} bytes")
    magic, version, num_blocks, layout_digest, epoch, proof = _HEADER.unpack(raw)
    if magic != _MAGIC:
        raise _not_usable(path, f"magic is {magic!r}, not {_MAGIC!r}")
    if version != _VERSION:
        raise _not_usable(path, f"version is {version}, not {_VERSION}")
    if layout_digest != expected.layout_digest:
        raise _not_usable(path, "its KV layout is another one", Reason.KV_LAYOUT_MISMATCH)
    if epoch.rstrip(b"\0") != expected.epoch.encode():
        raise _not_usable(path, f"it belongs to another epoch than {expected.epoch}")
    if proof != expected.proof:
        raise _not_usable(path, "its proof is not the one offered")
    num_bytes = Arrangement.of(layout, num_blocks).num_bytes
    if status.st_size != num_bytes:
        raise _not_usable(path, f"it has {status.st_size} bytes; {num_blocks} blocks take {num_bytes}")
    return num_blocks, num_bytes


def _check_space(directory: Path, num_bytes: int) -> None:
    if num_bytes > _bytes_available(directory):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _bytes_available(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


@contextmanager
def _directory_fd(directory: Path) -> Iterator[int]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _not_usable(path: Path, why: str, reason: Reason = Reason.KV_TRANSFER_FAILED) -> KvTransferError:
    return KvTransferError(f"shared-memory segment {path} is not usable: {why}", reason, {"path": path})
