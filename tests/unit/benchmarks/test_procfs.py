"""CPU time and memory as /proc tells them."""

import os
import time
from pathlib import Path

import pytest

from benchmarks.procfs import beside_compute, machine_seconds, resident_bytes, spent, thread_seconds

TICKS = os.sysconf("SC_CLK_TCK")


def task(root: Path, thread: int) -> Path:
    directory = root / "7" / "task" / str(thread)
    directory.mkdir(parents=True)
    return directory


def test_a_thread_s_time_is_read_in_nanoseconds(tmp_path: Path) -> None:
    (task(tmp_path, 7) / "schedstat").write_text("2500000000 17 4\n")
    (task(tmp_path, 8) / "schedstat").write_text("1000000 17 4\n")
    assert thread_seconds(7, tmp_path) == {7: 2.5, 8: 0.001}


def test_without_such_statistics_ticks_are_counted(tmp_path: Path) -> None:
    fields = f"8 (a) name) R 1 {' '.join(['0'] * 9)} {3 * TICKS} {TICKS} 0"
    (task(tmp_path, 8) / "stat").write_text(fields)
    assert thread_seconds(7, tmp_path) == {8: 4.0}


def test_a_thread_that_has_ended_is_left_out(tmp_path: Path) -> None:
    task(tmp_path, 8)
    assert thread_seconds(7, tmp_path) == {}


def test_this_process_s_own_time_grows_with_its_work() -> None:
    before = thread_seconds(os.getpid())
    used = time.thread_time()
    while time.thread_time() - used < 0.02:
        pass
    assert sum(spent(before, thread_seconds(os.getpid())).values()) >= 0.02


def test_memory_is_counted_in_pages(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "statm").write_text("900 25 10 1 0 300 0\n")
    assert resident_bytes(7, tmp_path) == 25 * os.sysconf("SC_PAGE_SIZE")


def test_the_machine_s_time_leaves_idling_and_waiting_out(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(f"cpu  {TICKS} {2 * TICKS} {3 * TICKS} 999 999 {TICKS} {TICKS} {2 * TICKS} 0 0\n")
    assert machine_seconds(tmp_path) == 10.0


def test_new_threads_count_from_their_start() -> None:
    assert spent({1: 1.0, 2: 5.0}, {1: 1.5, 3: 0.25}) == {1: 0.5, 3: 0.25}


@pytest.mark.parametrize(("num_compute", "expected"), [(1, (8.0, 3.0)), (2, (10.0, 1.0)), (9, (11.0, 0.0))])
def test_the_busiest_threads_are_those_that_compute(num_compute: int, expected: tuple[float, float]) -> None:
    assert beside_compute({1: 1.0, 2: 8.0, 3: 2.0}, num_compute) == expected
