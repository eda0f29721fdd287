"""A model in memory: its config, the ops it runs with, and its weights as they want them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from shared.engine.models.config import ModelConfig, read_config
from shared.engine.models.decoder import DecoderWeights, load_weights, pack_weights
from shared.engine.ops import Ops
from shared.engine.select import choose_ops
from shared.kv.dtypes import dtype_name
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
    model_dir: Path,
    dtype: str = "auto",
    max_model_len: int | None = None,
    device: str = "cpu",
    *,
    block_size: int = 32,
    kernels: str = "torch",
    weights: str = "dtype",
) -> LoadedModel:
    """Loads the model in a Hugging Face directory.

    Args:
        model_dir: holds config.json and safetensors.
        dtype: "float32", "bfloat16", or "auto": bfloat16 where the device multiplies it fast, else float32.
        max_model_len: most tokens of a sequence; None for what the model was made for.
        device: a torch device, such as "cpu" or "cuda".
        block_size: tokens a KV block, which decides whether native kernels can run.
        kernels: "torch" for plain torch, "native", or "auto": native ones where they can run.
        weights: what linears hold: "dtype" for values of the dtype, or "int8", which is made here from the model's.

    Raises:
        ModelLoadError: the directory or the model cannot be served; the message says why.
    """
    config = read_config(model_dir).limited_to(max_model_len)
    choice = choose_ops(config, dtype, block_size, kernels, torch.device(device), weights)
    ops = choice.ops
    if choice.why_not_native is not None:
        log.info("native_kernels_not_used", reason=choice.why_not_native, instead=ops.name)
    chosen = dtype_name(ops.weight_dtype)
    started = time.perf_counter()
    with torch.inference_mode():
        packed = load_weights(model_dir, config, ops, device)
    seconds = round(time.perf_counter() - started, 3)
    if weights == "int8":
        held_as = str(packed.lm_head.data.dtype).removeprefix("torch.")
        log.info("weights_quantized", to="int8", scales="one for each output", held_as=held_as, load_seconds=seconds)
    log.info("model_loaded", directory=str(model_dir), dtype=chosen, ops=ops.name, max_model_len=config.max_model_len)
    return LoadedModel(config, chosen, ops, packed)


def outline_model(
    config: ModelConfig, dtype: str = "auto", *, block_size: int = 32, kernels: str = "torch"
) -> LoadedModel:
    """A model of this shape without values: its weights are on torch's meta device and take no memory.

    Args:
        config: the shape.
        dtype: as for `load_model`, on a CPU.
        block_size: as for `load_model`.
        kernels: as for `load_model`.

    Raises:
        ModelLoadError: the dtype is not served.
    """
    ops = choose_ops(config, dtype, block_size, kernels, torch.device("cpu")).ops
    return LoadedModel(config, dtype_name(ops.weight_dtype), ops, pack_weights(_MetaSource(), config, ops))


class _MetaSource:
    """Gives every tensor that is asked for, without values."""

    def take(self, name: str, shape: Sequence[int]) -> torch.Tensor:  # noqa: ARG002  one shape is as good as another
        return torch.empty(tuple(shape), device="meta")
