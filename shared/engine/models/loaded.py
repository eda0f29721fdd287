"""A model in memory: its config, the ops it runs with, and its weights as they want them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from shared.engine.models.config import ModelConfig, read_config
from shared.engine.models.decoder import DecoderWeights, load_weights, pack_weights
from shared.engine.ops import Ops
from shared.engine.torch_ops import TorchOps
from shared.errors import ModelLoadError
from shared.kv.dtypes import TORCH_DTYPES
from shared.kv.layout import KvLayout

log = structlog.get_logger()


@dataclass(frozen=True)
class LoadedModel:
    """A model that steps can be run with."""

    config: ModelConfig
    dtype: str
    """Of weights and KV: "float32" or "bfloat16"."""
    ops: Ops
    weights: DecoderWeights

    @property
    def device(self) -> torch.device:
        """Where the weights are, and steps are computed."""
        return self.weights.embedding.device

    def kv_layout(self, block_size: int) -> KvLayout:
        """How this model's KV lies in blocks of `block_size` tokens."""
        return KvLayout(
            name=self.ops.kv_layout_name,
            dtype=self.dtype,
            block_size=block_size,
            num_layers=self.config.num_layers,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
        )


def load_model(
    model_dir: Path, dtype: str = "auto", max_model_len: int | None = None, device: str = "cpu"
) -> LoadedModel:
    """Loads the model in a Hugging Face directory.

    Args:
        model_dir: holds config.json and safetensors.
        dtype: "float32", "bfloat16", or "auto": bfloat16 where the device multiplies it fast, else float32.
        max_model_len: most tokens of a sequence; None for what the model was made for.
        device: a torch device, such as "cpu" or "cuda".

    Raises:
        ModelLoadError: the directory or the model cannot be served; the message says why.
    """
    config = read_config(model_dir).limited_to(max_model_len)
    chosen = _chosen_dtype(dtype, device)
    ops = TorchOps(TORCH_DTYPES[chosen])
    with torch.inference_mode():
        weights = load_weights(model_dir, config, ops, device)
    log.info("model_loaded", directory=str(model_dir), dtype=chosen, ops=ops.name, max_model_len=config.max_model_len)
    return LoadedModel(config, chosen, ops, weights)


def outline_model(config: ModelConfig, dtype: str = "auto") -> LoadedModel:
    """A model of this shape without values: its weights are on torch's meta device and take no memory.

    Args:
        config: the shape.
        dtype: as for `load_model`, on a CPU.

    Raises:
        ModelLoadError: the dtype is not served.
    """
    chosen = _chosen_dtype(dtype, "cpu")
    ops = TorchOps(TORCH_DTYPES[chosen])
    return LoadedModel(config, chosen, ops, pack_weights(_MetaSource(), config, ops))


class _MetaSource:
    """Gives every tensor that is asked for, without values."""

    def take(self, name: str, shape: Sequence[int]) -> torch.Tensor:  # noqa: ARG002  one shape is as good as another
        return torch.empty(tuple(shape), device="meta")


def _chosen_dtype(dtype: str, device: str) -> str:
    if dtype == "auto":
        return "bfloat16" if _multiplies_bfloat16_fast(torch.device(device)) else "float32"
    if dtype not in TORCH_DTYPES:
        raise ModelLoadError(f"dtype is {dtype!r}; served are auto, {', '.join(TORCH_DTYPES)}")
    return dtype


def _multiplies_bfloat16_fast(device: torch.device) -> bool:
    return device.type != "cpu" or torch.cpu._is_avx512_bf16_supported()  # noqa: SLF001  has no public name
