import os
from pathlib import Path

import pytest

from shared.worker.threads import num_threads


@pytest.mark.parametrize(
    ("quota", "processes", "expected"),
    [
        ("max 100000", 1, 8),
        ("max 100000", 2, 4),
        ("max 100000", 3, 2),
        ("max 100000", 20, 1),
        ("300000 100000", 1, 3),
        ("350000 100000", 1, 3),
        ("300000 100000", 2, 1),
        ("50000 100000", 1, 1),
        ("1600000 100000", 1, 8),
        ("", 1, 8),
        ("nonsense here", 1, 8),
    ],
)
def test_cores_are_shared_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, processes: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    file = tmp_path / "cpu.max"
    file.write_text(quota)
    assert num_threads(None, processes, file) == expected
    assert num_threads(5, processes, file) == 5
    assert num_threads(None, processes, tmp_path / "none") == max(1, 8 // processes)
