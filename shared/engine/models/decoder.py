"""The decoder of the Llama family: its packed weights, and its forward pass in terms of ops."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from shared.engine.models.config import ModelConfig
from shared.engine.models.weights import open_weights
from shared.engine.ops import HeadNorms, Kernels, Ops, Weight
from shared.errors import ModelLoadError


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer."""

    attention_norm: torch.Tensor
    qkv: Weight
    head_norms: HeadNorms | None
    output: Weight
    mlp_norm: torch.Tensor
    gate_up: Weight
    down: Weight


@dataclass(frozen=True)
class DecoderWeights:
    """All weights of a decoder, packed."""

    embedding: torch.Tensor
    """[vocab_size, hidden_size]"""
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    lm_head: Weight


@dataclass(frozen=True)
class Activations:
    """Buffers of a forward pass: [num_tokens, ...], memory up to a multiple of `Ops.row_multiple` rows."""

    hidden: torch.Tensor
    """[num_tokens, hidden_size] float32: the residual stream"""
    normed: torch.Tensor
    """[num_tokens, hidden_size]"""
    qkv: torch.Tensor
    """[num_tokens, qkv_len]"""
    attended: torch.Tensor
    """[num_tokens, query_len]"""
    inner: torch.Tensor
    """[num_tokens, intermediate_size]"""

    def first(self, num_tokens: int) -> "Activations":
        """The same buffers for a smaller step."""
        parts = (self.hidden, self.normed, self.qkv, self.attended, self.inner)
        return Activations(*(part[:num_tokens] for part in parts))


def run_layers(weights: DecoderWeights, eps: float, kernels: Kernels, buffers: Activations) -> None:
    """Takes `buffers.hidden` from embeddings to the last layer's output, in place; writes KV of all layers.

    `kernels.begin_step` must have been called for this step. Nothing is computed but by `kernels`, in an order that no
    value decides: so captures can record the calls.
    """
    for index, layer in enumerate(weights.layers):
        kernels.rmsnorm(buffers.hidden, layer.attention_norm, eps, buffers.normed)
        kernels.linear(buffers.normed, layer.qkv, buffers.qkv)
        kernels.rope_and_write(buffers.qkv, index, layer.head_norms)
        kernels.attention(buffers.qkv, index, buffers.attended)
        kernels.linear_add(buffers.attended, layer.output, buffers.hidden)
        kernels.rmsnorm(buffers.hidden, layer.mlp_norm, eps, buffers.normed)
        kernels.linear_silu(buffers.normed, layer.gate_up, buffers.inner)
        kernels.linear_add(buffers.inner, layer.down, buffers.hidden)


class TensorSource(Protocol):
    """Where a decoder's tensors come from."""

    def take(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """The tensor `name`, of this shape."""


def load_weights(model_dir: Path, config: ModelConfig, ops: Ops, device: str = "cpu") -> DecoderWeights:
    """Reads the weights of `model_dir` into the memory of `device` and packs them.

    Raises:
        ModelLoadError: a tensor is missing, has another shape than the config says, or is not one of this family's.
    """
    with open_weights(model_dir, device) as reader:
        weights = pack_weights(reader, config, ops)
        # Older files hold the rotary frequencies, which follow from the config; some hold a tied head once more.
        ignored = (".rotary_emb.inv_freq", "lm_head.weight")
        if left := [name for name in reader.untaken() if not name.endswith(ignored)]:
            raise ModelLoadError(f"{model_dir}: {len(left)} weights are not known here, such as {left[0]!r}")
    return weights


def pack_weights(source: TensorSource, config: ModelConfig, ops: Ops) -> DecoderWeights:
    """Takes all tensors of a decoder from `source` and packs them."""
    loader = _Loader(source, config, ops)
    embedding = source.take("model.embed_tokens.weight", (config.vocab_size, config.hidden_size))
    embedding = embedding.to(ops.weight_dtype)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(loader.layer(f"model.layers.{index}") for index in range(config.num_layers)),
        norm=loader.norm("model.norm", config.hidden_size),
        lm_head=loader.lm_head(embedding),
    )


class _Loader:
    """Takes the parts of a decoder from a source, packed."""

    def __init__(self, source: TensorSource, config: ModelConfig, ops: Ops) -> None:
        self._source = source
        self._config = config
        self._ops = ops

    def layer(self, prefix: str) -> LayerWeights:
        """All of one layer."""
        config, attention, mlp = self._config, f"{prefix}.self_attn", f"{prefix}.mlp"
        query_len = config.num_heads * config.head_dim
        return LayerWeights(
            attention_norm=self.norm(f"{prefix}.input_layernorm", config.hidden_size),
            qkv=self._qkv(attention),
            head_norms=self._head_norms(attention) if config.has_qk_norm else None,
            output=self._ops.pack(
                *self._linear(f"{attention}.o_proj", config.hidden_size, query_len, config.has_output_bias)
            ),
            mlp_norm=self.norm(f"{prefix}.post_attention_layernorm", config.hidden_size),
            gate_up=self._gate_up(mlp),
            down=self._ops.pack(
                *self._linear(f"{mlp}.down_proj", config.hidden_size, config.intermediate_size, config.has_mlp_bias)
            ),
        )

    def norm(self, name: str, size: int) -> torch.Tensor:
        """The weight of an RMSNorm, float32."""
        return self._source.take(f"{name}.weight", (size,)).float()

    def lm_head(self, embedding: torch.Tensor) -> Weight:
        """The matrix that makes logits; the embedding itself where they are tied."""
        if self._config.ties_embeddings:
            return self._ops.pack(embedding)
        return self._ops.pack(self._source.take("lm_head.weight", tuple(embedding.shape)))

    def _qkv(self, prefix: str) -> Weight:
        config = self._config
        heads = (("q_proj", config.num_heads), ("k_proj", config.num_kv_heads), ("v_proj", config.num_kv_heads))
        parts = [
            self._linear(f"{prefix}.{name}", count * config.head_dim, config.hidden_size, config.has_qkv_bias)
            for name, count in heads
        ]
        biases = [bias for _, bias in parts if bias is not None]
        return self._ops.pack(torch.cat([weight for weight, _ in parts]), torch.cat(biases) if biases else None)

    def _gate_up(self, prefix: str) -> Weight:
        config = self._config
        (gate, gate_bias), (up, up_bias) = (
            self._linear(f"{prefix}.{name}", config.intermediate_size, config.hidden_size, config.has_mlp_bias)
            for name in ("gate_proj", "up_proj")
        )
        return self._ops.pack_gate_up(gate, up, gate_bias, up_bias)

    def _head_norms(self, prefix: str) -> HeadNorms:
        head_dim = self._config.head_dim
        return HeadNorms(
            query=self.norm(f"{prefix}.q_norm", head_dim),
            key=self.norm(f"{prefix}.k_norm", head_dim),
            eps=self._config.norm_eps,
        )

    def _linear(
        self, name: str, num_outputs: int, num_inputs: int, has_bias: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        weight = self._source.take(f"{name}.weight", (num_outputs, num_inputs))
        return weight, self._source.take(f"{name}.bias", (num_outputs,)) if has_bias else None
