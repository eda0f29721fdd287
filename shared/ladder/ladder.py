"""A ladder, and the two ways to make one: trimming a list to a budget, and doubling up to a size."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Ladder:
    """Rungs that are kept, and those that trimming dropped.

    Attributes:
        rungs: sizes in tokens (or in rows, for a batch ladder), strictly ascending, each ≥ 1.
        dropped: rungs above `rungs` that no step can need, strictly ascending.
    """

    rungs: tuple[int, ...]
    dropped: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        every_rung = (0, *self.rungs, *self.dropped)
        assert all(low < high for low, high in pairwise(every_rung)), every_rung

    @property
    def top(self) -> int:
        """The largest rung; 0 for a ladder without rungs."""
        return self.rungs[-1] if self.rungs else 0

    def rung_for(self, num_tokens: int) -> int | None:
        """The smallest rung that holds `num_tokens`; None above the top rung, where steps run unpadded."""
        index = bisect_left(self.rungs, num_tokens)
        return self.rungs[index] if index < len(self.rungs) else None

    def rung_within(self, num_tokens: int) -> int | None:
        """The largest rung that `num_tokens` fill; None below the lowest rung."""
        index = bisect_left(self.rungs, num_tokens + 1)
        return self.rungs[index - 1] if index else None

    def padding_of(self, num_tokens: int) -> int:
        """Tokens of padding that a step of `num_tokens` runs with; 0 above the top rung."""
        rung = self.rung_for(num_tokens)
        return 0 if rung is None else rung - num_tokens


def trim(rungs: Sequence[int], budget: int | None) -> Ladder:
    """Keeps the rungs up to and including the first that holds `budget`; without a budget, all of them.

    The list is never extended: where no rung holds the budget, larger steps run unpadded.
    """
    if budget is None:
        return Ladder(tuple(rungs))
    num_kept = bisect_left(rungs, budget) + 1
    return Ladder(tuple(rungs[:num_kept]), tuple(rungs[num_kept:]))


def doubling_rungs(lowest: int, needed: int) -> tuple[int, ...]:
    """`lowest`, and its doubles up to the first that holds `needed`."""
    rungs = [lowest]
    while rungs[-1] < needed:
        rungs.append(2 * rungs[-1])
    return tuple(rungs)
