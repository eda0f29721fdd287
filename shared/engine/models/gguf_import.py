"""Converts a GGUF file into a Hugging Face directory: config, tokenizer, and weights in bfloat16."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from shared.engine.models.config import parse_config
from shared.engine.models.files import SINGLE_FILE
from shared.engine.models.gguf_config import ROPE_FACTORS, hf_config, hf_generation_config
from shared.engine.models.gguf_file import GgufFile
from shared.engine.models.gguf_tokenizer import build_tokenizer, tokenizer_config
from shared.errors import ModelLoadError

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(path: Path, destination: Path, on_progress: Callable[[float], None]) -> None:
    """Writes the model in `path` into the existing directory `destination`.

    Args:
        path: the GGUF file.
        destination: an empty directory.
        on_progress: called with the share of tensors that are converted, 0 to 1.

    Raises:
        ModelLoadError: the file is not GGUF, or holds a model that is not served.
    """
    file = GgufFile(path)
    config = hf_config(file)
    parse_config(config, {})
    _write_json(destination / "config.json", config)
    _write_json(destination / "generation_config.json", hf_generation_config(file))
    _write_json(destination / "tokenizer_config.json", tokenizer_config(file))
    build_tokenizer(file).save(str(destination / "tokenizer.json"))
    weights = _convert_weights(file, config, on_progress)
    save_file(weights, destination / SINGLE_FILE, metadata={"format": "pt"})
    (destination / SINGLE_FILE).chmod(0o644)  # safetensors makes it readable by its owner alone


def _convert_weights(
    file: GgufFile, config: dict[str, Any], on_progress: Callable[[float], None]
) -> dict[str, torch.Tensor]:
    names = [name for name in file.tensor_names if name != ROPE_FACTORS]
    weights = {}
    for index, name in enumerate(names):
        on_progress(index / len(names))
        weights[hf_name(name)] = _hf_arrangement(name, file.read(name), config).to(torch.bfloat16)
    on_progress(1.0)
    return weights


def hf_name(name: str) -> str:
    """Hugging Face's name of a GGUF tensor.

    Raises:
        ModelLoadError: models of the Llama family have no such tensor.
    """
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    match name.split("."):
        case ["blk", layer, part, kind] if part in _LAYER_NAMES and kind in ("weight", "bias"):
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"
    raise ModelLoadError(f"tensor {name!r} is not one of a model of the Llama family")


def _hf_arrangement(name: str, tensor: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """Undoes what llama.cpp does to the query and key rows of "llama" models.

    It rotates neighbouring rows, where Hugging Face rotates row i with row i + head_dim / 2; its converter
    (`LlamaModel.permute` in convert_hf_to_gguf.py) reorders the rows of each head for that.
    """
    if config["model_type"] != "llama" or name.split(".")[2:3] not in (["attn_q"], ["attn_k"]):
        return tensor
    pairs = tensor.view(-1, config["head_dim"] // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
