"""What changes logits before a token is chosen: numbers written out by hand."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from shared.sampling.history import TokenHistory
from shared.sampling.logits import add_bias, penalize, restrict
from shared.sampling.params import SamplingParams

INF = float("inf")


def floats(*values: float) -> npt.NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def mask(*allowed: int, size: int = 4) -> npt.NDArray[np.bool_]:
    return np.isin(np.arange(size), allowed)


class TestRestrict:
    def test_a_mask_leaves_what_it_allows(self) -> None:
        logits, allowed = floats(1, 2, 3, 4), mask(1, 2)
        restrict(logits, allowed, ())
        assert logits.tolist() == [-INF, 2, 3, -INF]
        assert allowed.tolist() == [False, True, True, False]

    def test_a_ban_needs_no_mask(self) -> None:
        logits = floats(1, 2, 3, 4)
        restrict(logits, None, (3, 0))
        assert logits.tolist() == [-INF, 2, 3, -INF]

    def test_a_ban_takes_from_the_mask(self) -> None:
        logits, allowed = floats(1, 2, 3, 4), mask(1, 2)
        restrict(logits, allowed, (0, 2))
        assert logits.tolist() == [-INF, 2, -INF, -INF]
        assert allowed.tolist() == [False, True, True, False]

    @pytest.mark.parametrize("banned", [(2,), (1, 2), (0, 1, 2, 3)])
    def test_a_ban_of_all_that_is_allowed_is_lifted(self, banned: tuple[int, ...]) -> None:
        logits = floats(1, 2, 3, 4)
        restrict(logits, mask(2), banned)
        assert logits.tolist() == [-INF, -INF, 3, -INF]

    def test_a_lifted_ban_allows_no_more_than_the_mask(self) -> None:
        logits = floats(1, 2, 3, 4)
        restrict(logits, mask(0, 2), (2, 0, 1))
        assert logits.tolist() == [1, -INF, 3, -INF]

    def test_without_a_mask_no_ban_is_lifted(self) -> None:
        logits = floats(1, 2)
        restrict(logits, None, (0, 1))
        assert logits.tolist() == [-INF, -INF]

    def test_a_mask_of_another_vocabulary_is_a_mistake(self) -> None:
        with pytest.raises(AssertionError):
            restrict(floats(1, 2, 3, 4), mask(1, size=5), ())


class TestBias:
    def test_is_added(self) -> None:
        logits = floats(1, -2, 3, -INF)
        add_bias(logits, ((0, 100.0), (1, -100.0), (3, 100.0)))
        assert logits.tolist() == [101, -102, 3, -INF]

    def test_of_an_id_outside_the_vocabulary_is_a_mistake(self) -> None:
        with pytest.raises(AssertionError):
            add_bias(floats(1, 2), ((0, 1.0), (2, 1.0)))


class TestPenalties:
    """The prompt is [0, 1], and [1, 2, 2] was generated; 3 and 4 were never seen."""

    @pytest.mark.parametrize(
        ("params", "expected"),
        [
            (SamplingParams(repetition_penalty=2), [1, -8, 0, 2, -4]),
            (SamplingParams(repetition_penalty=0.5), [4, -2, 0, 2, -4]),
            (SamplingParams(frequency_penalty=1.5), [2, -5.5, -3, 2, -4]),
            (SamplingParams(frequency_penalty=-2), [2, -2, 4, 2, -4]),
            (SamplingParams(presence_penalty=1.5), [2, -5.5, -1.5, 2, -4]),
            (SamplingParams(presence_penalty=-0.5), [2, -3.5, 0.5, 2, -4]),
            (SamplingParams(frequency_penalty=0.5, presence_penalty=-2), [2, -2.5, 1, 2, -4]),
            # Repetition first: were it last, token 2 would be -1.25 × 2 = -2.5, and token 1 (-4 - 0.75) × 2 = -9.5.
            (
                SamplingParams(repetition_penalty=2, frequency_penalty=0.5, presence_penalty=0.25),
                [1, -8.75, -1.25, 2, -4],
            ),
        ],
    )
    def test_by_hand(self, params: SamplingParams, expected: list[float]) -> None:
        logits = floats(2, -4, 0, 2, -4)
        penalize(logits, TokenHistory([0, 1], [1, 2, 2]), params)
        assert logits.tolist() == expected

    def test_frequency_counts_what_is_pushed(self) -> None:
        history = TokenHistory([0])
        for count in (1, 2, 3):
            history.push(1)
            logits = floats(0, 0)
            penalize(logits, history, SamplingParams(frequency_penalty=0.5))
            assert logits.tolist() == [0, -0.5 * count]

    def test_nothing_seen_changes_nothing(self) -> None:
        logits = floats(2, -4)
        penalize(logits, TokenHistory([]), SamplingParams(repetition_penalty=3, presence_penalty=2))
        assert logits.tolist() == [2, -4]

    @pytest.mark.parametrize("penalty", [5e-324, 1e-45, 1e-38, 100.0])
    def test_the_smallest_and_largest_penalty_make_no_nan(self, penalty: float) -> None:
        logits = floats(20, -20, 0, -INF)
        penalize(logits, TokenHistory([0, 1, 2, 3]), SamplingParams(repetition_penalty=penalty))
        assert np.isfinite(logits[:3]).all()
        assert logits.argmax() == 0
        assert logits[3] == -INF


@given(
    seed=st.integers(0, 2**32 - 1),
    penalty=st.floats(0.05, 100),
    prompt=st.lists(st.integers(0, 63), max_size=40),
    generated=st.lists(st.integers(0, 63), min_size=1, max_size=40),
    frequency=st.floats(-2, 2),
    presence=st.floats(-2, 2),
)
def test_penalties_equal_the_reference(
    seed: int, penalty: float, prompt: list[int], generated: list[int], frequency: float, presence: float
) -> None:
    """Repetition as transformers has it; frequency and presence, which it has not, counted token by token."""
    logits = (np.random.default_rng(seed).standard_normal(64) * 4).astype(np.float32)
    token_ids = torch.tensor([[*prompt, *generated]])
    scores = RepetitionPenaltyLogitsProcessor(penalty)(token_ids, torch.from_numpy(logits.copy())[None])
    expected = scores[0].double().numpy()
    for token_id in range(64):
        count = generated.count(token_id)
        expected[token_id] -= frequency * count + presence * min(count, 1)
    params = SamplingParams(repetition_penalty=penalty, frequency_penalty=frequency, presence_penalty=presence)
    penalize(logits, TokenHistory(prompt, generated), params)
    assert logits == pytest.approx(expected, rel=1e-5, abs=1e-4)
