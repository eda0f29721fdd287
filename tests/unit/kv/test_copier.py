import asyncio
import threading
from collections.abc import Iterator

import pytest

from shared.errors import KvTransferError
from shared.kv.transports.copier import NUM_COPY_THREADS, Abandoned, Copier

WAIT_S = 10.0


@pytest.fixture
def copier() -> Iterator[Copier]:
    copier = Copier("test")
    yield copier
    copier.close()


class HeldCopy:
    """A copy that runs until it is let go."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.let_go = threading.Event()
        self.saw_abandoned = False

    def __call__(self, abandoned: Abandoned) -> str:
        self.started.set()
        assert self.let_go.wait(WAIT_S)
        self.saw_abandoned = abandoned()
        return "copied"

    async def wait_started(self) -> None:
        assert await asyncio.to_thread(self.started.wait, WAIT_S)


async def test_returns_what_the_copy_returns_and_raises_what_it_raises(copier: Copier) -> None:
    assert await copier.run(lambda _: 42) == 42

    def fail(_: Abandoned) -> None:
        raise KvTransferError("torn")

    with pytest.raises(KvTransferError, match="torn"):
        await copier.run(fail)


async def test_runs_off_the_event_loop(copier: Copier) -> None:
    assert await copier.run(lambda _: threading.get_ident()) != threading.get_ident()


async def test_cancellation_waits_until_the_thread_has_stopped_writing(copier: Copier) -> None:
    copy = HeldCopy()
    task = asyncio.create_task(copier.run(copy))
    await copy.wait_started()
    for _ in range(3):
        task.cancel()
        done, _pending = await asyncio.wait([task], timeout=0)
        assert not done, "the destination may be written to, so the caller must not go on"
    copy.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert copy.saw_abandoned


async def test_a_copy_that_waits_for_a_thread_is_cancelled_at_once_and_never_runs(copier: Copier) -> None:
    running = [HeldCopy() for _ in range(NUM_COPY_THREADS)]
    tasks = [asyncio.create_task(copier.run(copy)) for copy in running]
    for copy in running:
        await copy.wait_started()
    queued = HeldCopy()
    queued_task = asyncio.create_task(copier.run(queued))
    await asyncio.sleep(0)
    queued_task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued_task
    for copy in running:
        copy.let_go.set()
    assert await asyncio.gather(*tasks) == ["copied"] * NUM_COPY_THREADS
    assert not queued.started.is_set()


async def test_an_error_after_cancellation_is_still_a_cancellation(copier: Copier) -> None:
    held = HeldCopy()

    def copy_then_fail(abandoned: Abandoned) -> None:
        held(abandoned)
        raise KvTransferError("too late to matter")

    task = asyncio.create_task(copier.run(copy_then_fail))
    await held.wait_started()
    task.cancel()
    await asyncio.sleep(0)
    held.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_closed_copier_refuses() -> None:
    copier = Copier("test")
    copier.close()
    copier.close()
    with pytest.raises(KvTransferError, match="closed"):
        await copier.run(lambda _: None)
