"""Arithmetic on arrival times: percentiles, gaps, rates, and how far apart the tokens of one step arrive."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

Arrivals = Sequence[Sequence[float]]
"""For each stream, the ascending times at which its tokens arrived, in seconds of one clock."""


@dataclass(frozen=True)
class Percentiles:
    """What matters of many samples, all in the samples' unit.

    Attributes:
        count: how many samples.
    """

    count: int
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Percentiles":
        """Of at least one sample."""
        return cls(len(samples), *(percentile(samples, share) for share in (0.5, 0.9, 0.99, 1.0)))


@dataclass(frozen=True)
class Window:
    """The time from `start_s` to `end_s`."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Bursts:
    """The tokens of each step as they arrived.

    Attributes:
        spreads_s: for each step, the last token's arrival minus the first one's.
        num_irregular: steps that could not be told from their neighbours, as some stream had two tokens in one.
    """

    spreads_s: tuple[float, ...]
    num_irregular: int


def percentile(samples: Sequence[float], share: float) -> float:
    """The value that `share` of the samples (0 to 1) do not exceed, interpolated linearly between two of them."""
    assert samples, "no samples"
    ordered = sorted(samples)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def full_window(arrivals: Arrivals) -> Window:
    """The time in which every stream decodes: from the last one's second token to the first one's last token."""
    window = Window(max(times[1] for times in arrivals), min(times[-1] for times in arrivals))
    assert window.seconds > 0, "the streams were never all under way"
    return window


def gaps_within(arrivals: Arrivals, window: Window) -> list[float]:
    """Seconds between neighbouring tokens of a stream, of all streams, where both arrived within the window."""
    return [
        later - earlier
        for times in arrivals
        for earlier, later in itertools.pairwise(times)
        if earlier >= window.start_s and later <= window.end_s
    ]


def rate_within(arrivals: Arrivals, window: Window) -> float:
    """Tokens a second that arrived within the window, the token at its very start not counted."""
    num_tokens = sum(window.start_s < time <= window.end_s for times in arrivals for time in times)
    return num_tokens / window.seconds


def bursts_within(arrivals: Arrivals, window: Window) -> Bursts:
    """Splits what arrived within the window into steps.

    Every step gives each stream one token. So the tokens in order of arrival are cut into groups of as many as there
    are streams, from the widest gap among the first such tokens on: that one lies between two steps.
    """
    num_streams = len(arrivals)
    tokens = sorted(
        (time, index)
        for index, times in enumerate(arrivals)
        for time in times
        if window.start_s <= time <= window.end_s
    )
    lead = tokens[: num_streams + 1]
    first = max(range(1, len(lead)), key=lambda index: lead[index][0] - lead[index - 1][0], default=0)
    spreads, num_irregular = [], 0
    for start in range(first, len(tokens) - num_streams + 1, num_streams):
        step = tokens[start : start + num_streams]
        if len({index for _, index in step}) < num_streams:
            num_irregular += 1
        else:
            spreads.append(step[-1][0] - step[0][0])
    return Bursts(tuple(spreads), num_irregular)
