"""Cutting a step so that it lands on a rung while more work waits than it holds."""

from collections.abc import Sequence

from shared.planning.granting import Queue, grant, num_chunks
from shared.planning.rows import PlanRow, StepLimits

MAX_PADDING_PERCENT = 1
"""Padding that is not worth a smaller step, in percent of the tokens run."""


def align(queue: Queue, limits: StepLimits, budget: int, grants: list[int]) -> list[int]:
    """`grants`, or fewer tokens that fill a rung exactly.

    Left as it is: a step without backlog; one that pads at most 1%; one below the lowest rung; and one that could land
    on a rung only by leaving out a row that cannot be cut, or the oldest row.

    A step that the budget bounds is shared again within the rung. One that other limits bound (threshold, rows) has
    room for all its rows, so it gives tokens back at its end instead: first those of cut rows, then of the youngest.
    """
    num_tokens = sum(grants)
    target = limits.ladder.rung_within(num_tokens)
    if target is None or target == num_tokens or _pads_little(limits, num_tokens):
        return grants
    is_full = num_tokens >= budget
    if not _has_backlog(queue.rows, limits, grants, is_full=is_full):
        return grants
    candidates = (
        (grant(queue, limits, target),)
        if is_full
        else (_give_back(queue, grants, target, oldest_first=first) for first in (False, True))
    )
    return next((new for new in candidates if _is_acceptable(queue, limits, grants, new, target)), grants)


def _pads_little(limits: StepLimits, num_tokens: int) -> bool:
    rung = limits.ladder.rung_for(num_tokens)
    return rung is not None and (rung - num_tokens) * 100 <= MAX_PADDING_PERCENT * rung


def _has_backlog(rows: Sequence[PlanRow], limits: StepLimits, grants: Sequence[int], *, is_full: bool) -> bool:
    """Whether rows in the step are cut, or others wait that only the budget or the number of rows keeps out.

    A row that waits for `max_partial_prefills` is none: it could not use the place of a last chunk that is cut shorter.
    """
    if any(0 < tokens < row.num_remaining for row, tokens in zip(rows, grants, strict=True)):
        return True
    num_rows = sum(1 for tokens in grants if tokens)
    return num_rows < len(rows) and (is_full or num_rows == limits.max_num_rows)


def _give_back(queue: Queue, grants: Sequence[int], target: int, *, oldest_first: bool) -> list[int]:
    """Deals `target` tokens out again, up to each row's grant: first uncuttable rows, then whole rows, then cut ones.

    `oldest_first` puts the oldest row before other whole rows, for when these would leave it nothing.
    """
    served = [index for index in queue.order if grants[index]]

    def place(index: int) -> int:
        if not queue.rows[index].can_cut:
            return 0
        if oldest_first and index == served[0]:
            return 1
        return 2 if grants[index] == queue.rows[index].num_remaining else 3

    dealt = [0] * len(queue.rows)
    for index in sorted(served, key=place):
        dealt[index] = min(grants[index], target)
        target -= dealt[index]
    return dealt


def _is_acceptable(
    queue: Queue,
    limits: StepLimits,
    grants: Sequence[int],
    aligned: Sequence[int],
    target: int,
) -> bool:
    keeps_uncuttable = all(row.can_cut or new >= old for row, old, new in zip(queue.rows, grants, aligned, strict=True))
    keeps_limit = not limits.max_partial_prefills or num_chunks(queue.rows, aligned) <= limits.max_partial_prefills
    return keeps_uncuttable and keeps_limit and aligned[queue.order[0]] > 0 and sum(aligned) == target
