"""How many threads to compute with, so that processes on one machine do not fight for its cores."""

import os
from pathlib import Path

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def num_threads(configured: int | None, processes_on_host: int, quota_file: Path = CGROUP_QUOTA) -> int:
    """Threads for torch and the kernels.

    Args:
        configured: as the config says; None: this process's share of the cores that it may use, which are those of its
            affinity, and no more than its container's CPU quota allows, rounded down.
        processes_on_host: Baton processes that share the cores.
        quota_file: the cgroup's cpu.max, "<quota or max> <period>" in microseconds.
    """
    if configured is not None:
        return configured
    num_cores = len(os.sched_getaffinity(0))
    quota = _quota(quota_file)
    if quota is not None:
        num_cores = min(num_cores, int(quota))
    return max(1, num_cores // processes_on_host)


def _quota(file: Path) -> float | None:
    """Cores that the container may use at a time; None: as many as there are."""
    try:
        quota, period = file.read_text(encoding="ascii").split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # no cgroup, or "max"
        return None
