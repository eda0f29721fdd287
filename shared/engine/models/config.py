"""What a Hugging Face `config.json` of the Llama family says, checked and in one form."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shared.engine.models.rope import LinearScaling, Llama3Scaling, Rope
from shared.errors import ModelLoadError

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class ModelConfig:
    """Shape and constants of a decoder of the Llama family."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    """Most tokens (prompt and output together) of one sequence."""
    norm_eps: float
    rope: Rope
    ties_embeddings: bool
    """Whether the LM head is the embedding matrix."""
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    has_qk_norm: bool
    """Whether each query and key head goes through an RMSNorm before its rotation (Qwen3)."""
    sliding_window: int | None
    """Tokens that attention looks back, in any layer; None if all."""
    eos_token_ids: tuple[int, ...]

    def limited_to(self, max_model_len: int | None) -> "ModelConfig":
        """The same model, serving sequences of no more than `max_model_len` tokens (None: the model's own).

        Raises:
            ModelLoadError: longer than the model's own, or a sliding window would shorten attention.
        """
        limit = self.max_model_len if max_model_len is None else max_model_len
        if not 0 < limit <= self.max_model_len:
            raise ModelLoadError(f"max_model_len is {limit}; this model serves 1 to {self.max_model_len}")
        if self.sliding_window is not None and self.sliding_window < limit:
            raise ModelLoadError(
                f"attention in this model looks back {self.sliding_window} tokens only, which is not supported; "
                f"set max_model_len to {self.sliding_window} or less (it is {limit})"
            )
        return replace(self, max_model_len=limit)


def read_config(model_dir: Path) -> ModelConfig:
    """Reads `config.json` and, if there is one, `generation_config.json`.

    Raises:
        ModelLoadError: a file is missing or malformed, or the model is of a kind that is not served.
    """
    raw = _read_json(model_dir / "config.json")
    generation_path = model_dir / "generation_config.json"
    generation = _read_json(generation_path) if generation_path.exists() else {}
    try:
        return parse_config(raw, generation)
    except KeyError as error:
        raise ModelLoadError(f"{model_dir / 'config.json'}: key {error} is missing") from error
    except ModelLoadError as error:
        raise ModelLoadError(f"{model_dir / 'config.json'}: {error.message}") from error


def parse_config(raw: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """The config of a model from its `config.json` and `generation_config.json`.

    Raises:
        KeyError: a key without a default is missing.
        ModelLoadError: the model is of a kind that is not served.
    """
    _refuse_unsupported(raw)
    model_type = raw["model_type"]
    num_heads = raw["num_attention_heads"]
    attention_bias = bool(raw.get("attention_bias", False))
    return ModelConfig(
        model_type=model_type,
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=raw.get("num_key_value_heads") or num_heads,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // num_heads,
        max_model_len=raw["max_position_embeddings"],
        norm_eps=raw["rms_norm_eps"],
        rope=_rope(raw),
        ties_embeddings=bool(raw.get("tie_word_embeddings", False)),
        has_qkv_bias=model_type == "qwen2" or attention_bias,
        has_output_bias=model_type in ("llama", "qwen3") and attention_bias,
        has_mlp_bias=model_type == "llama" and bool(raw.get("mlp_bias", False)),
        has_qk_norm=model_type == "qwen3",
        sliding_window=_sliding_window(raw),
        eos_token_ids=_eos_token_ids(raw, generation),
    )


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    if raw.get("model_type") not in MODEL_TYPES:
        raise ModelLoadError(f"model_type is {raw.get('model_type')!r}; served are {', '.join(MODEL_TYPES)}")
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelLoadError(f"hidden_act is {raw['hidden_act']!r}; only silu is served")
    if raw.get("quantization_config"):
        raise ModelLoadError("quantized weights are not served; use the model in bfloat16 or import its GGUF")
    if raw.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelLoadError(f"partial_rotary_factor is {raw['partial_rotary_factor']}; only 1 is served")


def _rope(raw: Mapping[str, Any]) -> Rope:
    # transformers 5 writes `rope_parameters`; before, theta stood beside an optional `rope_scaling`.
    parameters: Mapping[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(parameters.get("rope_theta") or raw.get("rope_theta", 10000.0))
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    match kind:
        case "default":
            return Rope(theta)
        case "linear":
            return Rope(theta, LinearScaling(float(parameters["factor"])))
        case "llama3":
            return Rope(theta, _llama3_scaling(parameters))
    raise ModelLoadError(f"rope scaling is {kind!r}; served are default, linear and llama3")


def _llama3_scaling(parameters: Mapping[str, Any]) -> Llama3Scaling:
    return Llama3Scaling(
        factor=float(parameters["factor"]),
        low_freq_factor=float(parameters["low_freq_factor"]),
        high_freq_factor=float(parameters["high_freq_factor"]),
        original_max_len=int(parameters["original_max_position_embeddings"]),
    )


def _sliding_window(raw: Mapping[str, Any]) -> int | None:
    window: int | None = raw.get("sliding_window")
    match raw["model_type"]:
        case "mistral":
            return window
        case "qwen2" | "qwen3" if raw.get("use_sliding_window", False):
            has_window = raw.get("max_window_layers", 0) < raw["num_hidden_layers"]
            return window if has_window else None
    return None


def _eos_token_ids(raw: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[int, ...]:
    ids = generation.get("eos_token_id", raw.get("eos_token_id"))
    match ids:
        case None:
            return ()
        case int():
            return (ids,)
    return tuple(ids)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} must hold an object, but holds a {type(value).__name__}")
    return value
