from shared.engine.stats import StepTotals, WalkStats


def test_totals_by_rung_add_up() -> None:
    stats = (
        WalkStats.of_rungs([8, 16])
        .with_step(5, 8, 0.5)
        .with_step(8, 8, 0.25)
        .with_step(9, 16, 1)
        .with_step(20, None, 2)
    )

    assert stats.by_rung == {8: StepTotals(2, 13, 3, 0.75), 16: StepTotals(1, 9, 7, 1)}
    assert stats.over_top == StepTotals(1, 20, 0, 2)
    assert stats.total == StepTotals(4, 42, 10, 3.75)


def test_earlier_totals_stay_as_they_are() -> None:
    before = WalkStats.of_rungs([8])

    before.with_step(5, 8, 0.5)

    assert before == WalkStats.of_rungs([8])
    assert before.total == StepTotals()
