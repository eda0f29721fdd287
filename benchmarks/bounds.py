"""The least time that a step can take on a machine: what it must read and multiply, at the machine's ceilings."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ceilings:
    """Best rates of a machine, for one number of threads.

    Attributes:
        read_gb_s: of a sum over memory that no cache holds.
        gemm_gflop_s: of a 2048³ product, in bfloat16 where the CPU has instructions for it, else in float32.
    """

    read_gb_s: float
    gemm_gflop_s: float


@dataclass(frozen=True)
class ModelFacts:
    """What bounds are computed from.

    Attributes:
        kernels: what computes.
        weights: type of what the matrices are kept in.
        dtype: of KV, and of weights that are not quantized.
        weight_bytes: read by every decode step, LM head included.
        layer_weights: numbers in all layers' matrices; each costs two operations a token.
        head_weights: numbers in the LM head.
        kv_bytes_a_token: KV of one token, all layers.
        attention_flops_a_pair: operations of one query token with one key token, all layers and heads.
        max_model_len: the longest context.
        vocab_size: token ids are below it.
    """

    kernels: str
    weights: str
    dtype: str
    weight_bytes: int
    layer_weights: int
    head_weights: int
    kv_bytes_a_token: float
    attention_flops_a_pair: int
    max_model_len: int
    vocab_size: int

    @property
    def title(self) -> str:
        """What computes, and what with, in a few words."""
        return f"{self.kernels} kernels, {self.weights} weights, {self.dtype} KV"


@dataclass(frozen=True)
class Least:
    """The least seconds that reading takes, and multiplying."""

    read_seconds: float
    multiply_seconds: float

    @property
    def bound_seconds(self) -> float:
        """What it takes at least: both at once."""
        return max(self.read_seconds, self.multiply_seconds)

    @property
    def serial_seconds(self) -> float:
        """What reading and then multiplying takes at least."""
        return self.read_seconds + self.multiply_seconds

    def __add__(self, other: "Least") -> "Least":
        return Least(self.read_seconds + other.read_seconds, self.multiply_seconds + other.multiply_seconds)


def step_least(model: ModelFacts, ceilings: Ceilings, rows: Iterable[tuple[int, int]]) -> Least:
    """Of one step.

    Args:
        model: what computes it.
        ceilings: of the machine.
        rows: of each row, the tokens that are there already and those of this step; each row wants logits of its last.
    """
    num_bytes, flops = float(model.weight_bytes), 0
    for start, length in rows:
        num_bytes += (start + length) * model.kv_bytes_a_token
        num_pairs = length * start + length * (length + 1) // 2
        flops += 2 * (length * model.layer_weights + model.head_weights) + num_pairs * model.attention_flops_a_pair
    return Least(num_bytes / ceilings.read_gb_s / 1e9, flops / ceilings.gemm_gflop_s / 1e9)
