"""Writes tiny GGUF files as llama.cpp's converter would, for tests of the import."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from shared.engine.models.gguf_import import hf_name
from tests.tiny_models import tiny_config, tiny_weights

GPT2_TOKENS = ["<|end|>", "a", "b", "ab", "1", "2", "Ġ", "Ġa", "<think>"]
GPT2_MERGES = ["a b", "Ġ a"]
SPM_TOKENS = ["<unk>", "<s>", "</s>", "<0x0A>", "▁", "a", "b", "ab", "▁a", "▁ab"]
SPM_SCORES = [0.0, 0.0, 0.0, 0.0, -9.0, -8.0, -7.0, -1.0, -3.0, -2.0]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def write_tiny_gguf(
    path: Path,
    model_type: str = "llama",
    *,
    keys: Mapping[str, Any] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    extra: Mapping[str, torch.Tensor] | None = None,
    quantized: bool = False,
    architecture: str | None = None,
    **overrides: object,
) -> dict[str, torch.Tensor]:
    """Writes a random model; returns its weights under Hugging Face's names.

    Args:
        path: the file to write.
        model_type: llama, qwen2 or qwen3.
        keys: metadata under the architecture's prefix, to add or replace.
        tokenizer: metadata under tokenizer.ggml., instead of a byte-level one.
        extra: tensors to add.
        quantized: whether matrices are stored as Q8_0, which returns them as they are after that.
        architecture: what the file says it is, if not the model type.
        **overrides: keys of the tiny model's config.
    """
    architecture = architecture or model_type
    config = tiny_config(model_type, vocab_size=16, num_hidden_layers=1, **overrides)
    weights = tiny_weights(config)
    writer = gguf.GGUFWriter(path, architecture)
    _write_metadata(writer, architecture, {**_keys(config), **(keys or {})})
    _write_metadata(writer, "tokenizer.ggml", tokenizer or gpt2_tokenizer())
    stored = {}
    for name in _gguf_names(weights):
        tensor = _permuted(name, weights[hf_name(name)], config) if model_type == "llama" else weights[hf_name(name)]
        dequantized = _add(writer, name, tensor, quantized=quantized and tensor.dim() == 2)
        stored[hf_name(name)] = weights[hf_name(name)] if not quantized else dequantized
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def gpt2_tokenizer(**changes: object) -> dict[str, Any]:
    """Metadata of a byte-level tokenizer."""
    types = [CONTROL, *[NORMAL] * (len(GPT2_TOKENS) - 2), USER_DEFINED]
    base = {"model": "gpt2", "pre": "smollm", "tokens": GPT2_TOKENS, "token_type": types, "merges": GPT2_MERGES}
    return {**base, "eos_token_id": 0, "bos_token_id": 0, **changes}


def sentencepiece_tokenizer(**changes: object) -> dict[str, Any]:
    """Metadata of a sentencepiece tokenizer, as Llama 2's."""
    types = [UNKNOWN, CONTROL, CONTROL, BYTE, *[NORMAL] * (len(SPM_TOKENS) - 4)]
    base = {"model": "llama", "tokens": SPM_TOKENS, "scores": SPM_SCORES, "token_type": types}
    return {**base, "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, **changes}


def _keys(config: Mapping[str, Any]) -> dict[str, Any]:
    keys = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_theta"],
    }
    if "head_dim" in config:
        keys |= {"attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"]}
    return keys


def _gguf_names(weights: Mapping[str, torch.Tensor]) -> Sequence[str]:
    top = ["token_embd.weight", "output_norm.weight", "output.weight"]
    parts = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm", "ffn_norm"]
    layer = [
        f"blk.0.{part}.{kind}" for part in [*parts, "ffn_gate", "ffn_up", "ffn_down"] for kind in ("weight", "bias")
    ]
    return [name for name in [*top, *layer] if hf_name(name) in weights]


def _permuted(name: str, tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """`LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py."""
    num_heads = {"blk.0.attn_q": config["num_attention_heads"], "blk.0.attn_k": config["num_key_value_heads"]}
    heads = num_heads.get(name.rsplit(".", 1)[0])
    if heads is None:
        return tensor
    split = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return split.swapaxes(1, 2).reshape(tensor.shape)


def _add(writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor, *, quantized: bool) -> torch.Tensor:
    if not quantized:
        writer.add_tensor(name, tensor.numpy())
        return tensor
    kind = gguf.GGMLQuantizationType.Q8_0
    packed = gguf.quants.quantize(np.ascontiguousarray(tensor.numpy()), kind)
    writer.add_tensor(name, packed, raw_dtype=kind)
    return torch.from_numpy(gguf.quants.dequantize(packed, kind))


def _write_metadata(writer: gguf.GGUFWriter, prefix: str, values: Mapping[str, Any]) -> None:
    add_by_type: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in values.items():
        add_by_type[type(value)](f"{prefix}.{key}", value)
