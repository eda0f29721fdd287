"""The ladder with the least padding for given steps. Exact: integers only, by dynamic programming.

A step runs at the smallest rung that holds it. Only sizes at which some step ends need to be looked at: a rung between
two of them holds the steps of the lower one, with more padding. Let s[0] = 0 < s[1] < … < s[n] be those sizes, rounded
up to the alignment, the last one holding the budget, and H[j] the number of steps of at most s[j] tokens. Then

    best[k][j] = min over i < j of  best[k-1][i] + s[j] × (H[j] − H[i])

is the least number of tokens, padding included, that those steps run with on k rungs of which the highest is s[j]. For
one k, each i gives a line in s[j], of slope −H[i]; slopes fall as i grows and s[j] grows with j, so the lowest line is
found by moving along a lower envelope: O(k × n) in all.

One more rung at a size that has none never adds padding, so the best ladder of at most k rungs has k of them, or all n.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from shared.ladder.steps import StepCounts


@dataclass(frozen=True)
class LadderCost:
    """What a ladder costs over some steps.

    Attributes:
        rungs: ascending sizes in tokens.
        num_tokens: tokens of the steps, padding not counted.
        num_padding_tokens: tokens that fill the steps up to their rungs.
        num_steps: steps of any length.
        num_unpadded_steps: those that need no padding: as long as their rung, or above the top one.
        num_steps_above: those above the top rung, which run without a capture.
    """

    rungs: tuple[int, ...]
    num_tokens: int
    num_padding_tokens: int
    num_steps: int
    num_unpadded_steps: int
    num_steps_above: int

    @property
    def padding_ratio(self) -> float:
        """Padding tokens for each real one."""
        return self.num_padding_tokens / self.num_tokens

    @property
    def unpadded_share(self) -> float:
        """Share of the steps that need no padding."""
        return self.num_unpadded_steps / self.num_steps


def cost_of(rungs: Sequence[int], steps: StepCounts) -> LadderCost:
    """The cost of a ladder; steps above its top rung run unpadded."""
    num_padding = num_unpadded = num_above = 0
    for length, count in steps.counts.items():
        place = bisect_left(rungs, length)
        is_above = place == len(rungs)
        padding = 0 if is_above else rungs[place] - length
        num_padding += padding * count
        num_unpadded += count if padding == 0 else 0
        num_above += count if is_above else 0
    return LadderCost(tuple(rungs), steps.num_tokens, num_padding, steps.num_steps, num_unpadded, num_above)


def suggest(steps: StepCounts, max_num_rungs: int, alignment: int = 1) -> LadderCost:
    """The ladder of at most `max_num_rungs` ≥ 1 rungs, all multiples of `alignment` ≥ 1, with the least padding.

    Its top rung is the first multiple that holds the budget.
    """
    assert max_num_rungs >= 1
    sizes, held = _sizes(steps, alignment)
    if max_num_rungs >= len(sizes) - 1:
        return cost_of(sizes[1:], steps)
    return cost_of(_trace_back(sizes, list(islice(_choices(sizes, held), max_num_rungs))), steps)


def suggest_each(steps: StepCounts, max_num_rungs: int, alignment: int = 1) -> Iterator[LadderCost]:
    """The best ladders of 1, 2, … rungs, as `suggest` gives them; ends early where more rungs save nothing."""
    sizes, held = _sizes(steps, alignment)
    choices: list[Sequence[int]] = []
    for choice in islice(_choices(sizes, held), max_num_rungs):
        choices.append(choice)
        yield cost_of(_trace_back(sizes, choices), steps)


def _sizes(steps: StepCounts, alignment: int) -> tuple[list[int], list[int]]:
    """Sizes that a rung may have, 0 first, and for each the number of steps that it or a smaller one holds."""
    held_by_size = {0: 0}
    num_held = 0
    for length, count in steps.counts.items():
        num_held += count
        held_by_size[_rounded_up(length, alignment)] = num_held
    held_by_size[_rounded_up(steps.budget, alignment)] = num_held
    return list(held_by_size), list(held_by_size.values())


def _rounded_up(length: int, alignment: int) -> int:
    return -(-length // alignment) * alignment


def _choices(sizes: Sequence[int], held: Sequence[int]) -> Iterator[Sequence[int]]:
    """For 1, 2, … rungs: for each highest rung, the place of the one below it."""
    best: list[int | None] = [0] + [None] * (len(sizes) - 1)
    for _ in sizes[1:]:
        best, choice = _add_rung(best, sizes, held)
        yield choice


def _add_rung(
    best: Sequence[int | None], sizes: Sequence[int], held: Sequence[int]
) -> tuple[list[int | None], Sequence[int]]:
    """One more rung: the least tokens for each highest rung (None: too few sizes), and the place of the one below."""
    more: list[int | None] = [None] * len(sizes)
    choice = array("i", [0]) * len(sizes)
    envelope = _Envelope()
    for place, size in enumerate(sizes):
        if envelope.lines:
            tokens, choice[place] = envelope.lowest_at(size)
            more[place] = tokens + size * held[place]
        below = best[place]
        if below is not None:
            envelope.add(-held[place], below, place)
    return more, choice


class _Envelope:
    """The lowest of some lines, at places that only grow; lines come in falling order of their slopes."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, int, int]] = []
        """Slope, height at 0, name: those that are lowest somewhere, from left to right."""
        self._at = 0

    def add(self, slope: int, height: int, name: int) -> None:
        """Adds a line."""
        while len(self.lines) > 1 and self._hides_last(slope, height):
            self.lines.pop()
        self.lines.append((slope, height, name))

    def lowest_at(self, place: int) -> tuple[int, int]:
        """The least height at `place`, and the line's name."""
        self._at = min(self._at, len(self.lines) - 1)
        while self._at + 1 < len(self.lines) and _height(self.lines[self._at + 1], place) < _height(
            self.lines[self._at], place
        ):
            self._at += 1
        return _height(self.lines[self._at], place), self.lines[self._at][2]

    def _hides_last(self, slope: int, height: int) -> bool:
        """Whether the last line is nowhere lower than both the one before it and a new one."""
        (slope_1, height_1, _), (slope_2, height_2, _) = self.lines[-2:]
        return (height - height_1) * (slope_1 - slope_2) <= (height_2 - height_1) * (slope_1 - slope)


def _height(line: tuple[int, int, int], place: int) -> int:
    return line[0] * place + line[1]


def _trace_back(sizes: Sequence[int], choices: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The rungs of the best ladder whose top is the last size."""
    rungs = []
    place = len(sizes) - 1
    for choice in reversed(choices):
        rungs.append(sizes[place])
        place = choice[place]
    return tuple(reversed(rungs))
