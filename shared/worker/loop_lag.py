"""How late the event loop is: what a wake-up waits for, be it a long callback, the interpreter's lock or the cores."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

_INTERVAL_S = 0.1
"""Between two looks: often enough to catch what lasts, and too seldom to cost anything."""


@asynccontextmanager
async def loop_lag_watched(observe: Callable[[float], None], interval_s: float = _INTERVAL_S) -> AsyncIterator[None]:
    """Meanwhile tells `observe`, every `interval_s` seconds, how many seconds late the running loop woke up."""
    watching = asyncio.create_task(_watch(observe, interval_s))
    try:
        yield
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _watch(observe: Callable[[float], None], interval_s: float) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + interval_s
        await asyncio.sleep(interval_s)
        observe(max(0.0, loop.time() - due_s))
