"""Kernel libraries that tests run: this CPU's, and that for AVX512_BF16 with its instructions emulated.

The second runs on any x86 CPU with AVX2, so that its code is tested where users' CPUs have what the test machine lacks.
"""

import hashlib
from functools import cache
from pathlib import Path

import pytest
import torch

from shared.engine.kernels.build import KERNEL_SOURCES, build, compile_library
from shared.engine.kernels.library import KernelLibrary, best_isa, find_library

EMULATION = Path(__file__).parent / "integration" / "engine" / "avx512_emulation.h"
_FLAGS = (
    *("-O2", "-mavx2", "-mfma", "-include", str(EMULATION)),
    *("-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-Wno-maybe-uninitialized", "-Wno-uninitialized"),
)


def native_library() -> KernelLibrary:
    """The kernels for this CPU, compiled if they are not yet."""
    isa = best_isa()
    if isa is None:
        pytest.skip("this CPU has no instruction set that there are kernels for")
    build(isa)
    find_library.cache_clear()
    found = find_library()
    assert isinstance(found, KernelLibrary), found
    return found


@cache
def emulated_library(directory: Path) -> KernelLibrary:
    """The kernels for AVX512_BF16, compiled into `directory` with every instruction emulated (some 10 s, once)."""
    has = torch.cpu.get_capabilities()
    if not (has.get("avx2") and has.get("fma3")):
        pytest.skip("this CPU cannot even emulate them")
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    for source in (*KERNEL_SOURCES, EMULATION):
        digest.update(source.read_bytes())
    path = directory / f"avx512_emulated-{digest.hexdigest()[:16]}.so"
    if not path.exists():
        compile_library(path, _FLAGS)
    return KernelLibrary.load("avx512_bf16", path)
