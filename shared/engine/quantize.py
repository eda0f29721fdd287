"""Weights as int8: for each output a scale, and its weights in units of it (docs/quantization.md)."""

from dataclasses import dataclass

import torch

WEIGHT_FORMATS = ("dtype", "int8")
"""What linears can be held as: in the model's dtype, or quantized when they are loaded."""
LARGEST = 127


@dataclass(frozen=True)
class Quantized:
    """A matrix as `values * scales[:, None]`."""

    values: torch.Tensor
    """int8 [num_outputs, num_inputs], from -127 to 127"""
    scales: torch.Tensor
    """float32 [num_outputs], above 0"""


def quantize(weight: torch.Tensor) -> Quantized:
    """Each row in units of its largest value / 127, rounded to nearest, ties to even; no error is above half a unit.

    Symmetric, so that a product needs no sum of its inputs; and with one scale a row, so that it is multiplied by once,
    when the sum is finished.

    Args:
        weight: [num_outputs, num_inputs] of any floating dtype.
    """
    rows = weight.float()
    scales = rows.abs().amax(dim=1) / LARGEST
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)  # a row of zeros
    return Quantized((rows / scales[:, None]).round_().to(torch.int8), scales)
