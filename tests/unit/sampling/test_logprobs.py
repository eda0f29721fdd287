"""Log-probabilities: by hand, against torch, and alone as among others."""

from math import log
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.sampling.logprobs import TokenLogprob, TokenLogprobs, prompt_logprobs, token_logprobs

INF = float("inf")


def as_logits(*probabilities: float) -> npt.NDArray[np.float32]:
    return np.array([log(p) + 3 if p else -INF for p in probabilities], dtype=np.float32)


def near(token_id: int, logprob: float, rank: int) -> TokenLogprob:
    """Return what equals a value whose log-probability is `logprob` to six digits."""
    about: Any = pytest.approx(logprob, abs=1e-6)
    return TokenLogprob(token_id, about, rank)


def test_by_hand() -> None:
    # ln 0.1, ln 0.4, ln 0.2, ln 0.3
    found = token_logprobs(as_logits(0.1, 0.4, 0.2, 0.3), 2, 2)
    assert found == TokenLogprobs(near(2, -1.6094379, 3), (near(1, -0.9162907, 1), near(3, -1.2039728, 2)))


def test_no_alternatives() -> None:
    assert token_logprobs(as_logits(0.5, 0.25, 0.25), 0, 0) == TokenLogprobs(near(0, -0.6931472, 1))


def test_equals_share_a_rank_and_the_lowest_id_goes_first() -> None:
    found = token_logprobs(as_logits(0.1, 0.2, 0.3, 0.2, 0.2), 4, 3)
    assert found.token == near(4, log(0.2), 2)
    assert found.alternatives == (near(2, log(0.3), 1), near(1, log(0.2), 2), near(3, log(0.2), 2))


def test_there_are_no_more_alternatives_than_tokens() -> None:
    found = token_logprobs(as_logits(0.25, 0.75), 0, 20)
    assert [alternative.token_id for alternative in found.alternatives] == [1, 0]


def test_an_impossible_token_has_minus_infinity() -> None:
    found = token_logprobs(as_logits(0.0, 1.0, 0.0), 2, 3)
    assert found.token == TokenLogprob(2, -INF, 2)
    assert found.alternatives == (near(1, 0.0, 1), TokenLogprob(0, -INF, 2), TokenLogprob(2, -INF, 2))


def test_logits_far_apart_do_not_overflow() -> None:
    largest = float(np.finfo(np.float32).max)
    found = token_logprobs(np.array([largest, -largest, 0], dtype=np.float32), 2, 1)
    assert found.alternatives == (TokenLogprob(0, 0.0, 1),)
    assert found.token == TokenLogprob(2, -largest, 2)


@pytest.mark.parametrize("values", [[0.0, float("nan")], [-INF, -INF], [0.0, INF]])
def test_broken_logits_have_no_log_probabilities(values: list[float]) -> None:
    broken = np.array(values, dtype=np.float32)
    with pytest.raises(FloatingPointError, match="the highest logit is "):
        token_logprobs(broken, 0, 1)
    with pytest.raises(FloatingPointError, match="the highest logit is "):
        prompt_logprobs(np.stack([np.zeros(2, dtype=np.float32), broken]), [0, 0], 1)


@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([0.1, 3.0, 30.0]),
    vocab_size=st.integers(1, 3000),
    num_alternatives=st.integers(0, 20),
)
def test_equal_the_reference(seed: int, scale: float, vocab_size: int, num_alternatives: int) -> None:
    generator = np.random.default_rng(seed)
    logits = (generator.standard_normal(vocab_size) * scale).astype(np.float32)
    token_id = int(generator.integers(vocab_size))
    expected = torch.from_numpy(logits).double().log_softmax(0)
    ranking = sorted(range(vocab_size), key=lambda token: (-logits[token], token))
    found = token_logprobs(logits, token_id, num_alternatives)
    assert [found.token.token_id, found.token.rank] == [token_id, 1 + sum(logits > logits[token_id])]
    assert [alternative.token_id for alternative in found.alternatives] == ranking[:num_alternatives]
    for one in (found.token, *found.alternatives):
        assert one.logprob == pytest.approx(float(expected[one.token_id]), abs=2e-6)


@given(
    values=st.lists(st.sampled_from([-INF, -1.0, 0.0, 2.0]), min_size=1, max_size=30).filter(
        lambda values: max(values) > -INF
    ),
    num_alternatives=st.integers(0, 20),
)
def test_ranks_among_many_equals(values: list[float], num_alternatives: int) -> None:
    ranking = sorted(range(len(values)), key=lambda token: (-values[token], token))
    found = token_logprobs(np.array(values, dtype=np.float32), 0, num_alternatives)
    assert [(one.token_id, one.rank) for one in found.alternatives] == [
        (token, 1 + sum(other > values[token] for other in values)) for token in ranking[:num_alternatives]
    ]


def test_many_rows_have_the_bits_of_each_alone() -> None:
    generator = np.random.default_rng(3)
    logits = (generator.standard_normal((17, 4999)) * 5).astype(np.float32)
    token_ids = generator.integers(0, 4999, 17).tolist()
    alone = [token_logprobs(row.copy(), token_id, 5) for row, token_id in zip(logits, token_ids, strict=True)]
    assert prompt_logprobs(logits, token_ids, 5) == alone
    # A row that is a strided view, as of a larger buffer, is the same row.
    assert prompt_logprobs(np.asfortranarray(logits), token_ids, 5) == alone


def test_no_rows() -> None:
    assert prompt_logprobs(np.empty((0, 8), dtype=np.float32), [], 3) == []
