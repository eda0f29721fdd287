"""The suggested ladder has the least padding: by hand, and against every ladder that there is."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.ladder import Ladder
from shared.ladder.steps import StepCounts
from shared.ladder.suggest import LadderCost, cost_of, suggest, suggest_each


def steps_of(*lengths: int, budget: int) -> StepCounts:
    return StepCounts.of_prompts({length: lengths.count(length) for length in lengths}, budget)


def test_the_cost_of_a_ladder() -> None:
    steps = steps_of(1, 3, 3, 4, 9, 10, budget=10)
    assert cost_of((3, 8), steps) == LadderCost(
        rungs=(3, 8),
        num_tokens=30,
        num_padding_tokens=2 + 4,  # 1 → 3, 4 → 8
        num_steps=6,
        num_unpadded_steps=4,  # 3, 3, and the two above the top rung
        num_steps_above=2,
    )
    assert cost_of((3, 8), steps).padding_ratio == 0.2
    assert cost_of((3, 8), steps).unpadded_share == 4 / 6


# lengths 1, 1, 1, 5, 6, 10 at budget 10; tokens in all: 24
BY_HAND = [
    (1, 1, (10,), 3 * 9 + 5 + 4),
    (2, 1, (1, 10), 5 + 4),  # (6, 10) would pad 3 × 5 + 1
    (3, 1, (1, 6, 10), 1),
    (4, 1, (1, 5, 6, 10), 0),
    (5, 1, (1, 5, 6, 10), 0),
    (1, 4, (12,), 3 * 11 + 7 + 6 + 2),
    (2, 4, (4, 12), 3 * 3 + 7 + 6 + 2),
    (3, 4, (4, 8, 12), 3 * 3 + 3 + 2 + 2),
    (9, 4, (4, 8, 12), 3 * 3 + 3 + 2 + 2),
    (2, 16, (16,), 3 * 15 + 11 + 10 + 6),
]


@pytest.mark.parametrize(("max_num_rungs", "alignment", "rungs", "padding"), BY_HAND)
def test_the_best_ladder_by_hand(max_num_rungs: int, alignment: int, rungs: tuple[int, ...], padding: int) -> None:
    best = suggest(steps_of(1, 1, 1, 5, 6, 10, budget=10), max_num_rungs, alignment)
    assert (best.rungs, best.num_padding_tokens) == (rungs, padding)


def test_the_top_rung_holds_the_budget_also_where_no_step_is_so_long() -> None:
    steps = steps_of(3, 3, 3, budget=100)
    assert suggest(steps, 1).rungs == (100,)
    assert suggest(steps, 2) == LadderCost((3, 100), 9, 0, 3, 3, 0)
    assert suggest(steps, 1, alignment=64).rungs == (128,)


def test_each_number_of_rungs_up_to_the_most() -> None:
    ladders = list(suggest_each(steps_of(1, 1, 1, 5, 6, 10, budget=10), 9))
    assert [(ladder.rungs, ladder.num_padding_tokens) for ladder in ladders] == [
        ((10,), 36),
        ((1, 10), 9),
        ((1, 6, 10), 1),
        ((1, 5, 6, 10), 0),
    ]


def test_more_rungs_than_sizes_are_no_work() -> None:
    steps = StepCounts.of_prompts(dict.fromkeys(range(1, 20_001), 1), budget=20_000)
    assert suggest(steps, 10**9).rungs == tuple(range(1, 20_001))
    assert suggest(steps, 10**9, alignment=1000).rungs == tuple(range(1000, 20_001, 1000))


def test_frequent_lengths_count() -> None:
    """Twelve steps of 5 tokens and one of 9: a rung at 5 pads nothing of the many."""
    steps = StepCounts.of_prompts({5: 12, 9: 1, 16: 1}, budget=16)
    assert suggest(steps, 2).rungs == (5, 16)
    rare = StepCounts.of_prompts({5: 1, 9: 12, 16: 1}, budget=16)
    assert suggest(rare, 2).rungs == (9, 16)


PROMPTS = st.dictionaries(st.integers(1, 40), st.integers(1, 50), min_size=1, max_size=12)


@settings(deadline=None)
@given(PROMPTS, st.integers(1, 16), st.integers(1, 5), st.integers(1, 6))
def test_no_other_ladder_pads_less(prompts: dict[int, int], budget: int, max_num_rungs: int, alignment: int) -> None:
    steps = StepCounts.of_prompts(prompts, budget)
    top = -(-budget // alignment) * alignment
    lower = range(alignment, top, alignment)
    every_ladder = [(*rungs, top) for num_lower in range(max_num_rungs) for rungs in combinations(lower, num_lower)]
    least = min(_padding(rungs, steps) for rungs in every_ladder)
    best = suggest(steps, max_num_rungs, alignment)
    *_, last = suggest_each(steps, max_num_rungs, alignment)
    assert last == best
    assert best.rungs in every_ladder
    assert best.num_padding_tokens == _padding(best.rungs, steps) == least


@settings(deadline=None)
@given(
    st.dictionaries(st.integers(1, 5000), st.integers(1, 10**6), min_size=1, max_size=60),
    st.integers(1, 3000),
    st.integers(1, 12),
    st.integers(1, 64),
)
def test_the_plain_recurrence_gives_the_same(
    prompts: dict[int, int], budget: int, max_num_rungs: int, alignment: int
) -> None:
    steps = StepCounts.of_prompts(prompts, budget)
    best = suggest(steps, max_num_rungs, alignment)
    assert best.num_tokens + best.num_padding_tokens == _least_tokens(steps, max_num_rungs, alignment)
    assert len(best.rungs) <= max_num_rungs
    assert all(rung % alignment == 0 for rung in best.rungs)


def _padding(rungs: tuple[int, ...], steps: StepCounts) -> int:
    ladder = Ladder(rungs)
    return sum(ladder.padding_of(length) * count for length, count in steps.counts.items())


def _least_tokens(steps: StepCounts, max_num_rungs: int, alignment: int) -> int:
    """The recurrence of `shared.ladder.suggest`, written down as it stands there."""
    ends = {-(-length // alignment) * alignment for length in (*steps.counts, steps.budget)}
    sizes = [0, *sorted(ends)]
    held = [sum(count for length, count in steps.counts.items() if length <= size) for size in sizes]
    best = [0.0] + [float("inf")] * (len(sizes) - 1)
    for _ in range(max_num_rungs):
        best = [
            min([best[j], *(best[i] + sizes[j] * (held[j] - held[i]) for i in range(j))]) for j in range(len(sizes))
        ]
    return int(best[-1])
