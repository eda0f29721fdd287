"""Max-min fair sharing of a step's tokens among rows, some of which do not take a part."""

from collections.abc import Sequence
from typing import NamedTuple


class Demand(NamedTuple):
    """What one row asks of a step. A tuple, because up to four for each row are made a step.

    Attributes:
        row_index: the row.
        rank: rows of a higher rank are served first.
        want: most tokens it takes.
        can_cut: whether it takes less; a row that does not gets all it wants, or waits.
    """

    row_index: int
    rank: int
    want: int
    can_cut: bool


def share(demands: Sequence[Demand], num_tokens: int) -> list[int]:
    """Tokens for each demand, in the given order (oldest first); 0: it waits.

    Progressive filling: demands of at most an equal share are met whole, the others split what these leave; what does
    not divide goes to the oldest, one token each. While a demand that cannot be cut exceeds its equal share, the
    youngest such demand waits, which raises the share of the others.
    """
    wants = [demand.want for demand in demands]
    if sum(wants) <= num_tokens:
        return wants
    grants = [0] * len(wants)
    is_open = [True] * len(wants)  # neither met nor waiting
    num_open = len(wants)
    uncuttable = [position for position, demand in enumerate(demands) if not demand.can_cut]
    for position in sorted(range(len(wants)), key=wants.__getitem__):
        while is_open[position] and wants[position] * num_open > num_tokens:
            while uncuttable and not is_open[uncuttable[-1]]:
                uncuttable.pop()
            if not uncuttable:
                _split(grants, is_open, num_tokens)
                return grants
            is_open[uncuttable.pop()] = False
            num_open -= 1
        if is_open[position]:
            is_open[position] = False
            grants[position] = wants[position]
            num_open -= 1
            num_tokens -= wants[position]
    return grants


def _split(grants: list[int], is_open: list[bool], num_tokens: int) -> None:
    """Splits the tokens evenly among the open positions, each of which wants more than that."""
    positions = [position for position, still_open in enumerate(is_open) if still_open]
    equal, left_over = divmod(num_tokens, len(positions))
    for place, position in enumerate(positions):
        grants[position] = equal + (place < left_over)
