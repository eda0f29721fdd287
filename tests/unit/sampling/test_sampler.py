"""The sampler: hand-computed distributions, the reference's kept sets, and independence of the batch."""

from collections import Counter
from math import exp, log
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from shared.sampling.params import SamplingParams
from shared.sampling.random import uniform
from shared.sampling.sampler import SampleRow, _find_place, find_candidates, sample

GREEDY = SamplingParams(temperature=0)


def row(params: SamplingParams, position: int = 0, banned: tuple[int, ...] = (), index: int = 0) -> SampleRow:
    return SampleRow(params, index=index, position=position, banned_token_ids=banned)


def as_logits(*probabilities: float) -> npt.NDArray[np.float32]:
    """Return logits whose softmax is `probabilities`, up to a constant that must not matter."""
    return np.array([log(p) + 3 if p else -np.inf for p in probabilities], dtype=np.float32)


def distribution(logits: npt.NDArray[np.float32], params: SamplingParams) -> dict[int, float]:
    kept = find_candidates(logits, params)
    shares = kept.weights / kept.weights.sum()
    return {token: share for token, share in zip(kept.token_ids.tolist(), shares.tolist(), strict=True) if share}


class TestGreedy:
    def test_takes_the_highest(self) -> None:
        logits = torch.tensor([[0.0, 2.0, 1.0], [5.0, -1.0, 4.0]])
        assert sample(logits, [row(GREEDY), row(GREEDY)]) == [1, 0]

    @pytest.mark.parametrize("first", [0, 1, 7, 31, 32, 500, 49150])
    def test_takes_the_lowest_id_among_equals(self, first: int) -> None:
        logits = torch.full((1, 49152), -1.0)
        logits[0, first] = logits[0, 49151] = 3.0
        assert sample(logits, [row(GREEDY)]) == [first]

    def test_bans_come_first_and_leave_the_logits_alone(self) -> None:
        logits = torch.tensor([[0.0, 2.0, 1.0]])
        assert sample(logits, [row(GREEDY, banned=(1,))]) == [2]
        assert logits.tolist() == [[0.0, 2.0, 1.0]]

    def test_reads_bfloat16(self) -> None:
        assert sample(torch.tensor([[0.0, 1.0]], dtype=torch.bfloat16), [row(GREEDY)]) == [1]

    def test_no_rows(self) -> None:
        assert sample(torch.empty((0, 8)), []) == []


class TestDistribution:
    """Probabilities computed by hand."""

    def test_temperature_one_is_the_softmax(self) -> None:
        assert distribution(as_logits(0.5, 0.3, 0.2), SamplingParams()) == pytest.approx({0: 0.5, 1: 0.3, 2: 0.2})

    def test_temperature_is_an_exponent(self) -> None:
        # p^(1/T) at T = 0.5: 0.25, 0.09, 0.04 of 0.38
        shares = distribution(as_logits(0.5, 0.3, 0.2), SamplingParams(temperature=0.5))
        assert shares == pytest.approx({0: 0.25 / 0.38, 1: 0.09 / 0.38, 2: 0.04 / 0.38})

    def test_tiny_temperature_is_greedy(self) -> None:
        shares = distribution(as_logits(0.3, 0.5, 0.2), SamplingParams(temperature=5e-324))
        assert shares == {1: 1.0}

    def test_top_k_keeps_k(self) -> None:
        shares = distribution(as_logits(0.1, 0.4, 0.2, 0.3), SamplingParams(top_k=2))
        assert shares == pytest.approx({1: 4 / 7, 3: 3 / 7})

    @pytest.mark.parametrize("top_k", [0, 4, 5, 2**32 - 1])
    def test_top_k_of_none_or_all_keeps_all(self, top_k: int) -> None:
        assert set(distribution(as_logits(0.1, 0.4, 0.2, 0.3), SamplingParams(top_k=top_k))) == {0, 1, 2, 3}

    def test_top_k_keeps_the_lowest_ids_among_equals(self) -> None:
        assert set(distribution(as_logits(0.2, 0.2, 0.2, 0.4), SamplingParams(top_k=2))) == {0, 3}

    @pytest.mark.parametrize(
        ("top_p", "kept"),
        [(0.01, {1}), (0.39, {1}), (0.41, {1, 3}), (0.69, {1, 3}), (0.71, {1, 2, 3}), (0.95, {0, 1, 2, 3})],
    )
    def test_top_p_keeps_the_smallest_set_that_reaches_it(self, top_p: float, kept: set[int]) -> None:
        assert set(distribution(as_logits(0.1, 0.4, 0.2, 0.3), SamplingParams(top_p=top_p))) == kept

    def test_top_p_reached_exactly_needs_no_more(self) -> None:
        equal = np.zeros(4, dtype=np.float32)
        assert set(distribution(equal, SamplingParams(top_p=0.5))) == {0, 1}
        assert set(distribution(equal, SamplingParams(top_p=0.51))) == {0, 1, 2}

    @pytest.mark.parametrize("top_p", [5e-324, 1e-17])
    def test_top_p_keeps_at_least_one(self, top_p: float) -> None:
        assert set(distribution(np.zeros(3000, dtype=np.float32), SamplingParams(top_p=top_p))) == {0}

    @pytest.mark.parametrize(
        ("min_p", "kept"), [(0.0, {0, 1, 2, 3}), (0.24, {0, 1, 2, 3}), (0.26, {1, 2, 3}), (0.6, {1, 3}), (1.0, {1})]
    )
    def test_min_p_is_a_share_of_the_highest(self, min_p: float, kept: set[int]) -> None:
        assert set(distribution(as_logits(0.1, 0.4, 0.2, 0.3), SamplingParams(min_p=min_p))) == kept

    def test_min_p_one_keeps_equals(self) -> None:
        assert set(distribution(as_logits(0.4, 0.2, 0.4), SamplingParams(min_p=1.0))) == {0, 2}

    def test_temperature_comes_before_min_p(self) -> None:
        # At T = 2 shares are √p: 0.1 / 0.4 becomes 0.5, and passes a min_p that 0.25 would not.
        assert 0 in distribution(as_logits(0.1, 0.4, 0.2, 0.3), SamplingParams(temperature=2, min_p=0.45))

    def test_top_p_is_a_share_of_what_top_k_and_min_p_leave(self) -> None:
        # 0.4 is 57% of 0.7, so that 0.55 is reached by it alone, though 0.4 of the whole is not 0.55.
        logits = as_logits(0.1, 0.4, 0.2, 0.3)
        assert set(distribution(logits, SamplingParams(top_k=2, top_p=0.55))) == {1}
        assert set(distribution(logits, SamplingParams(min_p=0.6, top_p=0.55))) == {1}
        assert set(distribution(logits, SamplingParams(top_p=0.55))) == {1, 3}

    def test_impossible_tokens_are_never_drawn(self) -> None:
        logits = torch.from_numpy(as_logits(0.0, 0.5, 0.0, 0.5, 0.0))[None]
        drawn = {sample(logits, [row(SamplingParams(temperature=100), position)])[0] for position in range(200)}
        assert drawn == {1, 3}


class TestDraws:
    def test_draw_is_the_inverse_of_the_cumulative_distribution(self) -> None:
        # Cumulative 0.125, 0.5, 0.75, 1 in order of token id.
        logits = torch.from_numpy(as_logits(0.125, 0.375, 0.25, 0.25))[None]
        params = SamplingParams(seed=11)
        for position in range(300):
            number = uniform(11, 0, position)
            expected = sum(number >= edge for edge in (0.125, 0.5, 0.75))
            assert sample(logits, [row(params, position)]) == [expected]

    def test_frequencies_are_the_probabilities(self) -> None:
        probabilities = [0.05, 0.4, 0.25, 0.2, 0.1]
        logits = torch.from_numpy(as_logits(*probabilities)).expand(5000, 5)
        counts = Counter(sample(logits, [row(SamplingParams(seed=5), position) for position in range(5000)]))
        chi_square = sum((counts[token] - 5000 * p) ** 2 / (5000 * p) for token, p in enumerate(probabilities))
        assert chi_square < 18.5  # 99.9% quantile for 4 degrees of freedom

    def test_completions_of_one_prompt_differ(self) -> None:
        logits = torch.zeros((1, 1000))
        drawn = {sample(logits, [row(SamplingParams(), index=index)])[0] for index in range(20)}
        assert len(drawn) > 15

    def test_banned_tokens_leave_the_others_their_shares(self) -> None:
        banned = as_logits(0.5, 0.25, 0.25)
        banned[0] = -np.inf
        logits = torch.from_numpy(as_logits(0.5, 0.25, 0.25))[None]
        rows = [row(SamplingParams(seed=2), position, banned=(0,)) for position in range(50)]
        expected = sample(torch.from_numpy(banned)[None].expand(50, 3), [row(r.params, r.position) for r in rows])
        assert sample(logits.expand(50, 3), rows) == expected
        assert set(expected) == {1, 2}

    def test_top_k_one_is_greedy_even_among_equals(self) -> None:
        logits = torch.tensor([[1.0, 2.0, 2.0, 0.0]])
        assert {sample(logits, [row(SamplingParams(top_k=1), p)])[0] for p in range(50)} == {1}

    def test_the_lowest_and_highest_numbers_stay_inside(self, monkeypatch: pytest.MonkeyPatch) -> None:
        logits = torch.from_numpy(as_logits(0.0, 0.3, 0.7, 0.0))[None]
        for number, expected in ((0.0, 1), (1 - 2.0**-53, 2)):
            monkeypatch.setattr("shared.sampling.sampler.uniform", lambda *_, number=number: number)
            assert sample(logits, [row(SamplingParams())]) == [expected]

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize("values", [[0.0, float("nan")], [float("-inf")] * 2, [0.0, float("inf")]])
    def test_broken_logits_are_no_distribution(self, temperature: float, values: list[float]) -> None:
        good, broken = sample(torch.tensor([[0.0, 1.0], values]), [row(GREEDY), row(SamplingParams(temperature))])
        assert good == 1
        assert isinstance(broken, FloatingPointError)
        assert str(broken).startswith("the highest logit is ")


@given(st.lists(st.lists(st.sampled_from([-1.0, 0.0, 2.5]), min_size=4, max_size=4), min_size=1, max_size=5))
def test_greedy_rows_together_equal_greedy_rows_among_others(values: list[list[float]]) -> None:
    logits = torch.tensor([*values, [0.0] * 4])
    *among_others, _ = sample(logits, [*(row(GREEDY) for _ in values), row(SamplingParams())])
    assert sample(logits[:-1], [row(GREEDY) for _ in values]) == among_others
    assert among_others == [entries.index(max(entries)) for entries in values]


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.01, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 5, 40, 5000]),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)


@settings(deadline=None)
@given(params=st.lists(PARAMS, min_size=1, max_size=8), order=st.randoms(use_true_random=False))
def test_a_row_does_not_know_its_batch(params: list[SamplingParams], order: Random) -> None:
    generator = torch.Generator().manual_seed(len(params))
    logits = torch.randn((len(params), 1000), generator=generator) * 4
    rows = [row(p, position, banned=(position,)) for position, p in enumerate(params)]
    alone = [sample(logits[i : i + 1], [rows[i]])[0] for i in range(len(rows))]
    shuffled = list(range(len(rows)))
    order.shuffle(shuffled)
    assert sample(logits[shuffled], [rows[i] for i in shuffled]) == [alone[i] for i in shuffled]
    # A row that is a strided view, as of a larger buffer, is the same row.
    strided = torch.stack([logits, logits], dim=2)[:, :, 0]
    assert sample(strided, rows) == alone


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=0.7, top_k=50),
        SamplingParams(temperature=1.3, top_p=0.9),
        SamplingParams(temperature=3.0, top_p=0.999),
        SamplingParams(temperature=0.9, min_p=0.03),
        SamplingParams(temperature=1.1, top_k=40, top_p=0.8, min_p=0.02),
        SamplingParams(top_k=2, top_p=0.3),
    ],
)
def test_kept_sets_and_probabilities_equal_the_reference(params: SamplingParams, seed: int) -> None:
    logits = torch.randn(4096, generator=torch.Generator().manual_seed(seed)) * 3
    prompt: Any = torch.empty((1, 0), dtype=torch.long)
    scores = TemperatureLogitsWarper(params.temperature)(prompt, logits[None])
    if params.min_p:
        scores = MinPLogitsWarper(params.min_p)(prompt, scores)
    if params.top_k:
        scores = TopKLogitsWarper(params.top_k)(prompt, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(prompt, scores)
    expected = {token: p for token, p in enumerate(scores[0].double().softmax(0).tolist()) if p}
    assert distribution(logits.numpy(), params) == pytest.approx(expected, rel=1e-5)


@settings(deadline=None)
@given(
    weights=st.lists(st.integers(-6, 6), min_size=1, max_size=40),
    top_p=st.floats(0.01, 0.999),
    top_k=st.integers(0, 45),
)
def test_heads_of_the_ranking_equal_a_plain_search(weights: list[int], top_p: float, top_k: int) -> None:
    """Coarse weights make many equals, whose order (lowest id first) decides what is kept."""
    ranking = sorted(range(len(weights)), key=lambda token: (-weights[token], token))[: top_k or None]
    masses = [exp(weights[token]) for token in ranking]
    reached = [sum(masses[:count]) / sum(masses) for count in range(1, len(ranking) + 1)]
    if any(abs(share - top_p) < 1e-9 for share in reached):
        return
    kept = ranking[: 1 + next(place for place, share in enumerate(reached) if share >= top_p)]
    params = SamplingParams(top_p=top_p, top_k=top_k)
    assert sorted(distribution(np.array(weights, dtype=np.float32), params)) == sorted(kept)


@settings(deadline=None)
@given(
    weights=st.lists(st.integers(0, 3), min_size=1, max_size=1100).filter(any),
    number=st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 0.5, 1 - 2.0**-53])),
)
def test_a_draw_by_spans_equals_one_by_a_running_sum(weights: list[int], number: float) -> None:
    """Small integers sum exactly, so both must agree to the last token."""
    plain = np.searchsorted(np.cumsum(weights), number * sum(weights), side="right")
    place = _find_place(np.array(weights, dtype=np.float64), number)
    assert place == plain
    assert weights[place] > 0
