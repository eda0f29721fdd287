import asyncio
import time

from shared.worker.loop_lag import loop_lag_watched


async def test_a_callback_that_blocks_is_seen_as_lag_and_the_watch_ends_with_the_block() -> None:
    seen: list[float] = []
    is_seen = asyncio.Event()

    def observe(lag_s: float) -> None:
        seen.append(lag_s)
        is_seen.set()

    async with loop_lag_watched(observe, interval_s=0.01):
        await is_seen.wait()
        seen.clear()
        is_seen.clear()
        await asyncio.sleep(0)  # the watcher sleeps again
        time.sleep(0.1)  # noqa: ASYNC251  what is to be seen
        await is_seen.wait()
    assert max(seen) >= 0.05
    assert all(lag_s >= 0 for lag_s in seen)
    assert len(asyncio.all_tasks()) == 1
