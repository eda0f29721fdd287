"""Rotary position embeddings: frequencies and the table of their cosines and sines."""

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LinearScaling:
    """Positions are divided by `factor` (Chen et al. 2023, "positional interpolation")."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Low frequencies are divided by `factor`, high ones kept, those between are mixed (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_len: int


@dataclass(frozen=True)
class Rope:
    """What a model's rotary embedding is computed from."""

    theta: float
    scaling: LinearScaling | Llama3Scaling | None = None


def inverse_frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """Radians a position for each pair of dimensions.

    `theta ** (-2i / head_dim)` (Su et al. 2021, "RoFormer"), scaled as the model says.

    Returns:
        float32 [head_dim / 2]
    """
    plain = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    match rope.scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case Llama3Scaling() as scaling:
            return _llama3_frequencies(plain, scaling)


def _llama3_frequencies(plain: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    wavelength = 2 * math.pi / plain
    turns = scaling.original_max_len / wavelength
    mix = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    mixed = (1 - mix) * plain / scaling.factor + mix * plain
    slowed = torch.where(turns < scaling.low_freq_factor, plain / scaling.factor, mixed)
    return torch.where(turns > scaling.high_freq_factor, plain, slowed)


def rope_table(rope: Rope, head_dim: int, num_positions: int) -> torch.Tensor:
    """Cosines, then sines, of every position.

    Returns:
        float32 [num_positions, head_dim]: head_dim / 2 cosines and as many sines
    """
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * inverse_frequencies(rope, head_dim)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)
