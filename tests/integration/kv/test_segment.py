"""Shared pools: what lies in the file, who may map it, and who removes it."""

import errno
import fcntl
import os
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.errors import HandleError, KvTransferError, Reason
from shared.kv.pool import KvPool, MappedPool, ShmSegment, sweep_stale_segments
from tests.unit.kv.support import BLOCK_BYTES, LAYOUT, fill

REPOSITORY = Path(__file__).parents[3]

EPOCH_OFFSET = 8 + 4 + 8 + 32
PROOF_OFFSET = EPOCH_OFFSET + 64

OWNER = """
import sys
from pathlib import Path
from shared.kv.layout import KvLayout
from shared.kv.pool import KvPool
layout = KvLayout("token_major", "float32", block_size=4, num_layers=2, num_kv_heads=1, head_dim=2)
pool = KvPool.shared(layout, 4, "child", Path(sys.argv[1]))
pool.tensor[3] = 7.0
pool.generations[3] = 5
print(pool.segment.proof.hex(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def pool(shm_dir: Path) -> Iterator[KvPool]:
    with KvPool.shared(LAYOUT, 4, "e1", shm_dir) as pool:
        yield pool


def segment_of(pool: KvPool) -> ShmSegment:
    assert pool.segment is not None
    return pool.segment


def open_mapped(pool: KvPool, **changes: Any) -> MappedPool:
    """Map a pool as the peer of an honest owner would, but for the given arguments."""
    segment = segment_of(pool)
    arguments: dict[str, Any] = {
        "path": segment.path,
        "layout": pool.layout,
        "epoch": pool.epoch,
        "proof": segment.proof,
        "directory": segment.path.parent,
    }
    return MappedPool.open(**(arguments | changes))


def num_open_fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_file(pool: KvPool, shm_dir: Path) -> None:
    segment = segment_of(pool)
    assert segment.path == shm_dir / "baton-kv-e1"
    status = segment.path.stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_size == 4096 + 4096 + 4 * BLOCK_BYTES
    assert status.st_blocks * 512 >= status.st_size, "all space is taken, so no later write can fail"
    header = segment.path.read_bytes()[: PROOF_OFFSET + 16]
    assert header[:8] == b"BATON-KV"
    assert struct.unpack_from("<IQ", header, 8) == (1, 4)
    assert header[20:52] == LAYOUT.digest()
    assert header[EPOCH_OFFSET:PROOF_OFFSET] == b"e1".ljust(64, b"\0")
    assert header[PROOF_OFFSET:] == segment.proof


def test_the_reader_sees_the_owners_memory_and_cannot_write(pool: KvPool) -> None:
    with open_mapped(pool) as mapped:
        assert mapped.num_blocks == 4
        fill(pool, [1, 3])
        pool.generations[3] = 2**62
        assert mapped.block_view(3) == pool.block_view(3)
        assert mapped.block_view(2) == bytes(BLOCK_BYTES)
        assert mapped.generation(3) == 2**62
        assert mapped.block_view(3).readonly
        assert mapped.generations.readonly
        with pytest.raises(HandleError) as caught:
            mapped.block_view(4)
        assert caught.value.reason is Reason.HANDLE_OUT_OF_RANGE


def test_close_removes_the_file_and_leaves_no_descriptor(shm_dir: Path) -> None:
    before = num_open_fds()
    pool = KvPool.shared(LAYOUT, 4, "e1", shm_dir)
    mapped = open_mapped(pool)
    assert num_open_fds() > before
    pool.close()
    pool.close()
    assert list(shm_dir.iterdir()) == []
    assert mapped.block_view(3) == bytes(BLOCK_BYTES), "the reader's mapping outlives the owner's file"
    mapped.close()
    mapped.close()
    assert num_open_fds() == before


def test_two_pools_on_one_host_do_not_collide(pool: KvPool, shm_dir: Path) -> None:
    with KvPool.shared(LAYOUT, 4, "e2", shm_dir) as other:
        assert segment_of(other).path != segment_of(pool).path
        assert segment_of(other).proof != segment_of(pool).proof
    with pytest.raises(KvTransferError, match="File exists"):
        KvPool.shared(LAYOUT, 4, "e1", shm_dir)
    assert segment_of(pool).path.exists()


@pytest.mark.parametrize("epoch", ["", "../e1", "a/b", "a" * 65, "e\0"])
def test_an_epoch_that_is_no_file_name_is_refused(shm_dir: Path, epoch: str) -> None:
    with pytest.raises(ValueError, match="letters, digits and dashes"):
        KvPool.shared(LAYOUT, 4, epoch, shm_dir)
    assert list(shm_dir.iterdir()) == []


def test_a_tmpfs_that_is_too_small_is_an_error_with_both_numbers(shm_dir: Path) -> None:
    num_blocks = 1 << 48
    before = num_open_fds()
    with pytest.raises(KvTransferError, match="No space left on device") as caught:
        KvPool.shared(LAYOUT, num_blocks, "e1", shm_dir)
    assert int(caught.value.metadata["bytes_needed"]) == 4096 + num_blocks * (8 + BLOCK_BYTES)
    assert 0 < int(caught.value.metadata["bytes_available"]) < num_blocks
    assert list(shm_dir.iterdir()) == []
    assert num_open_fds() == before


def test_space_that_others_take_meanwhile_is_the_same_error(shm_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = num_open_fds()
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(KvTransferError, match="No space left on device"):
        KvPool.shared(LAYOUT, 4, "e1", shm_dir)
    assert list(shm_dir.iterdir()) == []
    assert num_open_fds() == before


def test_a_missing_directory_is_an_error(shm_dir: Path) -> None:
    with pytest.raises(KvTransferError, match="No such file or directory"):
        KvPool.shared(LAYOUT, 4, "e1", shm_dir / "missing")


def test_a_segment_has_no_name_before_it_is_locked_and_whole(shm_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a sweep between creation and lock would remove a live segment."""
    link = os.link
    at_link: list[tuple[list[Path], int]] = []

    def spy(source: str, target: Path, **options: Any) -> None:
        fd = os.open(source, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        at_link.append((list(shm_dir.iterdir()), os.fstat(fd).st_size))
        os.close(fd)
        link(source, target, **options)

    monkeypatch.setattr(os, "link", spy)
    with KvPool.shared(LAYOUT, 4, "e1", shm_dir):
        assert at_link == [([], 4096 + 4096 + 4 * BLOCK_BYTES)]
        assert [path.name for path in shm_dir.iterdir()] == ["baton-kv-e1"]


@pytest.mark.parametrize(
    ("offset", "replacement", "said"),
    [
        (0, b"BATON-KW", "magic is b'BATON-KW'"),
        (8, struct.pack("<I", 2), "version is 2, not 1"),
        (12, struct.pack("<Q", 5), "5 blocks take"),
        (12, struct.pack("<Q", 2**64 - 1), "blocks take"),
        (20, bytes(32), "its KV layout is another one"),
        (EPOCH_OFFSET, b"e2", "another epoch than e1"),
        (EPOCH_OFFSET, b"e1x", "another epoch than e1"),
        (PROOF_OFFSET, bytes(16), "proof is not the one offered"),
    ],
)
def test_a_header_that_says_otherwise_is_refused(pool: KvPool, offset: int, replacement: bytes, said: str) -> None:
    with segment_of(pool).path.open("r+b") as file:
        file.seek(offset)
        file.write(replacement)
    before = num_open_fds()
    with pytest.raises(KvTransferError, match=said):
        open_mapped(pool)
    assert num_open_fds() == before


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layout": replace(LAYOUT, num_kv_heads=2)}, Reason.KV_LAYOUT_MISMATCH),
        ({"epoch": "e2"}, Reason.KV_TRANSFER_FAILED),
        ({"epoch": "../e1"}, Reason.KV_TRANSFER_FAILED),
        ({"proof": bytes(16)}, Reason.KV_TRANSFER_FAILED),
        ({"proof": b""}, Reason.KV_TRANSFER_FAILED),
    ],
)
def test_a_segment_other_than_the_expected_is_refused(pool: KvPool, changes: dict[str, Any], reason: Reason) -> None:
    with pytest.raises(KvTransferError) as caught:
        open_mapped(pool, **changes)
    assert caught.value.reason is reason


@pytest.mark.parametrize("size", [0, 100, 4096, 4096 + 4096 + 4 * BLOCK_BYTES - 1, 4096 + 4096 + 4 * BLOCK_BYTES + 1])
def test_a_file_of_another_size_is_refused(pool: KvPool, shm_dir: Path, size: int) -> None:
    copy = shm_dir / "baton-kv-copy"
    copy.write_bytes(segment_of(pool).path.read_bytes().ljust(size, b"\0")[:size])
    with pytest.raises(KvTransferError, match=r"truncated to|it has \d+ bytes; 4 blocks take"):
        open_mapped(pool, path=copy)


def test_only_regular_files_of_the_own_directory_are_opened(pool: KvPool, shm_dir: Path) -> None:
    path = segment_of(pool).path
    link = shm_dir / "baton-kv-link"
    link.symlink_to(path)
    fifo = shm_dir / "baton-kv-fifo"
    os.mkfifo(fifo)
    directory = shm_dir / "baton-kv-directory"
    directory.mkdir()
    elsewhere = directory / path.name
    os.link(path, elsewhere)
    other_name = shm_dir / "segment"
    os.link(path, other_name)
    for refused, said in [
        (link, "cannot be opened"),
        (fifo, "not a regular file"),
        (directory, "not a regular file"),
        (elsewhere, "not named"),
        (other_name, "not named"),
        (shm_dir / "baton-kv-missing", "cannot be opened"),
        (directory / ".." / path.name, "not named"),
        (Path(path.name), "not named"),
    ]:
        with pytest.raises(KvTransferError, match=said):
            open_mapped(pool, path=refused)


def start_owner(shm_dir: Path) -> tuple[subprocess.Popen[str], bytes]:
    """A process with a shared pool of epoch `child`, and the pool's proof."""
    child = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(shm_dir)],
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    return child, bytes.fromhex(child.stdout.readline())


def test_the_sweep_takes_the_segments_of_dead_processes_only(pool: KvPool, shm_dir: Path) -> None:
    child, proof = start_owner(shm_dir)
    with child:
        try:
            childs = shm_dir / "baton-kv-child"
            assert sweep_stale_segments(shm_dir) == []
            with open_mapped(pool, path=childs, epoch="child", proof=proof) as mapped:
                assert mapped.generation(3) == 5
                assert memoryview(mapped.block_view(3)).cast("f").tolist() == [7.0] * 32
                child.send_signal(signal.SIGKILL)
                child.wait(timeout=30)
                assert childs.exists()
                assert sweep_stale_segments(shm_dir) == [childs]
                assert mapped.generation(3) == 5
            assert list(shm_dir.iterdir()) == [segment_of(pool).path]
            assert sweep_stale_segments(shm_dir) == []
        finally:
            child.kill()


def test_the_sweep_leaves_what_is_not_a_segment(shm_dir: Path) -> None:
    target = shm_dir / "precious"
    target.write_text("kept")
    (shm_dir / "baton-kv-link").symlink_to(target)
    (shm_dir / "baton-kv-directory").mkdir()
    os.mkfifo(shm_dir / "baton-kv-fifo")
    assert sweep_stale_segments(shm_dir) == []
    assert len(list(shm_dir.iterdir())) == 4
    assert sweep_stale_segments(shm_dir / "missing") == []


def test_the_sweep_leaves_a_live_segment_that_took_the_name_meanwhile(
    shm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another sweep removes the stale file and a new process takes its name, between this sweep's open and lock."""
    stale = shm_dir / "baton-kv-e1"
    stale.write_bytes(b"stale")
    flock = fcntl.flock
    live: list[KvPool] = []

    def late_flock(fd: int, operation: int) -> None:
        if not live:
            monkeypatch.setattr(fcntl, "flock", flock)
            stale.unlink()
            live.append(KvPool.shared(LAYOUT, 4, "e1", shm_dir))
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late_flock)
    assert sweep_stale_segments(shm_dir) == []
    with live[0] as pool:
        assert segment_of(pool).path.exists()
        open_mapped(pool).close()


def mapped_kib(path: Path) -> int:
    """KiB of read-only mappings of a file in this process that have pages behind them."""
    found, is_ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):
            is_ours = fields[1] == "r--s" and fields[-1] == str(path)
        elif is_ours and fields[0] == "Rss:":
            found += int(fields[1])
    return found


def test_a_populated_pool_has_all_its_pages(shm_dir: Path) -> None:
    with KvPool.shared(LAYOUT, 1000, "big", shm_dir) as pool, open_mapped(pool) as mapped:
        path = segment_of(pool).path
        assert mapped_kib(path) < path.stat().st_size / 1024 / 2
        mapped.populate()
        if tuple(map(int, os.uname().release.split(".")[:2])) >= (5, 14):
            assert mapped_kib(path) >= path.stat().st_size // 1024


def test_populating_a_closed_pool_does_nothing(pool: KvPool) -> None:
    mapped = open_mapped(pool)
    mapped.close()
    mapped.populate()
