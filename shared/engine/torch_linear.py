"""Matrix products whose bits do not depend on how many rows share a call.

A BLAS may sum in another order for another number of rows. So rows are computed in tiles of 16, whatever their number.
Many BLAS kernels do sum in one order for a range of sizes; where a probe finds that so, for this very matrix shape on
this machine, larger tiles are used too (up to half as fast again), and smaller ones for few rows (half the time).
"""

from collections.abc import Iterator
from functools import cache

import torch

from shared.engine.ops import Weight
from shared.engine.storage import zeros

ROW_MULTIPLE = 16
"""Rows of the tile that all others are compared with; buffers have a multiple of so many rows."""
LARGE_TILES = (128, 64, 32)
SMALL_TILES = (4, 8)
MAX_TILE_ROWS = max(LARGE_TILES)


class TiledLinear:
    """Multiplies by matrices [num_outputs, num_inputs], kept as they are."""

    def __init__(self, max_num_outputs: int, device: torch.device) -> None:
        """Allocates what one tile needs for matrices of up to `max_num_outputs` rows."""
        self._work = zeros(MAX_TILE_ROWS * max_num_outputs, device=device)

    def tiles(self, x: torch.Tensor, weight: Weight) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yields (first row, number of rows, x[rows] Wᵀ + bias as float32 [rows, matrix rows]) tile by tile.

        The last tile may go past the rows of x: `x` must be the beginning of a buffer of a multiple of 16 rows. What is
        yielded is overwritten by the next tile.
        """
        num_rows = x.shape[0]
        x = padded(x)
        for start, size in row_tiles(num_rows, sizes_of(weight)):
            out = self._work[: size * weight.data.shape[0]].view(size, -1)
            _multiply(x[start : start + size], weight, out)
            yield start, min(size, num_rows - start), out[: num_rows - start]

    def into(self, x: torch.Tensor, weight: Weight, out: torch.Tensor) -> None:
        """Into `out`: x Wᵀ + bias, a float32 buffer with rows up to a multiple of 16."""
        num_rows = x.shape[0]
        x, out = padded(x), padded(out)
        for start, size in row_tiles(num_rows, sizes_of(weight)):
            _multiply(x[start : start + size], weight, out[start : start + size])


def padded(x: torch.Tensor) -> torch.Tensor:
    """`x` with the rows of its buffer up to a multiple of 16."""
    num_rows = -(-x.shape[0] // ROW_MULTIPLE) * ROW_MULTIPLE
    return x.as_strided((num_rows, x.shape[1]), x.stride())


def row_tiles(num_rows: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Cuts rows into tiles as (first row, size): the largest that are filled, then the smallest that holds the rest.

    Args:
        num_rows: rows to cover; the last tile may go past them, but not past the next multiple of 16.
        sizes: ascending sizes that may be used, 16 among them.
    """
    start = 0
    while start < num_rows:
        rest = num_rows - start
        filled = [size for size in sizes if ROW_MULTIPLE <= size <= rest]
        size = filled[-1] if filled else next(size for size in sizes if size >= rest)
        yield start, size
        start += size


def sizes_of(weight: Weight) -> tuple[int, ...]:
    """Tile sizes, ascending, that give the same bits for a matrix of this shape and dtype."""
    num_outputs, num_inputs = weight.data.shape
    return probe_sizes(num_outputs, num_inputs, weight.data.dtype, torch.get_num_threads(), weight.data.device)


@cache
def probe_sizes(
    num_outputs: int, num_inputs: int, dtype: torch.dtype, num_threads: int, device: torch.device
) -> tuple[int, ...]:
    """As `sizes_of`; measured once a shape, number of threads and device."""
    assert num_threads == torch.get_num_threads()
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(num_outputs, num_inputs, generator=generator).to(device, dtype)
    x = torch.randn(MAX_TILE_ROWS, num_inputs, generator=generator).to(device)
    weight = Weight(matrix, None, num_inputs, num_outputs)
    reference = _products(x, weight, ROW_MULTIPLE)
    fits = [size for size in (*SMALL_TILES, *LARGE_TILES) if _gives(reference, x, weight, size)]
    return tuple(sorted([ROW_MULTIPLE, *fits]))


def _gives(reference: torch.Tensor, x: torch.Tensor, weight: Weight, size: int) -> bool:
    num_rows = max(size, ROW_MULTIPLE)
    return torch.equal(_products(x[:num_rows], weight, size), reference[:num_rows])


def _products(x: torch.Tensor, weight: Weight, size: int) -> torch.Tensor:
    out = torch.empty(x.shape[0], weight.num_outputs, device=x.device)
    for start in range(0, x.shape[0], size):
        _multiply(x[start : start + size], weight, out[start : start + size])
    return out


def _multiply(x: torch.Tensor, weight: Weight, out: torch.Tensor) -> None:
    if weight.data.dtype == torch.float32:
        torch.mm(x, weight.data.t(), out=out)
    else:
        out.copy_(torch.mm(x.to(weight.data.dtype), weight.data.t()))
    if weight.scales is not None:
        out.mul_(weight.scales)
    if weight.bias is not None:
        out.add_(weight.bias)
