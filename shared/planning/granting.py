"""How many tokens each row gets in a step of a given budget, before the step is aligned to a rung."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from shared.planning.rows import PlanRow, StepLimits
from shared.planning.sharing import Demand, share


@dataclass(frozen=True)
class Queue:
    """Rows and the order in which to serve them.

    Attributes:
        rows: as the caller passed them.
        ranks: for each row, its priority; that of a decode row is the highest (see `plan_step`).
        order: row indices, higher ranks first, else as passed.
    """

    rows: Sequence[PlanRow]
    ranks: Sequence[int]
    order: Sequence[int]

    @classmethod
    def of(cls, rows: Sequence[PlanRow]) -> "Queue":
        """Puts rows in order."""
        highest = max(row.priority for row in rows)
        ranks = [highest if row.is_decode else row.priority for row in rows]
        return cls(rows, ranks, sorted(range(len(rows)), key=lambda index: -ranks[index]))


def num_chunks(rows: Sequence[PlanRow], grants: Sequence[int]) -> int:
    """Rows of the step that are a chunk of a longer prompt."""
    pairs = zip(rows, grants, strict=True)
    return sum(1 for row, tokens in pairs if tokens and _is_chunk(row, tokens))


def grant(queue: Queue, limits: StepLimits, budget: int) -> list[int]:
    """Tokens for each row, by row index; 0: it waits.

    Where fair sharing would cut more rows than `max_partial_prefills`, only rows that are chunks in any case are cut,
    the first so many of them; others go whole or wait, and one is cut at last if there is room for a chunk more.
    """
    grants = _grant(queue, limits, budget, may_start_chunks=True)
    if limits.max_partial_prefills and num_chunks(queue.rows, grants) > limits.max_partial_prefills:
        grants = _grant(queue, limits, budget, may_start_chunks=False)
    return grants


def _grant(queue: Queue, limits: StepLimits, budget: int, *, may_start_chunks: bool) -> list[int]:
    grants = [0] * len(queue.rows)
    num_left = budget
    demands = _demands(queue, limits, budget, may_start_chunks=may_start_chunks)
    oldest = demands[0]
    if not oldest.can_cut:  # it always runs, alone where it exceeds the budget
        grants[oldest.row_index] = oldest.want
        num_left = max(0, num_left - oldest.want)
        demands = demands[1:]
    for _, group in groupby(demands, key=lambda demand: demand.rank):
        equals = list(group)
        for demand, tokens in zip(equals, share(equals, num_left), strict=True):
            grants[demand.row_index] = tokens
            num_left -= tokens
    if num_left:
        _fill(queue, limits, grants, num_left)
    return grants


def _demands(queue: Queue, limits: StepLimits, budget: int, *, may_start_chunks: bool) -> list[Demand]:
    """Rows that may take part, in service order: as many, and as many chunks, as the limits allow."""
    longest = _longest_chunk(limits, budget)
    num_slots = limits.max_partial_prefills or len(queue.rows)
    demands: list[Demand] = []
    for index in queue.order:
        row = queue.rows[index]
        want, can_cut = row.num_remaining, row.can_cut
        if can_cut:
            is_chunk = row.is_partial or want > longest
            if is_chunk and num_slots == 0:
                continue
            num_slots -= is_chunk
            can_cut = is_chunk or may_start_chunks
            want = min(want, longest)
        demands.append(Demand(index, queue.ranks[index], want, can_cut))
        if len(demands) == limits.max_num_rows:
            break
    return demands


def _fill(queue: Queue, limits: StepLimits, grants: list[int], num_left: int) -> None:
    """Gives tokens that sharing left over to rows that wait, oldest first."""
    longest = _longest_chunk(limits, num_left)
    num_places = limits.max_num_rows - sum(1 for tokens in grants if tokens)
    num_slots = (limits.max_partial_prefills or len(queue.rows)) - num_chunks(queue.rows, grants)
    for index in queue.order:
        if not num_left or not num_places:
            return
        if grants[index]:
            continue
        row = queue.rows[index]
        tokens = min(row.num_remaining, longest, num_left) if row.can_cut else row.num_remaining
        is_chunk = _is_chunk(row, tokens)
        if tokens > num_left or (is_chunk and num_slots <= 0):
            continue
        grants[index] = tokens
        num_left -= tokens
        num_places -= 1
        num_slots -= is_chunk


def _longest_chunk(limits: StepLimits, num_tokens: int) -> int:
    return min(limits.threshold, num_tokens) if limits.threshold else num_tokens


def _is_chunk(row: PlanRow, num_tokens: int) -> bool:
    return row.can_cut and (row.is_partial or num_tokens < row.num_remaining)
