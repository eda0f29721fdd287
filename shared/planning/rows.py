"""What the planner is asked, and what it answers."""

from dataclasses import dataclass
from typing import NamedTuple

from shared.ladder import Ladder


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One request that has tokens to compute.

    Attributes:
        num_remaining: tokens of the request that are not computed yet, ≥ 1.
        can_cut: whether a step may take a part of them. A decode row has one token and cannot be cut.
        priority: higher goes first.
        is_partial: whether an earlier step took a part, so that even the last chunk counts as a chunk.
    """

    num_remaining: int
    can_cut: bool
    priority: int = 0
    is_partial: bool = False

    @property
    def is_decode(self) -> bool:
        """Whether this is one token that cannot be cut: the next of a sequence that is generating."""
        return self.num_remaining == 1 and not self.can_cut


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What one step may hold.

    Attributes:
        budget: most tokens, ≥ 1; None: no limit, and no row is cut.
        threshold: most tokens that a row which can be cut gets; 0: no cap.
        max_partial_prefills: most rows that are a chunk (first, middle or last) of a longer prompt; 0: no cap.
        max_num_rows: most rows, ≥ 1.
        ladder: rungs in tokens.
    """

    budget: int | None
    threshold: int
    max_partial_prefills: int
    max_num_rows: int
    ladder: Ladder


class RowSlice(NamedTuple):
    """The next `num_tokens` tokens of row `row_index`."""

    row_index: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step.

    Attributes:
        slices: what each row in the step gets, by ascending `row_index`.
        next_order: indices of all planned rows, in the order in which to pass those that remain to the next step.
    """

    slices: tuple[RowSlice, ...]
    next_order: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of the step, without padding."""
        return sum(row.num_tokens for row in self.slices)
