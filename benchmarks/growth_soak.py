"""Memory over time: a split pair of services under mixed load, and what each process holds meanwhile."""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.deployment import Deployed, running_split
from benchmarks.load import Prompts, TimedStream
from benchmarks.procfs import resident_bytes

NUM_CLIENTS = 6
MAX_SLOPE_MIB_A_MINUTE = 1.0
WARM_UP_SHARE = 0.3
"""Of the samples, the first ones do not count: every block of the pools is touched for the first time in them."""

_INTERVAL_S = 10.0
_SHORTEST, _LONGEST = 8, 1500
_MAX_TOKENS = (8, 96)
_SHARE_LEAVING = 0.1
_LEAVE_WITHIN_S = 1.0
_MIB = 1 << 20


@dataclass(frozen=True)
class Memory:
    """What one process held.

    Attributes:
        minutes: of each sample, since the load began.
        mib: held at that time, in MiB, shared memory included.
        slope_mib_a_minute: after warm-up.
    """

    minutes: tuple[float, ...]
    mib: tuple[float, ...]
    slope_mib_a_minute: float

    @property
    def is_flat(self) -> bool:
        """Whether it does not grow."""
        return self.slope_mib_a_minute <= MAX_SLOPE_MIB_A_MINUTE


@dataclass(frozen=True)
class Soak:
    """A run of the services under load.

    Attributes:
        memory: by kind of process.
        num_requests: that were answered whole.
        num_left: that their clients left early.
    """

    minutes: float
    memory: Mapping[str, Memory]
    num_requests: int
    num_left: int


class _Load:
    """Clients that ask one thing after another; some leave before the answer is whole."""

    def __init__(self, deployed: Deployed, prompts: Prompts) -> None:
        self._deployed = deployed
        self._prompts = prompts
        self._random = random.Random(1)  # noqa: S311 (nothing secret)
        self.num_requests = 0
        self.num_left = 0

    async def run(self) -> None:
        """One client; it ends by being cancelled."""
        while True:
            length = round(_SHORTEST * (_LONGEST / _SHORTEST) ** self._random.random())
            max_tokens = self._random.randint(*_MAX_TOKENS)
            stream = TimedStream(self._deployed.client, self._prompts.next(length), max_tokens)
            leaves = self._random.random() < _SHARE_LEAVING
            try:
                async with asyncio.timeout(self._random.random() * _LEAVE_WITHIN_S if leaves else None):
                    await stream.run()
                self.num_requests += 1
            except TimeoutError:
                self.num_left += 1


async def soak(vocab_size: int, minutes: float, interval_s: float = _INTERVAL_S) -> Soak:
    """Keeps the services busy for so long.

    Raises:
        BenchmarkError: a process or a call failed.
    """
    async with running_split() as deployed:
        load = _Load(deployed, Prompts(vocab_size))
        clients = [asyncio.create_task(load.run()) for _ in range(NUM_CLIENTS)]
        began = time.monotonic()
        times: list[float] = []
        held: dict[str, list[float]] = {kind: [] for kind in deployed.pids}
        try:
            while (elapsed := time.monotonic() - began) < minutes * 60:
                times.append(elapsed / 60)
                for kind, pid in deployed.pids.items():
                    held[kind].append(resident_bytes(pid) / _MIB)
                done, _ = await asyncio.wait(clients, timeout=interval_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in clients:
                task.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
        memory = {kind: Memory(tuple(times), tuple(mib), slope_after_warm_up(times, mib)) for kind, mib in held.items()}
        return Soak(minutes, memory, load.num_requests, load.num_left)


def slope_after_warm_up(times: Sequence[float], values: Sequence[float]) -> float:
    """The slope of the least-squares line through the samples after warm-up; 0 where fewer than two are left."""
    first = round(len(times) * WARM_UP_SHARE)
    return slope(times[first:], values[first:])


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """The slope of the least-squares line; 0 of fewer than two samples."""
    if len(times) < 2:
        return 0.0
    mean_time, mean_value = sum(times) / len(times), sum(values) / len(values)
    above = sum((time - mean_time) * (value - mean_value) for time, value in zip(times, values, strict=True))
    return above / sum((time - mean_time) ** 2 for time in times)
