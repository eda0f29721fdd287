import math

import pytest
import torch

from shared.engine.models.rope import LinearScaling, Llama3Scaling, Rope, inverse_frequencies, rope_table


def test_frequencies_fall_by_powers_of_theta() -> None:
    # Exponents are -0/4 and -2/4.
    assert inverse_frequencies(Rope(10000.0), 4).tolist() == pytest.approx([1.0, 0.01])


def test_linear_scaling_slows_all_alike() -> None:
    assert inverse_frequencies(Rope(10000.0, LinearScaling(4.0)), 4).tolist() == pytest.approx([0.25, 0.0025])


def test_llama3_scaling_keeps_fast_slows_slow_and_mixes_between() -> None:
    # Over 64 positions: frequency 1 makes 64 / 2π = 10.2 turns, 0.1 makes 1.02, 0.001 makes 0.01 turns.
    scaling = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=2.0, original_max_len=64)
    plain = inverse_frequencies(Rope(1e6), 12).tolist()
    fast, slow = plain[0], plain[3]
    between = plain[1]
    assert (fast, between, slow) == pytest.approx((1.0, 0.1, 0.001))

    scaled = inverse_frequencies(Rope(1e6, scaling), 12).tolist()

    mix = 64 * 0.1 / (2 * math.pi) - 1.0
    assert scaled[0] == pytest.approx(1.0)
    assert scaled[1] == pytest.approx((1 - mix) * 0.1 / 8 + mix * 0.1)
    assert scaled[3] == pytest.approx(0.001 / 8)


def test_table_holds_cosines_then_sines() -> None:
    table = rope_table(Rope(10000.0), 4, 3)

    assert table.shape == (3, 4)
    assert table[0].tolist() == [1, 1, 0, 0]
    assert table[2].tolist() == pytest.approx([math.cos(2), math.cos(0.02), math.sin(2), math.sin(0.02)])
    assert table.dtype == torch.float32
