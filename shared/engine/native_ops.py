"""The ops by native kernels (`shared/engine/kernels/`), for bfloat16 weights and KV in blocks of 32 tokens.

Calls can be noted once and run together: a step's layers are one call then, during which other Python threads go on.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from shared.engine.arena import Arena
from shared.engine.kernels import library as native
from shared.engine.kernels.library import KernelLibrary, Op, Shape, Step
from shared.engine.models.config import ModelConfig
from shared.engine.ops import AttentionSpec, HeadBuffers, HeadNorms, Kernels, PackedStep, Weight
from shared.engine.quantize import quantize

PANEL = 32
"""Outputs of a panel of weights, and tokens of a block."""


class NativeOps:
    """Ops of one kernel library."""

    kv_layout_name = "panel32"
    weight_dtype = torch.bfloat16
    row_multiple = 1

    def __init__(self, library: KernelLibrary, weights: str = "dtype") -> None:
        self.name = library.isa
        self.weights = weights
        self.activation_dtype = library.activation_dtype
        self._library = library
        self._arena = Arena()

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Weight:
        """As `Ops.pack`: [outputs / 32, inputs / 2, 32, 2], filled up with zeros to whole panels."""
        num_outputs, num_inputs = weight.shape
        scales = None
        if self.weights == "int8":
            quantized = quantize(weight)
            panels, scales = _panels(quantized.values), _padded(quantized.scales)
        else:
            panels = _panels(weight.bfloat16())
        panels = self._arena.place(panels)
        return Weight(panels, None if bias is None else _padded(bias.float()), num_inputs, num_outputs, scales)

    def pack_gate_up(
        self,
        gate: torch.Tensor,
        up: torch.Tensor,
        gate_bias: torch.Tensor | None = None,
        up_bias: torch.Tensor | None = None,
    ) -> Weight:
        """As `Ops.pack_gate_up`: outputs of both in turns of a vector's width."""
        bias = None
        if gate_bias is not None and up_bias is not None:
            bias = self._in_turns(gate_bias, up_bias)
        return replace(self.pack(self._in_turns(gate, up), bias), num_outputs=gate.shape[0])

    def kernels(self, spec: AttentionSpec, num_tokens: int) -> Kernels:  # noqa: ARG002  they need no buffers
        """As `Ops.kernels`."""
        return NativeKernels(self._library, spec)

    def _in_turns(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        width = self._library.vector_width
        pair = [part.view(-1, width, *part.shape[1:]) for part in (gate, up)]
        return torch.stack(pair, dim=1).reshape(-1, *gate.shape[1:])


class NativeKernels:
    """See `Kernels`. Activations are contiguous."""

    def __init__(self, library: KernelLibrary, spec: AttentionSpec) -> None:
        self._library = library
        self._shape = Shape(
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            spec.pool[0].numel(),
            spec.rope_table.data_ptr(),
            spec.pool.data_ptr(),
        )
        self._step = Step()
        self._packed: PackedStep | None = None
        self._noted: list[Op] | None = None

    def program(self, layers: Callable[[Kernels], None]) -> Callable[[], None]:
        """As `Kernels.program`."""
        self._noted = []
        layers(self)
        ops = (Op * len(self._noted))(*self._noted)
        self._noted = None
        return lambda: self._library.run(ops, self._step, self._shape, torch.get_num_threads())

    def begin_step(self, step: PackedStep) -> None:
        """As `Kernels.begin_step`."""
        if step is self._packed:
            return
        self._packed = step  # whose memory is read while it runs
        self._step.positions = step.positions.data_ptr()
        self._step.slots = step.slots.data_ptr()
        self._step.row_starts = step.row_starts.data_ptr()
        self._step.kv_lens = step.kv_lens.data_ptr()
        self._step.block_table = step.block_table.data_ptr()
        self._step.num_tokens = step.num_tokens
        self._step.num_rows = step.num_rows
        self._step.num_logits = step.num_logits
        self._step.block_table_stride = step.block_table.stride(0)

    def embed(self, token_ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
        """As `Kernels.embed`."""
        self._do(native.EMBED, token_ids, table, None, out, num_outputs=out.shape[1])

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
        num_rows = len(logit_tokens) if self._noted is None else native.STEP_LOGITS
        if num_rows == 0:
            return
        size = hidden.shape[1]
        self._do(native.NORM_AT, hidden, norm, logit_tokens, buffers.normed, rows=num_rows, num_outputs=size, eps=eps)
        self._multiply(native.LINEAR_FLOAT, buffers.normed, lm_head, buffers.logits, rows=num_rows)

    def rmsnorm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
        """As `Kernels.rmsnorm`."""
        self._do(native.NORM, x, weight, None, out, num_outputs=x.shape[1], eps=eps)

    def linear(self, x: torch.Tensor, weight: Weight, out: torch.Tensor) -> None:
        """As `Kernels.linear`."""
        is_float = out.dtype == torch.float32
        self._multiply(native.LINEAR_FLOAT if is_float else native.LINEAR, x, weight, out)

    def linear_add(self, x: torch.Tensor, weight: Weight, residual: torch.Tensor) -> None:
        """As `Kernels.linear_add`."""
        self._multiply(native.LINEAR_ADD, x, weight, residual)

    def linear_silu(self, x: torch.Tensor, weight: Weight, out: torch.Tensor) -> None:
        """As `Kernels.linear_silu`."""
        self._multiply(native.LINEAR_SILU, x, weight, out)

    def rope_and_write(self, qkv: torch.Tensor, layer: int, norms: HeadNorms | None) -> None:
        """As `Kernels.rope_and_write`."""
        if norms is None:
            self._do(native.ROPE_AND_WRITE, None, None, None, qkv, layer=layer)
        else:
            self._do(native.ROPE_AND_WRITE, None, norms.query, norms.key, qkv, layer=layer, eps=norms.eps)

    def attention(self, qkv: torch.Tensor, layer: int, out: torch.Tensor) -> None:
        """As `Kernels.attention`."""
        self._do(native.ATTENTION, qkv, None, None, out, layer=layer)

    def _multiply(self, kind: int, x: torch.Tensor, weight: Weight, out: torch.Tensor, rows: int | None = None) -> None:
        size = {"num_k": weight.num_inputs, "num_outputs": weight.num_outputs}
        self._do(kind, x, weight.data, weight.bias, out, rows=rows, scales=weight.scales, **size)

    def _do(
        self,
        kind: int,
        x: torch.Tensor | None,
        w: torch.Tensor | None,
        extra: torch.Tensor | None,
        y: torch.Tensor,
        *,
        rows: int | None = None,
        num_k: int = 0,
        num_outputs: int = 0,
        layer: int = 0,
        eps: float = 0.0,
        scales: torch.Tensor | None = None,
    ) -> None:
        """Runs an op, or notes it; on all rows of `y`, unless `rows` says otherwise."""
        if rows is None:
            rows = len(y) if self._noted is None else native.STEP_TOKENS
            if self._noted is None and rows == 0:
                return
        tensors = map(_address, (x, w, extra, y))
        op = Op(kind, *tensors, rows, num_k, num_outputs, layer, eps, _address(scales))
        if self._noted is not None:
            self._noted.append(op)
        else:
            self._library.run((Op * 1)(op), self._step, self._shape, torch.get_num_threads())


def why_not(config: ModelConfig, block_size: int, library: KernelLibrary) -> str | None:
    """Why the kernels cannot run a model, or None if they can."""
    conditions = (
        (block_size == PANEL, f"kv.block_size is {block_size}, not {PANEL}"),
        (config.head_dim % PANEL == 0, f"head_dim {config.head_dim} is no multiple of {PANEL}"),
        (config.head_dim <= library.max_head_dim, f"head_dim {config.head_dim} is above {library.max_head_dim}"),
        (config.hidden_size % PANEL == 0, f"hidden_size {config.hidden_size} is no multiple of {PANEL}"),
        (config.intermediate_size % PANEL == 0, f"intermediate_size {config.intermediate_size} is no such multiple"),
    )
    return next((reason for is_met, reason in conditions if not is_met), None)


def _address(tensor: torch.Tensor | None) -> int | None:
    if tensor is None:
        return None
    assert tensor.is_contiguous(), (tensor.shape, tensor.stride())
    return tensor.data_ptr()


def _padded(values: torch.Tensor) -> torch.Tensor:
    """Values for whole panels, zeros behind."""
    missing = -values.shape[0] % PANEL
    return torch.cat([values, values.new_zeros(missing, *values.shape[1:])]) if missing else values.contiguous()


def _panels(weight: torch.Tensor) -> torch.Tensor:
    padded = _padded(weight)
    num_outputs, num_inputs = padded.shape
    return padded.view(num_outputs // PANEL, PANEL, num_inputs // 2, 2).permute(0, 2, 1, 3)
