"""Writes a model directory's weights as a GGUF file for llama.cpp: the same numbers, no tokenizer."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors import safe_open

from benchmarks.command import BenchmarkError

_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OTHER_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(model_dir: Path, path: Path) -> None:
    """Writes `path` from a directory with config.json and safetensors of a Llama.

    Raises:
        BenchmarkError: it is a model of another family.
    """
    config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama":
        raise BenchmarkError(f"only Llama models are written for llama.cpp, not {config['model_type']!r}")
    writer = GGUFWriter(path, "llama")
    num_heads, num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // num_heads
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(num_heads)
    writer.add_head_count_kv(num_kv_heads)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    for file in sorted(model_dir.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (it is no mapping)
                _add(writer, name, tensors.get_tensor(name), num_heads, num_kv_heads)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str:
    """What llama.cpp calls a weight of Hugging Face's Llama.

    Raises:
        BenchmarkError: it has no such weight.
    """
    stem, _, kind = name.rpartition(".")
    if stem in _OTHER_NAMES:
        return f"{_OTHER_NAMES[stem]}.{kind}"
    prefix, _, rest = stem.removeprefix("model.layers.").partition(".")
    if not prefix.isdigit() or rest not in _LAYER_NAMES:
        raise BenchmarkError(f"llama.cpp has no name for the weight {name}")
    return f"blk.{prefix}.{_LAYER_NAMES[rest]}.{kind}"


def interleaved(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of a query or key weight as llama.cpp's Llama wants them: the halves of each head that RoPE turns together
    lie next to each other (`LlamaModel.permute` in its convert_hf_to_gguf.py)."""  # noqa: D205, D209
    half = weight.shape[0] // num_heads // 2
    return weight.view(num_heads, 2, half, -1).transpose(1, 2).reshape(weight.shape)


def _add(writer: GGUFWriter, name: str, weight: torch.Tensor, num_heads: int, num_kv_heads: int) -> None:
    if "q_proj" in name or "k_proj" in name:
        weight = interleaved(weight, num_heads if "q_proj" in name else num_kv_heads)
    if weight.ndim == 1:
        writer.add_tensor(gguf_name(name), weight.float().numpy())
        return
    raw: npt.NDArray[np.uint8] = weight.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
    writer.add_tensor(gguf_name(name), raw, raw_dtype=GGMLQuantizationType.BF16)
