"""What holds of every step and every run, whatever arrives."""

from collections import defaultdict
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.ladder import Ladder
from shared.planning import PlanRow, StepLimits, plan_step
from tests.unit.planning.simulate import Arrival, Chunk, Step, simulate

UNTIMED = settings(deadline=None)
LADDERS = st.sets(st.sampled_from((1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 100)), max_size=6).map(
    lambda rungs: Ladder(tuple(sorted(rungs)))
)
PRIORITIES = st.sampled_from((0, 0, 0, 1, -1))


@st.composite
def step_limits(draw: st.DrawFn) -> StepLimits:
    return StepLimits(
        budget=draw(st.integers(1, 64)),
        threshold=draw(st.sampled_from((0, 0, 1, 5, 17, 100))),
        max_partial_prefills=draw(st.sampled_from((0, 0, 1, 2, 5))),
        max_num_rows=draw(st.integers(1, 8)),
        ladder=draw(LADDERS),
    )


def arrivals(priorities: st.SearchStrategy[int]) -> st.SearchStrategy[list[Arrival]]:
    arrival = st.builds(Arrival, st.integers(1, 90), st.integers(0, 12), st.booleans(), priorities)
    return st.lists(arrival, min_size=1, max_size=10)


ROWS = st.lists(
    st.one_of(
        st.builds(PlanRow, st.integers(1, 90), st.booleans(), PRIORITIES, st.booleans()),
        st.builds(PlanRow, st.just(1), st.just(False), PRIORITIES, st.booleans()),  # a decode row
    ),
    min_size=1,
    max_size=12,
)
CUT_ROWS = st.lists(st.builds(PlanRow, st.integers(1, 90), st.just(True)), min_size=1, max_size=12)


def grants(rows: list[PlanRow], limits: StepLimits) -> list[int]:
    taken = dict(plan_step(rows, limits).slices)
    return [taken.get(index, 0) for index in range(len(rows))]


def oldest(rows: list[PlanRow]) -> int:
    """The first row of the highest priority; decode rows count as of the highest."""
    highest = max(row.priority for row in rows)
    return next(
        index
        for index, row in enumerate(rows)
        if row.priority == highest or (row.num_remaining == 1 and not row.can_cut)
    )


@UNTIMED
@given(ROWS, step_limits())
def test_a_plan_answers_for_every_row_once(rows: list[PlanRow], limits: StepLimits) -> None:
    plan = plan_step(rows, limits)
    indices = [row.row_index for row in plan.slices]
    assert indices == sorted(set(indices))
    assert sorted(plan.next_order) == list(range(len(rows)))
    assert all(1 <= row.num_tokens <= rows[row.row_index].num_remaining for row in plan.slices)


@UNTIMED
@given(ROWS, step_limits())
def test_the_budget_is_exceeded_by_one_uncuttable_oldest_row_alone(rows: list[PlanRow], limits: StepLimits) -> None:
    assert limits.budget is not None
    plan = plan_step(rows, limits)
    if plan.num_tokens > limits.budget:
        (only,) = plan.slices
        assert only.row_index == oldest(rows)
        assert not rows[only.row_index].can_cut


@UNTIMED
@given(ROWS, step_limits())
def test_the_oldest_row_advances(rows: list[PlanRow], limits: StepLimits) -> None:
    assert grants(rows, limits)[oldest(rows)] > 0


@UNTIMED
@given(ROWS, step_limits())
def test_rows_are_cut_only_where_they_may_be(rows: list[PlanRow], limits: StepLimits) -> None:
    for row, tokens in zip(rows, grants(rows, limits), strict=True):
        if not row.can_cut:
            assert tokens in (0, row.num_remaining)
        elif limits.threshold:
            assert tokens <= limits.threshold


@UNTIMED
@given(ROWS, step_limits())
def test_the_number_of_rows_and_of_chunks_is_capped(rows: list[PlanRow], limits: StepLimits) -> None:
    taken = grants(rows, limits)
    assert sum(1 for tokens in taken if tokens) <= limits.max_num_rows
    num_chunks = sum(
        1
        for row, tokens in zip(rows, taken, strict=True)
        if row.can_cut and tokens and (row.is_partial or tokens < row.num_remaining)
    )
    assert not limits.max_partial_prefills or num_chunks <= limits.max_partial_prefills


@UNTIMED
@given(CUT_ROWS, st.integers(1, 300), st.sampled_from((0, 1, 5, 17, 100)))
def test_sharing_is_max_min_fair(rows: list[PlanRow], budget: int, threshold: int) -> None:
    """No row's share can grow except at the cost of a row that has no more: the definition, in whole tokens."""
    limits = StepLimits(budget, threshold, 0, len(rows), Ladder(()))
    taken = grants(rows, limits)
    wants = [min(row.num_remaining, threshold or budget, budget) for row in rows]
    assert sum(taken) == min(budget, sum(wants))
    short = [tokens for tokens, want in zip(taken, wants, strict=True) if tokens < want]
    if short:
        assert max(taken) <= min(short) + 1
        assert short == sorted(short, reverse=True)  # what does not divide goes to the oldest


@UNTIMED
@given(ROWS, step_limits())
def test_a_cap_on_chunks_that_does_not_bind_changes_nothing(rows: list[PlanRow], limits: StepLimits) -> None:
    assert limits.budget is not None
    longest = min(limits.budget, limits.threshold or limits.budget)
    free = grants(rows, replace(limits, max_partial_prefills=0, ladder=Ladder(())))
    num_chunks = num_sure_chunks = 0
    for row, tokens in zip(rows, free, strict=True):
        num_chunks += row.can_cut and tokens > 0 and (row.is_partial or tokens < row.num_remaining)
        num_sure_chunks += row.can_cut and (row.is_partial or row.num_remaining > longest)
    roomy = replace(limits, max_partial_prefills=max(1, num_chunks, num_sure_chunks), ladder=Ladder(()))
    assert grants(rows, roomy) == free


def check_coverage(steps: list[Step], lengths: list[int]) -> None:
    chunks: dict[int, list[Chunk]] = defaultdict(list)
    for step in steps:
        for chunk in step.chunks:
            chunks[chunk.request].append(chunk)
    for request, length in enumerate(lengths):
        ends = [chunk.end for chunk in chunks[request]]
        assert [chunk.start for chunk in chunks[request]] == [0, *ends[:-1]]
        assert ends[-1] == length


@UNTIMED
@given(arrivals(PRIORITIES), step_limits())
def test_chunks_are_contiguous_in_order_and_cover_every_request(
    all_arrivals: list[Arrival], limits: StepLimits
) -> None:
    check_coverage(simulate(all_arrivals, limits), [arrival.length for arrival in all_arrivals])


@UNTIMED
@given(arrivals(st.just(0)), step_limits())
def test_nothing_starves_under_any_arrival_order(all_arrivals: list[Arrival], limits: StepLimits) -> None:
    """A row waits at most as many steps as rows were ahead of it when it last ran, or arrived."""
    may_wait: dict[int, int] = {}
    for step in simulate(all_arrivals, limits):
        running = {chunk.request for chunk in step.chunks}
        for place, request in enumerate(step.waiting):
            patience = may_wait.get(request, place)
            if request in running:
                may_wait.pop(request, None)
            else:
                assert patience > 0
                may_wait[request] = patience - 1


@UNTIMED
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), step_limits())
def test_a_stream_of_new_rows_does_not_keep_an_old_one_waiting(lengths: list[int], limits: StepLimits) -> None:
    """One row that cannot be cut, larger than any budget, behind rows of which one arrives in every step."""
    stream = [Arrival(lengths[step % len(lengths)], step) for step in range(12)]
    steps = simulate([Arrival(200, 1, can_cut=False), *stream], limits)
    first = next(place for place, step in enumerate(steps) if any(chunk.request == 0 for chunk in step.chunks))
    assert first <= 3


def padding_under_backlog(steps: list[Step], limits: StepLimits) -> tuple[int, int]:
    """Padding, and tokens run with it, of the steps that left work waiting though they could have held more."""
    padding = tokens_run = 0
    for step in steps:
        num_rows_are_capped = len(step.chunks) == limits.max_num_rows
        is_cut = any(row.num_tokens < step.rows[row.row_index].num_remaining for row in step.plan.slices)
        is_full = step.num_tokens >= (limits.budget or 0)
        if step.num_left and (is_cut or is_full or num_rows_are_capped):
            padding += limits.ladder.padding_of(step.num_tokens)
            tokens_run += step.num_tokens + limits.ladder.padding_of(step.num_tokens)
    return padding, tokens_run


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6000), min_size=1, max_size=80),
    budget=st.integers(32, 5000),
    threshold=st.sampled_from((0, 0, 32, 100, 700, 5000)),
    max_num_rows=st.integers(32, 64),
    rungs=st.sets(st.integers(33, 4096), max_size=8),
)
def test_padding_under_backlog_is_at_most_one_percent(
    lengths: list[int], budget: int, threshold: int, max_num_rows: int, rungs: set[int]
) -> None:
    limits = StepLimits(budget, threshold, 0, max_num_rows, Ladder((32, *sorted(rungs))))
    steps = simulate([Arrival(length) for length in lengths], limits)
    padding, tokens_run = padding_under_backlog(steps, limits)
    assert padding * 100 <= tokens_run


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=40),
    num_decoding=st.integers(0, 31),
    budget=st.integers(64, 600),
    rungs=st.sets(st.integers(65, 600), max_size=6),
)
def test_mixed_steps_keep_every_decode_row_and_land_on_rungs(
    lengths: list[int], num_decoding: int, budget: int, rungs: set[int]
) -> None:
    limits = StepLimits(budget, 0, 0, 96, Ladder((64, *sorted(rungs))))
    rows = [PlanRow(1, can_cut=False, is_partial=True)] * num_decoding + [PlanRow(n, can_cut=True) for n in lengths]
    plan = plan_step(rows, limits)
    assert {row.row_index for row in plan.slices} >= set(range(num_decoding))
    if plan.num_tokens < num_decoding + sum(lengths):
        padding = limits.ladder.padding_of(plan.num_tokens)
        assert padding * 100 <= plan.num_tokens + padding


@UNTIMED
@given(arrivals(st.just(0)), step_limits())
def test_planning_is_a_function_of_its_arguments(all_arrivals: list[Arrival], limits: StepLimits) -> None:
    assert simulate(all_arrivals, limits) == simulate(all_arrivals, limits)
