"""Who may be at a constraint: compiling takes threads that other requests need."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

MAX_AT_ONCE = 2
"""One compiles, and one whose constraint is compiled already does not wait for it. The event loop has five threads or
more, in which plain requests are tokenized."""


class Turns:
    """Runs work in threads, a little of it at a time; the rest waits where it holds none. Belongs to one event loop."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MAX_AT_ONCE)

    async def run(self, work: Callable[[], Result]) -> Result:
        """What `work` returns, or raises."""
        async with self._free:
            return await asyncio.to_thread(work)
