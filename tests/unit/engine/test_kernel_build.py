"""What is compiled, and under which name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.engine.kernels import build as building
from shared.engine.kernels.build import KERNEL_SOURCES, BuildError, build, compile_library, library_path, main
from shared.engine.kernels.library import best_isa, find_library


def test_every_source_is_in_the_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("kernels.cpp", "avx2.h", "avx512.h"):
        assert name in [source.name for source in KERNEL_SOURCES]
    before = {library_path("avx2"), library_path("avx512_bf16")}
    assert len(before) == 2
    changed = tmp_path / KERNEL_SOURCES[-1].name
    changed.write_bytes(KERNEL_SOURCES[-1].read_bytes() + b"\n")
    monkeypatch.setattr(building, "KERNEL_SOURCES", [*KERNEL_SOURCES[:-1], changed])
    assert library_path("avx2") not in before


def test_without_a_compiler_setup_goes_on_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(building, "cache_root", lambda: tmp_path)
    assert main() == 0
    assert "no native kernels for avx2, the slower plain-torch ops run instead: no C++ comp" in capsys.readouterr().err


def test_what_the_compiler_says_is_told_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho that is no C++ >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(BuildError, match="that is no C"):
        compile_library(tmp_path / "kernels" / "some.so", ())
    assert not list((tmp_path / "kernels").iterdir())


@pytest.fixture
def _no_library_known() -> Iterator[None]:
    find_library.cache_clear()
    yield
    find_library.cache_clear()


@pytest.mark.usefixtures("_no_library_known")
@pytest.mark.parametrize("num_bytes", [0, 100, 5_000, 60_000])
def test_a_damaged_library_is_not_loaded_but_compiled_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, num_bytes: int
) -> None:
    isa = best_isa()
    if isa is None:
        pytest.skip("this CPU has no instruction set that there are kernels for")
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nfor last; do :; done\nhead -c 70000 /dev/zero > "$last"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(building, "cache_root", lambda: tmp_path)
    path = build(isa)
    whole = path.read_bytes()
    path.write_bytes(whole[:num_bytes])

    assert find_library() == f"the compiled kernels in {path} are damaged: run `make setup`"
    assert build(isa).read_bytes() == whole


def test_what_is_whole_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nfor last; do :; done\necho a library > "$last"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(building, "cache_root", lambda: tmp_path)
    build("avx2")
    monkeypatch.setenv("CXX", "/nonexistent")
    assert build("avx2").read_text() == "a library\n"
