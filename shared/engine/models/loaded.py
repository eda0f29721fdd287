"""A model in memory: its config, the ops it runs with, and its weights as they want them."""

from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from shared.engine.models.config import ModelConfig, read_config
from shared.engine.models.decoder import DecoderWeights, load_weights
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


def load_model(model_dir: Path, dtype: str = "auto", max_model_len: int | None = None) -> LoadedModel:
    """Loads the model in a Hugging Face directory.

    Args:
        model_dir: holds config.json and safetensors.
        dtype: "float32", "bfloat16", or "auto": bfloat16 where this CPU multiplies it fast, else float32.
        max_model_len: most tokens of a sequence; None for what the model was made for.

    Raises:
        ModelLoadError: the directory or the model cannot be served; the message says why.
    """
    config = read_config(model_dir).limited_to(max_model_len)
    chosen = _auto_dtype() if dtype == "auto" else dtype
    if chosen not in TORCH_DTYPES:
        raise ModelLoadError(f"dtype is {dtype!r}; served are auto, {', '.join(TORCH_DTYPES)}")
    ops = TorchOps(TORCH_DTYPES[chosen])
    with torch.inference_mode():
        weights = load_weights(model_dir, config, ops)
    log.info("model_loaded", directory=str(model_dir), dtype=chosen, ops=ops.name, max_model_len=config.max_model_len)
    return LoadedModel(config, chosen, ops, weights)


def _auto_dtype() -> str:
    return "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"  # noqa: SLF001  has no public name
