"""The few operations that a decoder is made of, as an interface that several implementations can serve.

Whoever implements it chooses how weights are packed and how values lie inside a KV block; decoders only pass these on.
Within one implementation, results must not depend, bit for bit, on which rows share a call, on how a sequence is cut
into rows, on which blocks it has, on padding, or on the number of threads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class Weight:
    """A matrix that a linear op multiplies by, packed as the ops that made it want it."""

    data: torch.Tensor
    bias: torch.Tensor | None
    """[num_outputs], or None."""
    num_inputs: int
    num_outputs: int
    """Values a row that the op writes; half the matrix's rows for a gate and up pair."""
    scales: torch.Tensor | None = None
    """float32 [rows of `data`'s matrix]: what its sums are multiplied by before the bias is added; None: nothing."""


@dataclass(frozen=True)
class HeadNorms:
    """RMSNorm of each query and key head before its rotation (Qwen3)."""

    query: torch.Tensor
    """[head_dim]"""
    key: torch.Tensor
    """[head_dim]"""
    eps: float


@dataclass(frozen=True)
class AttentionSpec:
    """All that attention needs to know and that no step changes."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    rope_table: torch.Tensor
    """float32 [max_model_len, head_dim]: cosines, then sines"""
    pool: torch.Tensor
    """[num_blocks, num_layers, 2, num_kv_heads, block_size * head_dim]"""

    @property
    def query_len(self) -> int:
        """Values of all query heads of one token."""
        return self.num_heads * self.head_dim

    @property
    def qkv_len(self) -> int:
        """Values of all query, key and value heads of one token, in this order."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


@dataclass(frozen=True)
class PackedStep:
    """Where each token of a step belongs. int64 tensors; tokens of a row are neighbours, rows are in order.

    What is said of tokens is on the model's device; what is said of rows is on the host, where attention is planned.
    """

    positions: torch.Tensor
    """[num_tokens]: absolute positions"""
    slots: torch.Tensor
    """[num_tokens]: block id * block_size + offset, where the token's KV goes"""
    row_starts: torch.Tensor
    """[num_rows + 1]: row i has the tokens row_starts[i] to row_starts[i + 1]"""
    kv_lens: torch.Tensor
    """[num_rows]: tokens that the row attends to, its own included"""
    block_table: torch.Tensor
    """[num_rows, most blocks of a row]: block ids; what lies beyond kv_len is not defined"""
    num_logits: int = 0
    """Tokens whose logits are wanted."""

    @property
    def num_tokens(self) -> int:
        """Tokens in the step."""
        return self.positions.shape[0]

    @property
    def num_rows(self) -> int:
        """Rows in the step."""
        return self.kv_lens.shape[0]


@dataclass(frozen=True)
class HeadBuffers:
    """Static memory of the LM head, for as many tokens as can want logits."""

    hidden: torch.Tensor
    """float32 [most tokens, hidden_size]"""
    normed: torch.Tensor
    """[most tokens, hidden_size]"""
    logits: torch.Tensor
    """float32 [most tokens, vocab_size]"""

    def first(self, num_tokens: int) -> "HeadBuffers":
        """The same memory for fewer tokens."""
        return HeadBuffers(self.hidden[:num_tokens], self.normed[:num_tokens], self.logits[:num_tokens])


class Kernels(Protocol):
    """The ops of one model, with their work buffers for steps up to some size.

    Activations are [num_tokens, values] with rows contiguous. Their memory goes on up to a multiple of
    `Ops.row_multiple` rows, of which an op may read and overwrite those past num_tokens.
    """

    def program(self, layers: Callable[["Kernels"], None]) -> Callable[[], None] | None:
        """What makes the calls of `layers` at once, for whatever step has begun; None where that is no cheaper.

        The calls are noted here and now. They must be on whole static buffers: tokens past the step's are left alone,
        and so are `logit_tokens` past its `num_logits`.
        """

    def begin_step(self, step: PackedStep) -> None:
        """Makes `step` the one that `rope_and_write` and `attention` work on, until the next call."""

    def embed(self, token_ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
        """Into `out` [num_tokens, hidden_size], float32: rows of `table`. A token below 0 has its vector there already.

        token_ids is int64 [num_tokens], table [vocab_size, hidden_size].
        """

    def head(
        self,
        hidden: torch.Tensor,
        logit_tokens: torch.Tensor,
        norm: torch.Tensor,
        eps: float,
        lm_head: Weight,
        buffers: HeadBuffers,
    ) -> None:
        """Into the first rows of `buffers.logits`: rmsnorm(hidden[token]) Wᵀ for each of `logit_tokens`, int64."""

    def rmsnorm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
        """Into `out`: x / sqrt(mean(x²) + eps) * weight (Zhang & Sennrich 2019). x is float32."""

    def linear(self, x: torch.Tensor, weight: Weight, out: torch.Tensor) -> None:
        """Into `out`: x Wᵀ + bias. A float32 out keeps the accumulator's precision."""

    def linear_add(self, x: torch.Tensor, weight: Weight, residual: torch.Tensor) -> None:
        """Adds to `residual`: x Wᵀ + bias. residual is float32."""

    def linear_silu(self, x: torch.Tensor, weight: Weight, out: torch.Tensor) -> None:
        """Into `out`: silu(x Gᵀ) * (x Uᵀ) for a pair packed by `pack_gate_up` (Shazeer 2020, SwiGLU)."""

    def rope_and_write(self, qkv: torch.Tensor, layer: int, norms: HeadNorms | None) -> None:
        """Norms and rotates the queries and keys of `qkv` [num_tokens, qkv_len] in place; writes keys and values."""

    def attention(self, qkv: torch.Tensor, layer: int, out: torch.Tensor) -> None:
        """Into `out` [num_tokens, query_len]: softmax(q Kᵀ / sqrt(head_dim)) V, over positions up to the token's."""


class Ops(Protocol):
    """An implementation of the ops."""

    name: str
    kv_layout_name: str
    """How values lie inside a block and head; part of what two services compare."""
    weight_dtype: torch.dtype
    """Of weights and KV."""
    weights: str
    """What linears hold, of `shared.engine.quantize.WEIGHT_FORMATS`."""
    activation_dtype: torch.dtype
    """Of all activations but the residual stream and the logits, which are float32."""
    row_multiple: int

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Weight:
        """Packs [num_outputs, num_inputs]."""

    def pack_gate_up(
        self,
        gate: torch.Tensor,
        up: torch.Tensor,
        gate_bias: torch.Tensor | None = None,
        up_bias: torch.Tensor | None = None,
    ) -> Weight:
        """Packs two of [num_outputs, num_inputs] for `linear_silu`."""

    def kernels(self, spec: AttentionSpec, num_tokens: int) -> Kernels:
        """Kernels for steps up to `num_tokens`; all their memory is allocated here."""
