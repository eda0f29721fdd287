"""Runs copies off the event loop, and never leaves one behind."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from shared.errors import KvTransferError

Result = TypeVar("Result")

Abandoned = Callable[[], bool]
"""Whether nobody wants the result of a copy any more, so that it should stop at the next block."""

NUM_COPY_THREADS = 2


class Copier:
    """A few threads for copies: memory bandwidth, not their number, bounds them.

    Args:
        name: of the threads.
    """

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(NUM_COPY_THREADS, thread_name_prefix=f"kv-{name}")

    async def run(self, copy: Callable[[Abandoned], Result]) -> Result:
        """Run `copy` in a thread and return what it returns.

        A cancelled caller gets its cancellation only when the thread has stopped writing: the blocks it writes to
        may be another request's a moment later.

        Raises:
            KvTransferError: the copier is closed.
        """
        abandoned = threading.Event()
        job = self._submit(partial(copy, abandoned.is_set))
        finished = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(finished)
        except asyncio.CancelledError:
            abandoned.set()
            job.cancel()
            while not finished.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([finished])
            raise

    def start(self, work: Callable[[], None]) -> None:
        """Runs `work` in a thread; nobody waits for it but `close`.

        Raises:
            KvTransferError: the copier is closed.
        """
        self._submit(work)

    def _submit(self, work: Callable[[], Result]) -> Future[Result]:
        try:
            return self._executor.submit(work)
        except RuntimeError as error:
            raise KvTransferError("the KV transport is closed") from error

    def close(self) -> None:
        """Wait for the copies that run, and end the threads."""
        self._executor.shutdown()
