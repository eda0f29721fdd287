"""Tiny random models in Hugging Face directories, for tests that need a real model but no real answers.

Their tokenizer has a token for each byte (ids 0 to 255 are the bytes) and four special ones after them.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 272
"""Rows of the embedding; more than the tokenizer has tokens, as in many models."""
BOS_TOKEN, EOS_TOKEN, IM_START, IM_END = "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (BOS_TOKEN, EOS_TOKEN, IM_START, IM_END)
BOS_TOKEN_ID, EOS_TOKEN_ID, IM_START_ID, IM_END_ID = 256, 257, 258, 259
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_BASE_CONFIG: dict[str, Any] = {
    "hidden_act": "silu",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": BOS_TOKEN_ID,
    "eos_token_id": EOS_TOKEN_ID,
}
_CONFIG_BY_TYPE: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True},
    # three query heads a KV head, as SmolLM2
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "num_attention_heads": 6,
        "head_dim": 16,
        "sliding_window": None,
    },
    # one KV head; biases
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 1},
    # heads that are longer together than the hidden state; norms on heads
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 32, "attention_bias": False},
}


def tiny_config(model_type: str, **overrides: object) -> dict[str, Any]:
    """The `config.json` of a tiny model of one family, with some keys set otherwise."""
    return {**_BASE_CONFIG, "model_type": model_type, **_CONFIG_BY_TYPE[model_type], **overrides}


def write_tiny_model(
    directory: Path,
    model_type: str = "llama",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    num_shards: int = 1,
    **overrides: object,
) -> Path:
    """Writes a random model with its tokenizer.

    Args:
        directory: where to; made if absent.
        model_type: llama, mistral, qwen2 or qwen3.
        seed: of the weights; the same one gives the same model.
        dtype: of the weights.
        num_shards: safetensors files; more than one have an index.
        **overrides: keys of `config.json`.

    Returns:
        `directory`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = tiny_config(model_type, **overrides)
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", {"eos_token_id": [EOS_TOKEN_ID, IM_END_ID]})
    _write_tokenizer(directory)
    weights = {name: tensor.to(dtype) for name, tensor in tiny_weights(config, seed).items()}
    _write_weights(directory, weights, num_shards)
    return directory


def tiny_weights(config: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random float32 weights for a config; large enough that logits differ between tokens."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: 1 + 0.3 * torch.randn(shape, generator=generator)
        if len(shape) == 1 and name.endswith("norm.weight")
        else torch.randn(shape, generator=generator) * (0.3 if len(shape) == 1 else shape[1] ** -0.5)
        for name, shape in weight_shapes(config).items()
    }


def weight_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors of a model."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    query, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (hidden,),
            f"{prefix}.post_attention_layernorm.weight": (hidden,),
            f"{prefix}.self_attn.q_proj.weight": (query, hidden),
            f"{prefix}.self_attn.k_proj.weight": (kv, hidden),
            f"{prefix}.self_attn.v_proj.weight": (kv, hidden),
            f"{prefix}.self_attn.o_proj.weight": (hidden, query),
            f"{prefix}.mlp.gate_proj.weight": (inner, hidden),
            f"{prefix}.mlp.up_proj.weight": (inner, hidden),
            f"{prefix}.mlp.down_proj.weight": (hidden, inner),
        }
        shapes |= {f"{prefix}.{name}": shape for name, shape in _family_shapes(config, query, kv, head_dim).items()}
    return shapes


def _family_shapes(config: dict[str, Any], query: int, kv: int, head_dim: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    if config["model_type"] == "qwen2" or config.get("attention_bias"):
        shapes |= {f"self_attn.{name}_proj.bias": (size,) for name, size in (("q", query), ("k", kv), ("v", kv))}
    if config["model_type"] != "qwen2" and config.get("attention_bias"):
        shapes["self_attn.o_proj.bias"] = (config["hidden_size"],)
    if config.get("mlp_bias"):
        inner = config["intermediate_size"]
        shapes |= {"mlp.gate_proj.bias": (inner,), "mlp.up_proj.bias": (inner,)}
        shapes["mlp.down_proj.bias"] = (config["hidden_size"],)
    if config["model_type"] == "qwen3":
        shapes |= {"self_attn.q_norm.weight": (head_dim,), "self_attn.k_norm.weight": (head_dim,)}
    return shapes


def _write_weights(directory: Path, weights: dict[str, torch.Tensor], num_shards: int) -> None:
    if num_shards == 1:
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        return
    files = [f"model-{shard + 1:05}-of-{num_shards:05}.safetensors" for shard in range(num_shards)]
    weight_map = {name: files[index % num_shards] for index, name in enumerate(sorted(weights))}
    for file in files:
        part = {name: weights[name] for name, where in weight_map.items() if where == file}
        save_file(part, directory / file, metadata={"format": "pt"})
    _write_json(directory / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def _write_tokenizer(directory: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=_byte_of)
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS_TOKEN,
        "eos_token": EOS_TOKEN,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(directory / "tokenizer_config.json", config)


def _byte_of(letter: str) -> int:
    """The byte that a letter of the byte-level alphabet stands for: printable ones stand for themselves."""
    others = [byte for byte in range(256) if not (33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255)]
    return others[ord(letter) - 256] if ord(letter) >= 256 else ord(letter)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
