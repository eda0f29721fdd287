"""Where packed weights lie."""

import re
from pathlib import Path

import pytest
import torch

from shared.engine import arena as arena_module
from shared.engine.arena import Arena, huge_pages

MIB = 1 << 20


def test_tensors_are_copied_whole_and_aligned() -> None:
    arena = Arena()
    given = [torch.arange(33, dtype=torch.int8), torch.randn(7, 5).bfloat16(), torch.randn(4, 6).T, torch.ones(1)]
    placed = [arena.place(values) for values in given]
    for values, copy in zip(given, placed, strict=True):
        assert torch.equal(values, copy)
        assert copy.is_contiguous()
        assert copy.dtype == values.dtype
        assert copy.data_ptr() % 64 == 0
        assert copy.data_ptr() != values.data_ptr()
    starts = [copy.data_ptr() for copy in placed]
    assert starts == sorted(starts)
    assert starts[-1] - starts[0] < 4096, "they lie one behind the other"


def test_a_chunk_begins_at_a_huge_page_and_holds_what_is_larger_than_usual() -> None:
    arena = Arena()
    large = torch.zeros(65 * MIB, dtype=torch.int8)
    large[-1] = 3
    placed = arena.place(large)
    assert placed.data_ptr() % (2 * MIB) == 0
    assert placed[-1] == 3


def test_memory_lives_as_long_as_its_tensors() -> None:
    placed = Arena().place(torch.arange(1000))
    assert placed.sum() == 999 * 500


def test_a_tensor_elsewhere_stays_there() -> None:
    assert Arena().place(torch.empty(3, device="meta")).device.type == "meta"


def test_the_system_is_asked_for_huge_pages() -> None:
    if huge_pages() not in ("on request", "always"):
        pytest.skip("this system gives no huge pages")
    placed = Arena().place(torch.ones(32 * MIB, dtype=torch.int8))
    first, inside = placed.data_ptr(), False
    flags = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= first < int(found[2], 16)
        elif inside and line.startswith("VmFlags:"):
            flags = line
    assert " hg" in flags


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("always [madvise] never\n", "on request"),
        ("[always] madvise never\n", "always"),
        ("always madvise [never]\n", "never"),
        ("", "unknown"),
    ],
)
def test_what_the_system_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str) -> None:
    setting = tmp_path / "enabled"
    setting.write_text(text)
    monkeypatch.setattr(arena_module, "SETTING", setting)
    assert huge_pages() == expected


def test_no_setting_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "SETTING", tmp_path / "missing")
    assert huge_pages() == "unknown"
