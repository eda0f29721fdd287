"""The `config.json` and `generation_config.json` that a GGUF file's metadata amount to."""

from typing import Any

import torch

from shared.engine.models.gguf_file import GgufFile
from shared.engine.models.rope import Llama3Scaling, Rope, inverse_frequencies
from shared.errors import ModelLoadError

_CLASS_BY_ARCHITECTURE = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
ROPE_FACTORS = "rope_freqs.weight"


def hf_config(file: GgufFile) -> dict[str, Any]:
    """The model's config under Hugging Face's key names.

    Raises:
        ModelLoadError: the file holds a model that is not of the Llama family, or a variant that is not served.
    """
    architecture = file.architecture
    if architecture not in _CLASS_BY_ARCHITECTURE:
        served = ", ".join(_CLASS_BY_ARCHITECTURE)
        raise ModelLoadError(f"{file.path}: architecture is {architecture!r}; served are {served} (Mistral is a llama)")
    if file.find("expert_count"):
        raise ModelLoadError(f"{file.path}: mixtures of experts are not served")
    num_heads = file.key("attention.head_count")
    head_dim = file.find("attention.key_length") or file.key("embedding_length") // num_heads
    _check_heads(file, head_dim)
    token_ids = {name: file.metadata.get(f"tokenizer.ggml.{name}") for name in ("bos_token_id", "eos_token_id")}
    return {
        "architectures": [_CLASS_BY_ARCHITECTURE[architecture]],
        "model_type": architecture,
        "hidden_act": "silu",
        "hidden_size": file.key("embedding_length"),
        "intermediate_size": file.key("feed_forward_length"),
        "num_hidden_layers": file.key("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": file.find("attention.head_count_kv") or num_heads,
        "head_dim": head_dim,
        "max_position_embeddings": file.key("context_length"),
        "rms_norm_eps": file.key("attention.layer_norm_rms_epsilon"),
        "rope_theta": file.find("rope.freq_base") or 10000.0,
        "rope_scaling": _rope_scaling(file, head_dim),
        "sliding_window": None,
        "attention_bias": architecture != "qwen2" and "blk.0.attn_q.bias" in file.tensor_names,
        "tie_word_embeddings": "output.weight" not in file.tensor_names,
        "vocab_size": file.shape("token_embd.weight")[0],
        "dtype": "bfloat16",
        **token_ids,
    }


def hf_generation_config(file: GgufFile) -> dict[str, Any]:
    """Which tokens begin a text and end an answer."""
    ends: list[int | None] = [file.metadata.get(f"tokenizer.ggml.{key}") for key in ("eos_token_id", "eot_token_id")]
    config = {
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": sorted({token_id for token_id in ends if token_id is not None}),
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
    }
    return {key: value for key, value in config.items() if value is not None}


def _check_heads(file: GgufFile, head_dim: int) -> None:
    if (file.find("attention.value_length") or head_dim) != head_dim:
        raise ModelLoadError(f"{file.path}: keys and values differ in length, which is not served")
    if (file.find("rope.dimension_count") or head_dim) != head_dim:
        raise ModelLoadError(f"{file.path}: only a part of each head is rotated, which is not served")
    window = file.find("attention.sliding_window")
    if window and window < file.key("context_length"):
        raise ModelLoadError(f"{file.path}: attention looks back {window} tokens only, which is not served")


def _rope_scaling(file: GgufFile, head_dim: int) -> dict[str, Any] | None:
    if ROPE_FACTORS in file.tensor_names:
        return _llama3_scaling(file, head_dim)
    match file.find("rope.scaling.type"):
        case None | "none":
            return None
        case "linear":
            return {"rope_type": "linear", "factor": file.key("rope.scaling.factor")}
        case kind:
            raise ModelLoadError(f"{file.path}: rope scaling is {kind!r}; served are linear and that of Llama 3.1")


def _llama3_scaling(file: GgufFile, head_dim: int) -> dict[str, Any]:
    """Llama 3.1's scaling from the factors that the file stores, one a frequency.

    The file does not hold the constants they came from. All published models share three of them and differ in the
    largest factor, so these are tried and compared with what is stored.
    """
    stored = file.read(ROPE_FACTORS)
    theta = file.find("rope.freq_base") or 10000.0
    scaling = Llama3Scaling(float(stored.max()), low_freq_factor=1.0, high_freq_factor=4.0, original_max_len=8192)
    expected = inverse_frequencies(Rope(theta), head_dim) / inverse_frequencies(Rope(theta, scaling), head_dim)
    if stored.shape != expected.shape or not torch.allclose(stored, expected, rtol=1e-3):
        raise ModelLoadError(f"{file.path}: its rope factors are not those of Llama 3.1's scaling")
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_len,
    }
