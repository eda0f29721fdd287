"""Which implementation of the ops runs a model here, and with which dtype."""

from dataclasses import dataclass

import torch

from shared.engine.kernels.library import KernelLibrary, find_library
from shared.engine.models.config import ModelConfig
from shared.engine.native_ops import NativeOps, why_not
from shared.engine.ops import Ops
from shared.engine.quantize import WEIGHT_FORMATS
from shared.engine.torch_ops import TorchOps
from shared.errors import ModelLoadError
from shared.kv.dtypes import TORCH_DTYPES


@dataclass(frozen=True)
class Choice:
    """What runs a model."""

    ops: Ops
    why_not_native: str | None
    """Why it is not the native kernels; None where it is, or where plain torch was asked for."""


def choose_ops(
    config: ModelConfig, dtype: str, block_size: int, kernels: str, device: torch.device, weights: str = "dtype"
) -> Choice:
    """The ops for a model.

    Args:
        config: the model's shape.
        dtype: "float32", "bfloat16", or "auto": what is fast here.
        block_size: tokens a KV block.
        kernels: "torch", "native", or "auto": native where they can run with this dtype, else torch.
        device: where the weights are.
        weights: what linears hold, of `shared.engine.quantize.WEIGHT_FORMATS`.

    Raises:
        ModelLoadError: the dtype or `weights` is not served; or native kernels are asked for, and cannot run.
    """
    if dtype != "auto" and dtype not in TORCH_DTYPES:
        raise ModelLoadError(f"dtype is {dtype!r}; served are auto, {', '.join(TORCH_DTYPES)}")
    if weights not in WEIGHT_FORMATS:
        raise ModelLoadError(f"weights is {weights!r}; served are {', '.join(WEIGHT_FORMATS)}")
    why_not_native = None
    if kernels != "torch":
        native = _native_ops(config, dtype, block_size, device, weights)
        if isinstance(native, NativeOps):
            return Choice(native, None)
        if kernels == "native":
            raise ModelLoadError(f"native kernels cannot run here: {native}")
        why_not_native = native
    if dtype == "auto":
        dtype = "bfloat16" if _multiplies_bfloat16_fast(device) else "float32"
    return Choice(TorchOps(TORCH_DTYPES[dtype], weights), why_not_native)


def _native_ops(
    config: ModelConfig, dtype: str, block_size: int, device: torch.device, weights: str
) -> NativeOps | str:
    """The native ops for a model, or why there are none; arguments as for `choose_ops`."""
    if device.type != "cpu":
        return f"the device is {device}"
    if dtype == "float32":
        return "dtype is float32"
    library = find_library()
    if not isinstance(library, KernelLibrary):
        return library
    return why_not(config, block_size, library) or NativeOps(library, weights)


def _multiplies_bfloat16_fast(device: torch.device) -> bool:
    return device.type != "cpu" or torch.cpu._is_avx512_bf16_supported()  # noqa: SLF001  has no public name
