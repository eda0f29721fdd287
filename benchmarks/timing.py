"""How long a call takes. Of the standard library alone: workers in other environments use it too."""

import time
from collections.abc import Callable
from statistics import median


def seconds_of(work: Callable[[], object], repeats: int, *, best: bool = False) -> float:
    """Median time of one call, or the best one, after one that is not counted."""
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times) if best else median(times)
