"""The ops in plain torch: reference for other implementations, and what runs where they cannot.

Activations are float32; weights and KV are float32 or bfloat16. Elementwise ops are only such that torch computes the
same for a value wherever in a tensor it stands: sums, products, quotients, square roots and `exp`. `silu` and `sigmoid`
are not (the vector and the scalar code differ in the last bit, and which one runs depends on the length).
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from shared.engine.ops import AttentionSpec, HeadBuffers, HeadNorms, Kernels, PackedStep, Weight
from shared.engine.quantize import quantize
from shared.engine.storage import zeros
from shared.engine.torch_attention import TiledAttention
from shared.engine.torch_linear import ROW_MULTIPLE, TiledLinear, padded


class TorchOps:
    """Plain-torch ops with weights and KV of one dtype."""

    name = "torch"
    kv_layout_name = "token_major"
    activation_dtype = torch.float32
    row_multiple = ROW_MULTIPLE

    def __init__(self, weight_dtype: torch.dtype, weights: str = "dtype") -> None:
        self.weight_dtype = weight_dtype
        self.weights = weights
        self._max_tile_outputs = 0

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Weight:
        """As `Ops.pack`. Quantized values are kept in the dtype that they are multiplied in: no memory is saved."""
        data, scales = weight, None
        if self.weights == "int8":
            quantized = quantize(weight)
            data, scales = quantized.values, quantized.scales
        data = data.to(self.weight_dtype).contiguous()
        return Weight(data, None if bias is None else bias.float(), data.shape[1], data.shape[0], scales)

    def pack_gate_up(
        self,
        gate: torch.Tensor,
        up: torch.Tensor,
        gate_bias: torch.Tensor | None = None,
        up_bias: torch.Tensor | None = None,
    ) -> Weight:
        """As `Ops.pack_gate_up`: both negated, so that `linear_silu` gets exp(-gate) with no pass for the sign."""
        assert gate.shape == up.shape
        assert (gate_bias is None) == (up_bias is None)
        bias = None
        if gate_bias is not None and up_bias is not None:
            bias = torch.cat([gate_bias, up_bias]).neg_()
        pair = self.pack(torch.cat([gate, up]).neg_(), bias)
        # The pair's own, and those of linears that add to the residual stream, which this pair reads.
        self._max_tile_outputs = max(self._max_tile_outputs, *pair.data.shape)
        return replace(pair, num_outputs=gate.shape[0])

    def kernels(self, spec: AttentionSpec, num_tokens: int) -> Kernels:
        """As `Ops.kernels`; all weights must be packed before."""
        return TorchKernels(spec, num_tokens, self._max_tile_outputs)


class TorchKernels:
    """The ops of one model in plain torch; see `Kernels`."""

    def __init__(self, spec: AttentionSpec, num_tokens: int, max_tile_outputs: int) -> None:
        num_rows = -(-num_tokens // ROW_MULTIPLE) * ROW_MULTIPLE
        heads_rotated, heads_cached = spec.num_heads + spec.num_kv_heads, 2 * spec.num_kv_heads
        device = spec.pool.device
        self._spec = spec
        self._linear = TiledLinear(max(max_tile_outputs, spec.qkv_len, spec.query_len), device)
        self._attention = TiledAttention(spec, num_tokens)
        self._scale = zeros(num_rows, 1, device=device)
        self._turned = zeros(2, num_tokens, heads_rotated, spec.head_dim // 2, device=device)
        self._head_scale = zeros(num_tokens, heads_rotated, 1, device=device)
        self._cos_sin = zeros(num_tokens, spec.head_dim, device=device)
        self._to_cache = zeros(num_tokens, heads_cached, spec.head_dim, dtype=spec.pool.dtype, device=device)
        self._cache_index = zeros(num_tokens, heads_cached, dtype=torch.int64, device=device)
        self._cache_rows = spec.pool.view(-1, spec.head_dim)
        self._num_tokens = 0

    def program(self, layers: Callable[[Kernels], None]) -> None:
        """As `Kernels.program`: there is nothing to gain."""

    def begin_step(self, step: PackedStep) -> None:
        """As `Kernels.begin_step`."""
        spec, num_tokens = self._spec, step.num_tokens
        self._num_tokens = num_tokens
        torch.index_select(spec.rope_table, 0, step.positions, out=self._cos_sin[:num_tokens])
        # A pool row is one token of one head: [block, layer, K or V, head, offset].
        block, offset = step.slots // spec.block_size, step.slots % spec.block_size
        heads = torch.arange(2 * spec.num_kv_heads, device=block.device)
        rows_a_block = self._cache_rows.shape[0] // spec.pool.shape[0]
        first = block * rows_a_block + offset
        torch.add(first[:, None], heads * spec.block_size, out=self._cache_index[:num_tokens])
        self._attention.begin_step(step)

    def embed(self, token_ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
        """As `Kernels.embed`."""
        has_id = (token_ids >= 0)[:, None]
        out.copy_(torch.where(has_id, table.index_select(0, token_ids.clamp(min=0)), out))

    def head(
        self,
        hidden: torch.Tensor,
        logit_tokens: torch.Tensor,
        norm: torch.Tensor,
        eps: float,
        lm_head: Weight,
        buffers: HeadBuffers,
    ) -> None:
        """As `Kernels.head`."""
        buffers = buffers.first(len(logit_tokens))
        if len(logit_tokens) > 0:
            torch.index_select(hidden, 0, logit_tokens, out=buffers.hidden)
            self.rmsnorm(buffers.hidden, norm, eps, buffers.normed)
            self.linear(buffers.normed, lm_head, buffers.logits)

    def rmsnorm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
        """As `Kernels.rmsnorm`."""
        # Whole tiles: for a single row, torch may sum in another order.
        x, out = padded(x), padded(out)
        scale = _inverse_rms(x, eps, self._scale[: x.shape[0]])
        torch.mul(x, scale, out=out).mul_(weight)

    def linear(self, x: torch.Tensor, weight: Weight, out: torch.Tensor) -> None:
        """As `Kernels.linear`."""
        self._linear.into(x, weight, out)

    def linear_add(self, x: torch.Tensor, weight: Weight, residual: torch.Tensor) -> None:
        """As `Kernels.linear_add`."""
        for start, num_rows, product in self._linear.tiles(x, weight):
            residual[start : start + num_rows].add_(product)

    def linear_silu(self, x: torch.Tensor, weight: Weight, out: torch.Tensor) -> None:
        """As `Kernels.linear_silu`."""
        for start, num_rows, product in self._linear.tiles(x, weight):
            # -g / (1 + exp(-g)) * -u = silu(g) * u
            minus_gate, minus_up = product[:, : weight.num_outputs], product[:, weight.num_outputs :]
            part = out[start : start + num_rows]
            torch.exp(minus_gate, out=part).add_(1)
            torch.div(minus_gate, part, out=part).mul_(minus_up)

    def rope_and_write(self, qkv: torch.Tensor, layer: int, norms: HeadNorms | None) -> None:
        """As `Kernels.rope_and_write`."""
        spec, num_tokens = self._spec, self._num_tokens
        heads = qkv.view(num_tokens, -1, spec.head_dim)
        rotated = heads[:, : spec.num_heads + spec.num_kv_heads]
        if norms is not None:
            self._norm_heads(rotated, norms)
        self._rotate(rotated)
        to_cache = self._to_cache[:num_tokens]
        to_cache.copy_(heads[:, spec.num_heads :])
        layer_rows = self._cache_rows[layer * 2 * spec.num_kv_heads * spec.block_size :]
        layer_rows.index_copy_(0, self._cache_index[:num_tokens].view(-1), to_cache.view(-1, spec.head_dim))

    def attention(self, qkv: torch.Tensor, layer: int, out: torch.Tensor) -> None:
        """As `Kernels.attention`."""
        self._attention.run(qkv, layer, out)

    def _norm_heads(self, heads: torch.Tensor, norms: HeadNorms) -> None:
        heads.mul_(_inverse_rms(heads, norms.eps, self._head_scale[: heads.shape[0]]))
        heads[:, : self._spec.num_heads].mul_(norms.query)
        heads[:, self._spec.num_heads :].mul_(norms.key)

    def _rotate(self, heads: torch.Tensor) -> None:
        """(a, b) → (a cos - b sin, b cos + a sin) for the halves of each head (Su et al. 2021, half-split form)."""
        num_tokens, num_heads, head_dim = heads.shape
        halves = heads.view(num_tokens, num_heads, 2, head_dim // 2)
        table = self._cos_sin[:num_tokens].view(num_tokens, 2, 1, head_dim // 2)
        cos, sin = table[:, 0], table[:, 1]
        turned_first, turned_second = self._turned[:, :num_tokens]
        torch.mul(halves[:, :, 0], sin, out=turned_first)
        torch.mul(halves[:, :, 1], sin, out=turned_second)
        halves.mul_(cos[:, :, None])
        halves[:, :, 0].sub_(turned_second)
        halves[:, :, 1].add_(turned_first)


def _inverse_rms(x: torch.Tensor, eps: float, out: torch.Tensor) -> torch.Tensor:
    """1 / sqrt(mean(x²) + eps) over the last dimension, kept as one of length 1."""
    torch.linalg.vector_norm(x, dim=-1, keepdim=True, out=out)
    return out.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
