"""Compiles the kernels for every instruction set there is code for; `python -m shared.engine.kernels.build`.

What is compiled lies in the cache beside the models, under a name that has a digest of sources and command: a change of
either compiles anew, and versions do not meet. Which one runs is chosen when it is loaded (`library.py`).
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shared.engine.models.catalog import cache_root

_SOURCE = Path(__file__).with_name("kernels.cpp")
KERNEL_SOURCES = sorted(path for pattern in ("*.cpp", "*.h") for path in _SOURCE.parent.glob(pattern))
# Features by name, and not -march=native: what is compiled may be loaded on another machine.
FLAGS_BY_ISA = {
    "avx512_bf16": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512bf16"),
    "avx2": ("-mavx2", "-mfma"),
}
# No contraction: a product and a sum are one instruction only where the code says so, or the same sum might be rounded
# otherwise for another number of rows.
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fopenmp", "-ffp-contract=off")
_TIMEOUT_S = 300


class BuildError(Exception):
    """The kernels could not be compiled; the message says why."""


def library_path(isa: str) -> Path:
    """Where the kernels for an instruction set lie once they are compiled."""
    digest = hashlib.sha256(" ".join((*_FLAGS, *FLAGS_BY_ISA[isa])).encode())
    for source in KERNEL_SOURCES:
        digest.update(source.name.encode() + source.read_bytes())
    return cache_root() / "kernels" / f"{isa}-{digest.hexdigest()[:16]}.so"


def build(isa: str) -> Path:
    """Compiles the kernels for an instruction set, unless that has been done; returns where they lie.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    path = library_path(isa)
    if not is_whole(path):
        sys.stdout.write(f"Compiling the kernels for {isa}, once\n")
        compile_library(path, FLAGS_BY_ISA[isa])
    return path


def is_whole(path: Path) -> bool:
    """Whether a library is there as it was compiled: loading a damaged one can end the process with no word."""
    try:
        return _digest_file(path).read_text(encoding="ascii") == _digest_of(path)
    except (OSError, ValueError):
        return False


def _digest_file(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def compile_library(path: Path, flags: Sequence[str]) -> None:
    """Compiles the kernels into `path`, which is there only once it is whole.

    Args:
        path: of the library; its directory is made.
        flags: of the compiler, behind those that all libraries share.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise BuildError("no C++ compiler was found (g++ or clang++, or what CXX names)")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        output = Path(directory) / path.name
        command = [compiler, *_FLAGS, *flags, str(_SOURCE), "-o", str(output)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(f"{compiler}: {error}") from error
        if done.returncode != 0:
            raise BuildError(f"{compiler} failed:\n{done.stderr}")
        _digest_file(path).write_text(_digest_of(output), encoding="ascii")
        output.replace(path)


def main() -> int:
    """Compiles for all instruction sets. Without a compiler the plain-torch ops run: no failure, but said."""
    for isa in FLAGS_BY_ISA:
        try:
            build(isa)
        except BuildError as error:
            sys.stderr.write(f"no native kernels for {isa}, the slower plain-torch ops run instead: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
