"""Bytes that ladders and pools take with a config's model, where that model is on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.config.resolve import ResolvedWalk
from shared.config.serving import ServingConfig
from shared.engine.memory import StepBytes, kv_pool_bytes, step_bytes
from shared.engine.models.catalog import models_root
from shared.engine.models.config import ModelConfig, read_config
from shared.engine.models.loaded import outline_model
from shared.engine.models.registry import resolve_model
from shared.errors import ModelLoadError


@dataclass(frozen=True)
class ModelSizes:
    """What bytes depend on besides ladders.

    Attributes:
        model: the model's shape, with the config's limit of length.
        dtype: of weights and KV; not "auto".
        block_size: tokens a KV block.
        kernels: as in the config.
    """

    model: ModelConfig
    dtype: str
    block_size: int
    kernels: str

    @classmethod
    def of(cls, serving: ServingConfig) -> "ModelSizes":
        """Reads the model's config; nothing is downloaded.

        Raises:
            ModelLoadError: the model is not on this machine, or cannot be served.
        """
        model = read_config(_local_model_dir(serving.model)).limited_to(serving.max_model_len)
        block_size, kernels = serving.kv.block_size, serving.kernels
        outline = outline_model(model, serving.dtype, block_size=block_size, kernels=kernels)
        return cls(model, outline.dtype, block_size, kernels)

    def step_buffers(self, walks: Sequence[ResolvedWalk], max_num_rows: int) -> StepBytes:
        """Buffers of a runner that has these walks; they share them, as one step runs at a time."""
        return step_bytes(self.model, self.dtype, walks, max_num_rows, self.block_size, kernels=self.kernels)

    def kv_pool(self, num_blocks: int) -> int:
        """Bytes of a pool."""
        return kv_pool_bytes(self.model, self.dtype, self.block_size, num_blocks, kernels=self.kernels)


def sizes_or_reason(serving: ServingConfig) -> ModelSizes | str:
    """The model's sizes, or why they are not known."""
    try:
        return ModelSizes.of(serving)
    except ModelLoadError as error:
        return error.message


def _local_model_dir(name: str) -> Path:
    """As `resolve_model`, but a Hugging Face id that has not been downloaded is an error."""
    is_directory = (models_root() / name / "config.json").exists() or Path(name).expanduser().exists()
    if is_directory or name.count("/") != 1:
        return resolve_model(name)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(name, "config.json")
    except HFValidationError as error:
        raise ModelLoadError(f"{name!r} is no directory and no Hugging Face id") from error
    if not isinstance(config, str):
        raise ModelLoadError(f"{name} has not been downloaded")
    return Path(config).parent
