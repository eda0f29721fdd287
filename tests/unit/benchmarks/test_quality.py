import math

import pytest
import torch

from benchmarks.quality import Quality, Report, Tally, as_table, chunks_of, next_token_losses


def test_chunks_are_whole_and_of_one_length() -> None:
    assert [list(chunk) for chunk in chunks_of(range(10), 4)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert list(chunks_of(range(3), 4)) == []


def test_a_loss_is_of_the_next_token_by_the_logits_before_it() -> None:
    logits = torch.tensor([[0.0, math.log(3)], [math.log(1 / 9), 0.0], [7.0, 7.0]])
    # Of tokens 1 and 0: three quarters, and a tenth.
    found = next_token_losses(logits, [0, 1, 0])
    assert found.dtype == torch.float64
    assert found.exp().tolist() == pytest.approx([4 / 3, 10])


def test_quality_by_hand() -> None:
    exact = torch.tensor([[0.0, 0.0], [0.0, math.log(3)], [1.0, 0.0]])
    found = torch.tensor([[0.0, math.log(3)], [0.0, math.log(3)], [0.0, 0.0]])
    tally = Tally()
    tally.add([0, 1, 1], exact, found)  # token 1 twice: at a half and three quarters, at three quarters twice
    tally.add([0, 1, 1], exact, exact)
    quality = tally.quality()
    assert quality.max_logit_error == pytest.approx(math.log(3))
    assert quality.mean_logit_error == pytest.approx((math.log(3) + 1) / 6 / 2)
    assert quality.top1_agreement == pytest.approx(5 / 6), "where both are as likely, the first one counts"
    assert tally.exact_perplexity == pytest.approx((2 * 4 / 3) ** 0.5)
    assert quality.perplexity == pytest.approx((4 / 3 * 4 / 3 * 2 * 4 / 3) ** 0.25)
    assert quality.perplexity_ratio == pytest.approx(quality.perplexity / tally.exact_perplexity)
    difference = math.log(2 / 3)  # of one token of four
    spread = math.sqrt((difference**2 - difference**2 / 4) / 3)
    assert quality.perplexity_ratio_error == pytest.approx(quality.perplexity_ratio * spread / 2)


def test_the_table_has_a_line_for_each_variant() -> None:
    quality = Quality(1.5, 0.25, 0.975, 20.0, 1.0125, 0.002)
    lines = as_table(Report("avx2", 512, 19.753, {"bfloat16": quality, "int8": quality})).splitlines()
    assert lines[0].startswith("512 tokens, avx2 kernels")
    assert lines[2].split() == ["float32", "19.753"]
    assert lines[4].split() == ["int8", "1.500", "0.2500", "97.50%", "20.000", "1.0125", "±", "0.0020"]
    assert len({len(line) for line in lines[1:2] + lines[3:]}) == 1
