"""Counter-based random numbers."""

from itertools import product

import numpy as np
import pytest

from shared.sampling.random import uniform

WORD = 2**64


def philox4x64(counter: tuple[int, int, int, int], key: tuple[int, int]) -> int:
    """Return the first word of Philox4x64-10, written out from the paper."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c0, WORD)
        high1, low1 = divmod(0xCA5A826395121157 * c2, WORD)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) % WORD, (k1 + 0xBB67AE8584CAA73B) % WORD
    return c0


def test_the_test_computes_philox() -> None:
    # The published vector of the authors' Random123 library (tests/kat_vectors).
    assert philox4x64((0, 0, 0, 0), (0, 0)) == 0x16554D9ECA36314C


@pytest.mark.parametrize(
    ("seed", "index", "position"),
    [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (12345, 3, 4095), (2**53 + 1, 0, 9), (2**64 - 1, 7, 2**32 - 1)],
)
def test_draws_are_philox_of_their_coordinates(seed: int, index: int, position: int) -> None:
    bits = philox4x64((position + 1, 0, 0, 0), (seed, index))
    assert uniform(seed, index, position) == (bits >> 11) / 2**53


def test_draws_do_not_depend_on_their_order() -> None:
    backward = [uniform(7, 1, position) for position in reversed(range(50))]
    assert backward[::-1] == [uniform(7, 1, position) for position in range(50)]


def test_each_coordinate_matters() -> None:
    draws = {uniform(seed, index, position) for seed, index, position in product(range(10), repeat=3)}
    assert len(draws) == 1000


def test_large_seeds_that_floats_cannot_tell_apart_differ() -> None:
    assert uniform(2**64 - 1, 0, 0) != uniform(2**64 - 2, 0, 0)


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_positions_are_uniform(seed: int) -> None:
    draws = np.array([uniform(seed, 0, position) for position in range(4000)])
    assert draws.min() >= 0
    assert draws.max() < 1
    counts = np.histogram(draws, bins=16, range=(0, 1))[0]
    chi_square = ((counts - 250) ** 2 / 250).sum()
    assert chi_square < 37.7  # 99.9% quantile for 15 degrees of freedom


def test_neighbouring_positions_are_uncorrelated() -> None:
    draws = np.array([uniform(3, 0, position) for position in range(4000)])
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.05
