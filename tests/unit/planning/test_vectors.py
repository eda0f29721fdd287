"""Steps computed by hand."""

import pytest

from shared.ladder import Ladder
from shared.planning import PlanRow, RowSlice, StepLimits, StepPlan, plan_step
from tests.unit.planning.simulate import Arrival, simulate

POWERS_OF_TWO = Ladder((32, 64, 128, 256, 512, 1024, 2048, 4096))
NO_RUNGS = Ladder(())


def limits(
    budget: int | None,
    *,
    threshold: int = 0,
    max_partial_prefills: int = 0,
    max_num_rows: int = 64,
    ladder: Ladder = NO_RUNGS,
) -> StepLimits:
    return StepLimits(budget, threshold, max_partial_prefills, max_num_rows, ladder)


def cut(num_remaining: int, priority: int = 0, *, is_partial: bool = False) -> PlanRow:
    return PlanRow(num_remaining, can_cut=True, priority=priority, is_partial=is_partial)


def whole(num_remaining: int, priority: int = 0) -> PlanRow:
    return PlanRow(num_remaining, can_cut=False, priority=priority)


DECODE = whole(1)


def tokens(rows: list[PlanRow], within: StepLimits) -> list[int]:
    """Tokens for each row; 0: it waits."""
    grants = [0] * len(rows)
    for row in plan_step(rows, within).slices:
        grants[row.row_index] = row.num_tokens
    return grants


@pytest.mark.parametrize("ladder", [NO_RUNGS, POWERS_OF_TWO])
@pytest.mark.parametrize(
    ("rows", "budget", "expected"),
    [
        pytest.param([DECODE, cut(100), DECODE], 10, [1, 8, 1], id="decode rows go whole"),
        pytest.param([cut(50), cut(50)], 10, [5, 5], id="equal shares"),
        pytest.param([whole(100)], 10, [100], id="the oldest row runs though it exceeds the budget"),
        pytest.param([DECODE, whole(100)], 10, [1, 0], id="a row that cannot be cut waits"),
        pytest.param([cut(40), cut(50), cut(60)], 10, [4, 3, 3], id="left-over tokens go to the oldest"),
        pytest.param([cut(40), cut(50), cut(60)], 11, [4, 4, 3], id="one each"),
        pytest.param([cut(3), cut(4)], 10, [3, 4], id="all fits"),
        pytest.param([cut(3), cut(7)], 10, [3, 7], id="all fits exactly"),
        pytest.param([cut(2), cut(50), cut(3), cut(50)], 20, [2, 8, 3, 7], id="what short rows leave is split"),
        pytest.param([cut(4), cut(5), cut(50)], 12, [4, 4, 4], id="a row of just its share goes whole"),
        pytest.param([cut(9), cut(9), cut(9), cut(9)], 2, [1, 1, 0, 0], id="fewer tokens than rows"),
        pytest.param([whole(100), DECODE, cut(5)], 10, [100, 0, 0], id="who exceeds the budget runs alone"),
        pytest.param([whole(8), cut(100)], 10, [8, 2], id="the oldest goes whole though it exceeds its share"),
        pytest.param([cut(100), whole(8)], 10, [10, 0], id="a younger one waits"),
        pytest.param([cut(100), whole(5)], 10, [5, 5], id="unless its share holds it"),
        pytest.param([whole(6), whole(6), whole(6)], 12, [6, 6, 0], id="left-over tokens that hold a row"),
        pytest.param([whole(8), whole(5), whole(3)], 12, [8, 0, 3], id="left-over tokens that hold a later row"),
        pytest.param([DECODE, DECODE, DECODE, cut(9)], 2, [1, 0, 0, 1], id="budget below the decode rows"),
    ],
)
def test_shares(rows: list[PlanRow], budget: int, expected: list[int], ladder: Ladder) -> None:
    assert tokens(rows, limits(budget, ladder=ladder)) == expected


@pytest.mark.parametrize(
    ("rows", "threshold", "expected"),
    [
        pytest.param([cut(100), cut(100)], 30, [30, 30], id="each row"),
        pytest.param([cut(20), cut(100)], 30, [20, 30], id="only long rows"),
        pytest.param([whole(50), cut(100)], 30, [50, 30], id="no row that cannot be cut"),
        pytest.param([cut(100)] * 5, 30, [20] * 5, id="shares may be less"),
        pytest.param([cut(100), cut(100)], 1000, [50, 50], id="a threshold above the budget"),
    ],
)
def test_the_threshold_caps_each_row(rows: list[PlanRow], threshold: int, expected: list[int]) -> None:
    assert tokens(rows, limits(100, threshold=threshold)) == expected


@pytest.mark.parametrize(
    ("rows", "max_partial_prefills", "expected"),
    [
        pytest.param([cut(500), cut(500)], 1, [100, 0], id="one long row"),
        pytest.param([cut(500), cut(500), cut(500)], 2, [50, 50, 0], id="two long rows"),
        pytest.param([cut(500), cut(30), cut(500), cut(20)], 1, [50, 30, 0, 20], id="short rows go beside it"),
        pytest.param([cut(60), cut(60), cut(60)], 1, [60, 40, 0], id="whole while they can, then one is cut"),
        pytest.param([cut(60), cut(60)], 2, [50, 50], id="a cap that does not bind changes nothing"),
        pytest.param([cut(500), cut(60), cut(60)], 1, [100, 0, 0], id="a row above its share, not to be cut, waits"),
        pytest.param([cut(10, is_partial=True), cut(500)], 1, [10, 0], id="a last chunk is a chunk"),
        pytest.param([cut(10, is_partial=True), cut(500)], 2, [10, 90], id="a last chunk and a first"),
        pytest.param([cut(10, is_partial=True), cut(20)], 1, [10, 20], id="a row that goes whole is none"),
        pytest.param([DECODE, cut(500), DECODE], 1, [1, 98, 1], id="decode rows are none"),
        pytest.param(
            [PlanRow(1, can_cut=False, is_partial=True)] * 3 + [cut(500)], 1, [1, 1, 1, 97], id="whatever they were"
        ),
    ],
)
def test_chunks_are_capped(rows: list[PlanRow], max_partial_prefills: int, expected: list[int]) -> None:
    assert tokens(rows, limits(100, max_partial_prefills=max_partial_prefills)) == expected


@pytest.mark.parametrize(
    ("rows", "max_num_rows", "expected"),
    [
        pytest.param([cut(9), cut(9), cut(9)], 2, [9, 9, 0], id="the oldest"),
        pytest.param([cut(900), cut(900), cut(900)], 2, [50, 50, 0], id="who share all"),
        pytest.param(
            [cut(9), whole(200), cut(9), cut(9)], 2, [9, 0, 9, 0], id="a place that a row cannot use is given on"
        ),
        pytest.param([cut(9), cut(900), cut(9)], 1, [9, 0, 0], id="one row"),
    ],
)
def test_rows_are_capped(rows: list[PlanRow], max_num_rows: int, expected: list[int]) -> None:
    assert tokens(rows, limits(100, max_num_rows=max_num_rows)) == expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([cut(50), cut(50, priority=1)], [0, 10], id="higher goes first"),
        pytest.param([cut(50, priority=-1), cut(4)], [6, 4], id="lower shares what is left"),
        pytest.param([cut(50), cut(6, 1), cut(50), cut(6, 1)], [0, 5, 0, 5], id="equals share"),
        pytest.param([cut(9), whole(100, priority=1)], [0, 100], id="the oldest of the highest always runs"),
        pytest.param([DECODE, DECODE, cut(50, priority=9)], [1, 1, 8], id="a prompt does not stall decode rows"),
    ],
)
def test_priorities(rows: list[PlanRow], expected: list[int]) -> None:
    assert tokens(rows, limits(10)) == expected


def test_without_a_budget_nothing_is_cut() -> None:
    rows = [cut(5000), DECODE, cut(70), cut(6)]
    unlimited = limits(None, threshold=16, max_partial_prefills=1, max_num_rows=3, ladder=POWERS_OF_TWO)
    assert tokens(rows, unlimited) == [5000, 1, 70, 0]


def test_nothing_to_plan() -> None:
    assert plan_step([], limits(10)) == StepPlan((), ())


@pytest.mark.parametrize(
    ("rows", "budget", "order"),
    [
        pytest.param([cut(50), cut(2), cut(50)], 10, (1, 0, 2), id="cut rows go behind whole ones"),
        pytest.param([DECODE, whole(100), DECODE], 10, (1, 0, 2), id="a row that waited goes first"),
        pytest.param([cut(9), cut(9), cut(9), DECODE], 2, (2, 3, 0, 1), id="waited, then cut"),
    ],
)
def test_rotation(rows: list[PlanRow], budget: int, order: tuple[int, ...]) -> None:
    assert plan_step(rows, limits(budget)).next_order == order


def test_slices_are_in_the_order_of_the_rows() -> None:
    plan = plan_step([cut(50), cut(4, priority=3), DECODE], limits(10))
    assert plan.slices == (RowSlice(0, 5), RowSlice(1, 4), RowSlice(2, 1))
    assert plan.num_tokens == 10


def run(lengths: list[int], within: StepLimits) -> list[str]:
    steps = simulate([Arrival(length) for length in lengths], within)
    return [" ".join(map(str, step.chunks)) for step in steps]


@pytest.mark.parametrize("ladder", [NO_RUNGS, POWERS_OF_TWO])
def test_one_long_prompt_at_a_time_in_turns(ladder: Ladder) -> None:
    assert run([5, 7], limits(3, max_partial_prefills=1, ladder=ladder)) == [
        "r0[0:3]",
        "r1[0:3]",
        "r0[3:5]",
        "r1[3:6]",
        "r1[6:7]",
    ]


def test_whole_input_within_the_budget_is_one_step() -> None:
    assert run([500, 700, 848], limits(2048, ladder=POWERS_OF_TWO)) == ["r0[0:500] r1[0:700] r2[0:848]"]
    assert run([500, 700, 100], limits(2048, ladder=POWERS_OF_TWO)) == ["r0[0:500] r1[0:700] r2[0:100]"]


def test_more_rows_than_budget_take_turns() -> None:
    assert run([3, 3, 3, 3], limits(2, max_num_rows=4)) == [
        "r0[0:1] r1[0:1]",
        "r2[0:1] r3[0:1]",
        "r0[1:2] r1[1:2]",
        "r2[1:2] r3[1:2]",
        "r0[2:3] r1[2:3]",
        "r2[2:3] r3[2:3]",
    ]


@pytest.mark.parametrize("budget", [4096, 256])
def test_sixteen_long_prompts_one_at_a_time(budget: int) -> None:
    """3,338 tokens are 13 chunks of 256 and one of 10; 16 × 14 = 224, whether the budget or the threshold bounds."""
    within = limits(budget, threshold=256, max_partial_prefills=1, ladder=POWERS_OF_TWO)
    steps = simulate([Arrival(3338)] * 16, within)
    assert len(steps) == 224
    assert all(len(step.chunks) == 1 for step in steps)
    assert [step.chunks[0].request for step in steps] == list(range(16)) * 14
    assert sorted(step.num_tokens for step in steps) == [10] * 16 + [256] * 208


def test_sixteen_long_prompts_that_share_steps() -> None:
    """16 × 3,338 = 53,408 tokens = 13 × 4,096 + 160."""
    steps = simulate([Arrival(3338)] * 16, limits(4096, ladder=POWERS_OF_TWO))
    assert [step.num_tokens for step in steps] == [4096] * 13 + [160]


@pytest.mark.parametrize(
    ("rows", "within", "expected"),
    [
        pytest.param([cut(900)] * 3, limits(1500, ladder=POWERS_OF_TWO), [342, 341, 341], id="shares of a rung"),
        pytest.param([cut(30), cut(2000)], limits(1500, ladder=POWERS_OF_TWO), [30, 994], id="short rows stay whole"),
        pytest.param([DECODE, cut(2000)], limits(100, ladder=POWERS_OF_TWO), [1, 63], id="decode rows stay"),
        pytest.param([DECODE] * 50 + [cut(90)], limits(60, ladder=POWERS_OF_TWO), [1] * 50 + [10], id="or it pads"),
        pytest.param([cut(900)] * 3, limits(1014, ladder=POWERS_OF_TWO), [338, 338, 338], id="1% may be padding"),
        pytest.param([cut(900)] * 3, limits(1013, ladder=POWERS_OF_TWO), [171, 171, 170], id="no more than that"),
        pytest.param([cut(900)] * 3, limits(20, ladder=POWERS_OF_TWO), [7, 7, 6], id="below the lowest rung"),
        pytest.param([cut(900)] * 3, limits(1500, ladder=Ladder((32, 64))), [22, 21, 21], id="not above the top rung"),
        pytest.param([cut(400)] * 3, limits(1500, ladder=POWERS_OF_TWO), [400, 400, 400], id="no backlog, no cut"),
        pytest.param([cut(80), cut(20)], limits(100, ladder=Ladder((64, 128))), [80, 20], id="it fits exactly"),
        pytest.param([whole(80), whole(90)], limits(100, ladder=POWERS_OF_TWO), [80, 0], id="nothing can be cut"),
        pytest.param(
            [cut(20), cut(20), cut(900)], limits(2048, threshold=100, ladder=POWERS_OF_TWO), [20, 20, 88],
            id="below the budget, cut rows give",
        ),
        pytest.param(
            [cut(900), cut(20), cut(20)], limits(2048, threshold=100, ladder=POWERS_OF_TWO), [88, 20, 20],
            id="the oldest too",
        ),
        pytest.param(
            [cut(90), cut(90), cut(900)], limits(2048, threshold=100, ladder=POWERS_OF_TWO), [90, 90, 76],
            id="as much as is over",
        ),
        pytest.param(
            [cut(70), cut(70), cut(101)], limits(2048, threshold=100, ladder=Ladder((128, 512))), [70, 58, 0],
            id="then the youngest",
        ),
        pytest.param(
            [cut(101), cut(70), cut(70)], limits(2048, threshold=100, ladder=Ladder((128, 512))), [100, 28, 0],
            id="never the oldest whole",
        ),
        pytest.param([cut(20)] * 5, limits(99, max_num_rows=2, ladder=POWERS_OF_TWO), [20, 12, 0, 0, 0], id="few rows"),
        pytest.param(
            [cut(100, is_partial=True), cut(900)], limits(256, max_partial_prefills=1, ladder=POWERS_OF_TWO), [100, 0],
            id="a lonely last chunk stays whole",
        ),
        pytest.param(
            [cut(900), cut(900)], limits(2048, threshold=200, max_partial_prefills=1, ladder=POWERS_OF_TWO), [128, 0],
            id="a lonely chunk does not",
        ),
        pytest.param(
            [cut(900), cut(30)], limits(1500, threshold=100, max_partial_prefills=1, ladder=POWERS_OF_TWO), [98, 30],
            id="no second chunk is made of a whole row",
        ),
        pytest.param(
            [cut(101), cut(70), cut(70)],
            limits(2048, threshold=100, max_partial_prefills=1, ladder=Ladder((128, 512))), [100, 70, 70],
            id="or it pads, too",
        ),
    ],
)  # fmt: skip
def test_steps_land_on_rungs_under_backlog(rows: list[PlanRow], within: StepLimits, expected: list[int]) -> None:
    assert tokens(rows, within) == expected
