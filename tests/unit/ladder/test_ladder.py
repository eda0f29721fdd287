import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.ladder import Ladder, doubling_rungs, trim

RUNGS = st.sets(st.integers(1, 5000), min_size=1, max_size=12).map(lambda rungs: tuple(sorted(rungs)))


@pytest.mark.parametrize(
    ("num_tokens", "rung", "padding"), [(1, 32, 31), (32, 32, 0), (33, 64, 31), (100, 100, 0), (101, None, 0)]
)
def test_a_step_runs_at_the_smallest_rung_that_holds_it(num_tokens: int, rung: int | None, padding: int) -> None:
    ladder = Ladder((32, 64, 100))
    assert ladder.rung_for(num_tokens) == rung
    assert ladder.padding_of(num_tokens) == padding


@pytest.mark.parametrize(("num_tokens", "rung"), [(31, None), (32, 32), (63, 32), (64, 64), (1000, 100)])
def test_the_rung_that_tokens_fill(num_tokens: int, rung: int | None) -> None:
    assert Ladder((32, 64, 100)).rung_within(num_tokens) == rung


def test_a_ladder_without_rungs_pads_nothing() -> None:
    ladder = Ladder(())
    assert (ladder.top, ladder.rung_for(1), ladder.rung_within(10), ladder.padding_of(7)) == (0, None, None, 0)


@pytest.mark.parametrize(
    ("budget", "kept", "dropped"),
    [
        (2048, (512, 1024, 2048), (2176,)),
        (1500, (512, 1024, 2048), (2176,)),
        (2049, (512, 1024, 2048, 2176), ()),
        (1024, (512, 1024), (2048, 2176)),
        (2, (512,), (1024, 2048, 2176)),
        (4096, (512, 1024, 2048, 2176), ()),
        (None, (512, 1024, 2048, 2176), ()),
    ],
)
def test_trimming_keeps_the_first_rung_that_holds_the_budget(
    budget: int | None, kept: tuple[int, ...], dropped: tuple[int, ...]
) -> None:
    assert trim((512, 1024, 2048, 2176), budget) == Ladder(kept, dropped)


@settings(deadline=None)
@given(RUNGS, st.integers(1, 6000))
def test_trimming_changes_the_rung_of_no_step_within_the_budget(rungs: tuple[int, ...], budget: int) -> None:
    trimmed = trim(rungs, budget)
    assert trimmed.rungs + trimmed.dropped == rungs
    for num_tokens in {1, (budget + 1) // 2, budget}:
        assert trimmed.rung_for(num_tokens) == Ladder(rungs).rung_for(num_tokens)
    assert all(rung < budget for rung in trimmed.rungs[:-1])


@settings(deadline=None)
@given(RUNGS, st.integers(1, 6000))
def test_rungs_enclose_a_step(rungs: tuple[int, ...], num_tokens: int) -> None:
    ladder = Ladder(rungs)
    assert ladder.rung_for(num_tokens) == min((rung for rung in rungs if rung >= num_tokens), default=None)
    assert ladder.rung_within(num_tokens) == max((rung for rung in rungs if rung <= num_tokens), default=None)


@pytest.mark.parametrize(
    ("lowest", "needed", "rungs"),
    [
        (1, 1, (1,)),
        (1, 48, (1, 2, 4, 8, 16, 32, 64)),
        (32, 8, (32,)),
        (32, 128, (32, 64, 128)),
        (32, 129, (32, 64, 128, 256)),
    ],
)
def test_doubling_rungs_end_at_the_first_that_holds_what_is_needed(
    lowest: int, needed: int, rungs: tuple[int, ...]
) -> None:
    assert doubling_rungs(lowest, needed) == rungs


@pytest.mark.parametrize(("rungs", "dropped"), [((2, 1), ()), ((1, 1), ()), ((0, 1), ()), ((1, 8), (4,))])
def test_a_ladder_ascends(rungs: tuple[int, ...], dropped: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        Ladder(rungs, dropped)
