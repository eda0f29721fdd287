"""The compiled kernels in this process: which ones this CPU can run, and their interface in ctypes."""

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from shared.engine.kernels.build import is_whole, library_path

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64

NORM, LINEAR, LINEAR_FLOAT, LINEAR_ADD, LINEAR_SILU, ROPE_AND_WRITE, ATTENTION, EMBED, NORM_AT = range(9)
"""Kinds of ops, as in kernels.cpp."""
STEP_TOKENS, STEP_LOGITS = 0, -1
"""Rows of an op that are counted when it runs: the step's tokens, or those of them that want logits."""


class Op(ctypes.Structure):
    """One op on static memory; `num_rows` may be STEP_TOKENS or STEP_LOGITS. Field for field kernels.cpp's."""

    _fields_ = (
        ("kind", _INT),
        ("x", _POINTER),
        ("w", _POINTER),
        ("extra", _POINTER),
        ("y", _POINTER),
        ("num_rows", _INT),
        ("num_k", _INT),
        ("num_outputs", _INT),
        ("layer", _INT),
        ("eps", ctypes.c_double),
        ("scales", _POINTER),
    )


class Step(ctypes.Structure):
    """Where each token of a step belongs; see `shared.engine.ops.PackedStep`."""

    _fields_ = (
        ("positions", _POINTER),
        ("slots", _POINTER),
        ("row_starts", _POINTER),
        ("kv_lens", _POINTER),
        ("block_table", _POINTER),
        ("num_tokens", _INT),
        ("num_rows", _INT),
        ("num_logits", _INT),
        ("block_table_stride", _INT),
    )


class Shape(ctypes.Structure):
    """What no step changes; see `shared.engine.ops.AttentionSpec`."""

    _fields_ = (
        ("num_heads", _INT),
        ("num_kv_heads", _INT),
        ("head_dim", _INT),
        ("block_stride", _INT),
        ("rope_table", _POINTER),
        ("pool", _POINTER),
    )


@dataclass(frozen=True)
class KernelLibrary:
    """Compiled kernels.

    Attributes:
        isa: the instruction set that they are compiled for.
        vector_width: values of a vector; gate and up columns lie in turns of so many.
    """

    isa: str
    vector_width: int
    max_head_dim: int
    handle: Any

    @classmethod
    def load(cls, isa: str, path: Path) -> "KernelLibrary":
        """Loads what `build` made.

        Raises:
            OSError: the file is no library, or needs one that is not there.
        """
        # torch has its OpenMP loaded by now, and the kernels find that one: two would fight for the cores.
        handle = ctypes.CDLL(str(path))
        for name in ("baton_vector_width", "baton_max_head_dim"):
            getattr(handle, name).restype = _INT
        handle.baton_run.argtypes = (_POINTER, _INT, _POINTER, _POINTER, _INT)
        handle.baton_run.restype = None
        return cls(isa, handle.baton_vector_width(), handle.baton_max_head_dim(), handle)

    @property
    def activation_dtype(self) -> torch.dtype:
        """What the micro-kernel multiplies by weights."""
        return torch.bfloat16 if self.isa == "avx512_bf16" else torch.float32

    def run(self, ops: "ctypes.Array[Op]", step: Step, shape: Shape, num_threads: int) -> None:
        """Runs ops one after another; other Python threads go on meanwhile."""
        self.handle.baton_run(ops, len(ops), ctypes.byref(step), ctypes.byref(shape), num_threads)


def best_isa() -> str | None:
    """The best instruction set that there is code for and this CPU has."""
    has = torch.cpu.get_capabilities()
    if has.get("avx512_bf16") and has.get("avx512_bw") and has.get("avx512_vl"):
        return "avx512_bf16"
    return "avx2" if has.get("avx2") and has.get("fma3") else None


@cache
def find_library() -> KernelLibrary | str:
    """The kernels for this CPU, or why there are none."""
    isa = best_isa()
    if isa is None:
        return "this CPU has neither AVX512_BF16 nor AVX2 and FMA"
    path = library_path(isa)
    if not path.exists():
        return f"the kernels for {isa} are not compiled: run `make setup`"
    if not is_whole(path):
        return f"the compiled kernels in {path} are damaged: run `make setup`"
    try:
        return KernelLibrary.load(isa, path)
    except OSError as error:
        return str(error)
