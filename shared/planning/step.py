"""Plans one step: values in, a decision out. No clock, no tensor; the same code for prefill, `mixed` and offline."""

from collections.abc import Sequence

from shared.planning.alignment import align
from shared.planning.granting import Queue, grant
from shared.planning.rows import PlanRow, RowSlice, StepLimits, StepPlan


def plan_step(rows: Sequence[PlanRow], limits: StepLimits) -> StepPlan:
    """Decides how many tokens of which rows run in the next step.

    Pass all rows that have tokens to compute and KV blocks to put them in, those that wait included, in the order that
    the last plan's `next_order` gave, new rows behind them.

    * The oldest row (the first of the highest priority) always advances. If it cannot be cut it runs whole, alone
      where it exceeds the budget: the one case in which a step does.
    * Rows of one priority share what higher priorities leave, max-min fairly: rows that need no more than an equal
      share go whole, the rest split what is left, and the oldest get what does not divide. A row that cannot be cut
      and needs more than its share waits, the youngest first. A decode row counts as of the highest priority:
      priority says whose prompt goes first, and must not stall sequences that are generating.
    * `threshold` caps each row that can be cut, in each step.
    * `max_partial_prefills` caps the rows that are chunks of a longer prompt: rows that this step cuts, and rows that
      an earlier step cut (`is_partial`), whose last chunk counts too. Where it binds, other rows go whole or wait.
    * Without a budget nothing is cut: the first `max_num_rows` rows go whole, whatever the threshold.
    * With more work waiting than the step holds, the step is cut to land on a rung (`alignment.align`).
    * Next come the rows that waited, then those that went whole (decode rows come again), then those that were cut.
      Of equal priorities a row thus waits at most as many steps as rows were ahead of it, whatever arrives.
    """
    if not rows:
        return StepPlan((), ())
    queue = Queue.of(rows)
    if limits.budget is None:
        grants = [0] * len(rows)
        for index in queue.order[: limits.max_num_rows]:
            grants[index] = rows[index].num_remaining
    else:
        grants = grant(queue, limits, limits.budget)
        grants = align(queue, limits, limits.budget, grants)
    slices = tuple(RowSlice(index, tokens) for index, tokens in enumerate(grants) if tokens)
    return StepPlan(slices, _next_order(rows, grants))


def _next_order(rows: Sequence[PlanRow], grants: Sequence[int]) -> tuple[int, ...]:
    waited: list[int] = []
    went_whole: list[int] = []
    were_cut: list[int] = []
    for index, tokens in enumerate(grants):
        turn = were_cut if tokens < rows[index].num_remaining else went_whole
        (turn if tokens else waited).append(index)
    return (*waited, *went_whole, *were_cut)
