import pytest
import torch

from shared.engine.ops import Weight
from shared.engine.torch_linear import MAX_TILE_ROWS, TiledLinear, padded, probe_sizes, row_tiles

ALL_SIZES = (4, 8, 16, 64, 128)


@pytest.mark.parametrize(
    ("num_rows", "sizes", "tiles"),
    [
        (1, ALL_SIZES, [(0, 4)]),
        (4, ALL_SIZES, [(0, 4)]),
        (5, ALL_SIZES, [(0, 8)]),
        (9, ALL_SIZES, [(0, 16)]),
        (16, ALL_SIZES, [(0, 16)]),
        (17, ALL_SIZES, [(0, 16), (16, 4)]),
        (100, ALL_SIZES, [(0, 64), (64, 16), (80, 16), (96, 4)]),
        (200, ALL_SIZES, [(0, 128), (128, 64), (192, 8)]),
        (300, ALL_SIZES, [(0, 128), (128, 128), (256, 16), (272, 16), (288, 16)]),
        (33, (16,), [(0, 16), (16, 16), (32, 16)]),
        (0, ALL_SIZES, []),
    ],
)
def test_rows_are_cut_into_the_largest_tiles(
    num_rows: int, sizes: tuple[int, ...], tiles: list[tuple[int, int]]
) -> None:
    assert list(row_tiles(num_rows, sizes)) == tiles


@pytest.mark.parametrize("sizes", [ALL_SIZES, (16,), (8, 16, 64)])
def test_tiles_cover_all_rows_and_stay_in_the_buffer(sizes: tuple[int, ...]) -> None:
    for num_rows in range(1, 400):
        tiles = list(row_tiles(num_rows, sizes))
        ends = [start + size for start, size in tiles]

        assert [start for start, _ in tiles] == [0, *ends[:-1]]
        assert num_rows <= ends[-1] <= -(-num_rows // 16) * 16


def test_probe_always_has_the_tile_that_others_are_compared_with() -> None:
    sizes = probe_sizes(40, 24, torch.float32, torch.get_num_threads(), torch.device("cpu"))

    assert 16 in sizes
    assert list(sizes) == sorted(set(sizes))


def test_padded_goes_on_in_the_same_memory() -> None:
    buffer = torch.arange(32.0).view(16, 2)

    assert torch.equal(padded(buffer[:3]), buffer)
    assert torch.equal(padded(buffer[:16]), buffer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [1, 4, 5, 16, 17, 130])
def test_products_are_right_and_independent_of_the_rows_beside_them(num_rows: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(48, 32, generator=generator).to(dtype)
    bias = torch.randn(48, generator=generator)
    weight = Weight(matrix, bias, 32, 48)
    buffer = torch.randn(MAX_TILE_ROWS * 2, 32, generator=generator)
    linear = TiledLinear(48, torch.device("cpu"))
    out, tiled = torch.zeros(MAX_TILE_ROWS * 2, 48), torch.zeros(num_rows, 48)

    linear.into(buffer[:num_rows], weight, out[:num_rows])
    for start, count, product in linear.tiles(buffer[:num_rows], weight):
        tiled[start : start + count] = product

    expected = buffer[:num_rows].to(dtype).double() @ matrix.double().t() + bias.double()
    assert torch.allclose(out[:num_rows].double(), expected, atol=1e-4 if dtype == torch.float32 else 0.2)
    assert torch.equal(tiled, out[:num_rows])
    alone = torch.zeros(16, 48)
    for index in range(num_rows):
        row = torch.zeros(16, 32)
        row[0] = buffer[index]
        linear.into(row[:1], weight, alone[:1])
        assert torch.equal(alone[0], out[index]), index
