"""The sampler: hand-computed distributions, the reference's kept sets, and independence of the batch."""

from collections import Counter
from math import exp, log
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from shared.sampling.history import TokenHistory
from shared.sampling.params import SamplingParams
from shared.sampling.random import uniform
from shared.sampling.sampler import SampleRow, _adjust, _find_place, find_candidates, sample

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


# Prompt [0, 2], generated [1, 1]: the logits of a row, and what its adjustments make of them.
#   token 0: 2 - 2.5 = -0.5, not positive, times 2 = -1           (were repetition first: 2 / 2 - 2.5 = -1.5)
#   token 1: 1 + 1 = 2, halved = 1, twice 0.5 off = 0, 0.25 off = -0.25
#   token 2: -1 - 0.5 = -1.5, times 2 = -3
#   token 3 is banned, and token 4 is not allowed, whatever its bias
MIXED_LOGITS = np.array([2.0, 1.0, -1.0, 0.5, 3.0], dtype=np.float32)
MIXED: dict[str, Any] = {
    "logit_bias": ((0, -2.5), (1, 1.0), (2, -0.5), (4, 100.0)),
    "repetition_penalty": 2.0,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.25,
}


def mixed_row(seed: int = 0, position: int = 0, index: int = 0, **more: Any) -> SampleRow:
    return SampleRow(
        SamplingParams(seed=seed, **MIXED, **more),
        index=index,
        position=position,
        banned_token_ids=(3,),
        allowed=np.array([True, True, True, True, False]),
        history=TokenHistory([0, 2], [1, 1]),
    )


class TestAdjustments:
    def weights(self, **more: Any) -> list[float]:
        kept = find_candidates(_adjust(MIXED_LOGITS, mixed_row(**more)), SamplingParams(**more))
        weights = dict(zip(kept.token_ids.tolist(), kept.weights.tolist(), strict=True))
        return [weights.get(token, 0.0) for token in range(5)]

    def test_all_together_in_order(self) -> None:
        assert _adjust(MIXED_LOGITS, mixed_row()).tolist() == [-1, -0.25, -3, -np.inf, -np.inf]
        # e^-0.75, 1, e^-2.75
        assert self.weights() == pytest.approx([0.47236655, 1, 0.06392786, 0, 0], abs=1e-6)

    def test_temperature_comes_after_them(self) -> None:
        # e^-1.5, 1, e^-5.5
        assert self.weights(temperature=0.5) == pytest.approx([0.22313016, 1, 0.00408677, 0, 0], abs=1e-6)

    @pytest.mark.parametrize("head", [{"min_p": 0.1}, {"top_k": 2}, {"top_p": 0.9}])
    def test_heads_are_of_what_they_leave(self, head: dict[str, Any]) -> None:
        # Of the whole 1.53629441, token 1 is 65%, and tokens 0 and 1 are 96%.
        assert self.weights(**head) == pytest.approx([0.47236655, 1, 0, 0, 0], abs=1e-6)

    def test_min_p_comes_after_temperature(self) -> None:
        # 0.06 of the highest at temperature 1, and 0.004 at 0.5.
        assert self.weights(min_p=0.05)[2] > 0
        assert self.weights(min_p=0.05, temperature=0.5) == pytest.approx([0.22313016, 1, 0, 0, 0], abs=1e-6)

    def test_top_k_of_more_than_is_allowed_keeps_what_is(self) -> None:
        assert self.weights(top_k=4) == self.weights()

    def test_greedy_rows_see_them_and_the_logits_stay(self) -> None:
        logits = torch.from_numpy(MIXED_LOGITS)[None]
        assert sample(logits, [row(GREEDY)]) == [4]
        assert sample(logits, [mixed_row(temperature=0)]) == [1]
        assert logits[0].tolist() == [2.0, 1.0, -1.0, 0.5, 3.0]

    @pytest.mark.parametrize(
        ("params", "history", "expected"),
        [
            (SamplingParams(temperature=0), None, 0),
            (SamplingParams(temperature=0, logit_bias=((2, 1.5),)), None, 2),
            (SamplingParams(temperature=0, logit_bias=((0, -100.0),)), None, 1),
            (SamplingParams(temperature=0, repetition_penalty=1.5), TokenHistory([0]), 1),
            (SamplingParams(temperature=0, presence_penalty=0.6), TokenHistory([0, 1], [0]), 1),
            (SamplingParams(temperature=0, frequency_penalty=0.3), TokenHistory([], [0, 0]), 1),
            (SamplingParams(temperature=0, frequency_penalty=0.3), TokenHistory([], [0]), 0),
            (SamplingParams(temperature=0, frequency_penalty=-0.6), TokenHistory([], [1]), 1),
        ],
    )
    def test_each_field_changes_the_greedy_choice(
        self, params: SamplingParams, history: TokenHistory | None, expected: int
    ) -> None:
        logits = torch.tensor([[2.0, 1.5, 1.0]])
        assert sample(logits, [SampleRow(params, 0, 0, history=history)]) == [expected]

    def test_equals_after_them_go_to_the_lowest_id(self) -> None:
        params = SamplingParams(temperature=0, logit_bias=((0, 1.0), (2, 1.0)))
        assert sample(torch.tensor([[0.0, 1.0, 0.0]]), [row(params)]) == [0]
        assert sample(torch.tensor([[0.0, 1.0, 0.0]]), [row(params, banned=(0,))]) == [1]

    @pytest.mark.parametrize("temperature", [0.0, 1.0, 100.0])
    @pytest.mark.parametrize("banned", [(), (2,), (0, 1, 2, 3)])
    def test_a_mask_of_one_token_leaves_that_one(self, temperature: float, banned: tuple[int, ...]) -> None:
        params = SamplingParams(temperature=temperature, top_p=0.5, logit_bias=((0, 100.0), (2, -100.0)))
        allowed = np.array([False, False, True, False])
        rows = [SampleRow(params, 0, position, banned, allowed) for position in range(20)]
        assert sample(torch.tensor([[9.0, 0.0, -9.0, 1.0]]).expand(20, 4), rows) == [2] * 20

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_model_that_makes_all_but_one_impossible_is_obeyed(self, temperature: float) -> None:
        params = SamplingParams(temperature=temperature, logit_bias=((1, -100.0), (2, 100.0)), repetition_penalty=9)
        adjusted = SampleRow(params, 0, 0, history=TokenHistory([0, 1, 2]))
        assert sample(torch.tensor([[-np.inf, -50.0, -np.inf]]), [adjusted]) == [1]

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_row_is_broken_whatever_is_allowed_in_it(self, temperature: float) -> None:
        logits = torch.tensor([[0.0, np.nan], [0.0, np.inf], [0.0, 0.0]])
        only_first = SampleRow(SamplingParams(temperature=temperature), 0, 0, allowed=np.array([True, False]))
        *broken, good = sample(logits, [only_first] * 3)
        assert [str(error) for error in broken] == ["the highest logit is nan", "the highest logit is inf"]
        assert good == 0

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize(("allowed", "values"), [([False] * 2, [0.0, 0.0]), ([True, False], [-np.inf, 0.0])])
    def test_a_mask_that_leaves_nothing_breaks_its_row_alone(
        self, temperature: float, allowed: list[bool], values: list[float]
    ) -> None:
        masked = SampleRow(SamplingParams(temperature=temperature), 0, 0, allowed=np.array(allowed))
        good, broken = sample(torch.tensor([[0.0, 1.0], values]), [row(GREEDY), masked])
        assert good == 1
        assert str(broken) == "the highest logit is -inf"

    def test_penalties_without_a_history_are_a_mistake(self) -> None:
        with pytest.raises(AssertionError, match="history"):
            sample(torch.zeros((1, 3)), [row(SamplingParams(presence_penalty=1))])

    def test_completions_of_one_prompt_draw_apart_and_each_the_same_again(self) -> None:
        logits = torch.from_numpy(MIXED_LOGITS).expand(40, 5)
        drawn = [sample(logits, [mixed_row(4, position, index) for position in range(40)]) for index in (0, 1, 2, 0)]
        assert drawn[0] == drawn[3]
        assert len({tuple(map(str, one)) for one in drawn}) == 3
        assert {token for one in drawn for token in one} == {0, 1, 2}


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
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, -0.5]),
    presence_penalty=st.sampled_from([0.0, 2.0]),
    logit_bias=st.sampled_from([(), ((3, 9.0), (999, -9.0))]),
    seed=st.integers(0, 2**64 - 1),
)


def adjusted_row(params: SamplingParams, position: int) -> SampleRow:
    """A row that has seen ten tokens; two of three such rows also ban one, and one of them allows only half."""
    history = TokenHistory(range(5), range(position, position + 5))
    if position % 3 == 0:
        return SampleRow(params, 0, position, history=history)
    allowed = np.arange(1000) % 2 == 0 if position % 3 == 1 else None
    return SampleRow(params, 0, position, (position,), allowed, history)


@settings(deadline=None)
@given(params=st.lists(PARAMS, min_size=1, max_size=8), order=st.randoms(use_true_random=False))
def test_a_row_does_not_know_its_batch(params: list[SamplingParams], order: Random) -> None:
    generator = torch.Generator().manual_seed(len(params))
    logits = torch.randn((len(params), 1000), generator=generator) * 4
    rows = [adjusted_row(p, position) for position, p in enumerate(params)]
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
    seed=st.integers(0, 2**32 - 1),
    token_ids=st.lists(st.integers(0, 255), min_size=2, max_size=100),
    penalty=st.floats(0.5, 3),
    temperature=st.floats(0.3, 3),
    min_p=st.floats(0.001, 0.2),
    top_k=st.integers(1, 60),
    top_p=st.floats(0.1, 0.99),
)
def test_a_penalized_distribution_equals_the_reference(
    seed: int, token_ids: list[int], penalty: float, temperature: float, min_p: float, top_k: int, top_p: float
) -> None:
    logits = torch.randn(256, generator=torch.Generator().manual_seed(seed)) * 3
    seen: Any = torch.tensor([token_ids])
    scores = RepetitionPenaltyLogitsProcessor(penalty)(seen, logits.clone()[None])
    scores = TemperatureLogitsWarper(temperature)(seen, scores)
    shares = scores[0].double().softmax(0)
    assume(not torch.isclose(shares / shares.max(), torch.tensor(min_p).double(), rtol=1e-4).any())
    scores = TopKLogitsWarper(top_k)(seen, MinPLogitsWarper(min_p)(seen, scores))
    reached = scores[0].double().softmax(0).sort(descending=True).values.cumsum(0)
    assume(not torch.isclose(reached, torch.tensor(top_p).double(), rtol=1e-4).any())
    scores = TopPLogitsWarper(top_p)(seen, scores)
    expected = {token: p for token, p in enumerate(scores[0].double().softmax(0).tolist()) if p}
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=penalty)
    history = TokenHistory(token_ids[::2], token_ids[1::2])
    penalized = _adjust(logits.numpy(), SampleRow(params, 0, 0, history=history))
    assert distribution(penalized, params) == pytest.approx(expected, rel=1e-4)


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
