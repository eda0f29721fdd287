"""Drives the planner until every request is done, as a step loop would, and records what each step ran."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.planning import PlanRow, StepLimits, StepPlan, plan_step


@dataclass(frozen=True)
class Arrival:
    """A prompt of `length` tokens that arrives before step `step`."""

    length: int
    step: int = 0
    can_cut: bool = True
    priority: int = 0


@dataclass(frozen=True)
class Chunk:
    """Tokens [start, end) of a request."""

    request: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"r{self.request}[{self.start}:{self.end}]"


@dataclass(frozen=True)
class Step:
    """One planned step.

    Attributes:
        waiting: requests with tokens to compute, in the order they were passed.
        rows: what the planner was passed for them.
        chunks: what it chose.
        num_left: tokens that remain of the waiting requests after the step.
    """

    waiting: tuple[int, ...]
    rows: tuple[PlanRow, ...]
    plan: StepPlan
    chunks: tuple[Chunk, ...]
    num_left: int

    @property
    def num_tokens(self) -> int:
        return self.plan.num_tokens


@dataclass
class _State:
    arrivals: Sequence[Arrival]
    computed: dict[int, int] = field(default_factory=dict)

    def row(self, request: int) -> PlanRow:
        arrival, computed = self.arrivals[request], self.computed[request]
        return PlanRow(
            num_remaining=arrival.length - computed,
            can_cut=arrival.can_cut,
            priority=arrival.priority,
            is_partial=computed > 0,
        )

    def is_done(self, request: int) -> bool:
        return self.computed[request] == self.arrivals[request].length


def simulate(arrivals: Sequence[Arrival], limits: StepLimits, max_num_steps: int = 5000) -> list[Step]:
    """Runs all requests; fails where they are not done after `max_num_steps` steps with work."""
    state = _State(arrivals)
    pending = sorted(range(len(arrivals)), key=lambda request: arrivals[request].step)
    waiting: list[int] = []
    steps: list[Step] = []
    now = 0
    while pending or waiting:
        assert len(steps) < max_num_steps, f"not done after {max_num_steps} steps"
        while pending and arrivals[pending[0]].step <= now:
            request = pending.pop(0)
            state.computed[request] = 0
            waiting.append(request)
        if waiting:
            steps.append(_step(state, waiting, limits))
            order = steps[-1].plan.next_order
            waiting = [waiting[index] for index in order if not state.is_done(waiting[index])]
        now += 1
    return steps


def _step(state: _State, waiting: Sequence[int], limits: StepLimits) -> Step:
    rows = tuple(state.row(request) for request in waiting)
    plan = plan_step(rows, limits)
    chunks = []
    for row in plan.slices:
        request = waiting[row.row_index]
        start = state.computed[request]
        state.computed[request] += row.num_tokens
        chunks.append(Chunk(request, start, state.computed[request]))
    num_left = sum(row.num_remaining for row in rows) - plan.num_tokens
    return Step(tuple(waiting), rows, plan, tuple(chunks), num_left)
