"""What Linux tells of a process: the CPU time of its threads, and its memory."""

import os
from collections.abc import Mapping
from pathlib import Path

_PROC = Path("/proc")


def thread_seconds(pid: int, root: Path = _PROC) -> dict[int, float]:
    """CPU time of each thread by its id, in seconds; to the nanosecond where the kernel keeps such statistics."""
    seconds = {}
    for task in (root / str(pid) / "task").iterdir():
        try:
            seconds[int(task.name)] = _seconds(task)
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            continue
    return seconds


def resident_bytes(pid: int, root: Path = _PROC) -> int:
    """Memory that the process has mapped and that is in use, what it shares with others included."""
    num_pages = int((root / str(pid) / "statm").read_text(encoding="ascii").split()[1])
    return num_pages * os.sysconf("SC_PAGE_SIZE")


def machine_seconds(root: Path = _PROC) -> float:
    """CPU time that all processes of the machine have used, and what its host took away, to the clock tick."""
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(int, _first_line(root / "stat").split()[1:])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def spent(before: Mapping[int, float], after: Mapping[int, float]) -> dict[int, float]:
    """CPU time of each thread between two looks at them; threads that ended in between are left out."""
    return {thread: seconds - before.get(thread, 0.0) for thread, seconds in after.items()}


def beside_compute(spent_by_thread: Mapping[int, float], num_compute_threads: int) -> tuple[float, float]:
    """CPU seconds of the threads that compute, and of all others.

    Threads carry no names that could be relied on, so those that compute are taken to be the busiest ones, which they
    are whenever a service is under load.
    """
    ordered = sorted(spent_by_thread.values(), reverse=True)
    return sum(ordered[:num_compute_threads]), sum(ordered[num_compute_threads:])


def _seconds(task: Path) -> float:
    try:
        return int((task / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except FileNotFoundError:  # a kernel without CONFIG_SCHED_INFO
        fields = (task / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _first_line(file: Path) -> str:
    with file.open(encoding="ascii") as lines:
        return next(lines)
