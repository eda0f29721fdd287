"""What the runner counts, walk by walk and rung by rung."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType


@dataclass(frozen=True)
class StepTotals:
    """Totals of some steps."""

    num_steps: int = 0
    num_tokens: int = 0
    """Tokens of requests."""
    num_padding_tokens: int = 0
    """Tokens that would fill each step up to its rung, whether they are computed or not."""
    seconds: float = 0.0
    """Time in steps."""

    def plus(self, other: "StepTotals") -> "StepTotals":
        """The totals of both."""
        return StepTotals(
            num_steps=self.num_steps + other.num_steps,
            num_tokens=self.num_tokens + other.num_tokens,
            num_padding_tokens=self.num_padding_tokens + other.num_padding_tokens,
            seconds=self.seconds + other.seconds,
        )


@dataclass(frozen=True)
class WalkStats:
    """Totals of one walk since the runner was made; warm-up is not counted."""

    by_rung: Mapping[int, StepTotals] = field(default_factory=lambda: MappingProxyType({}))
    """Of the steps that ran at each rung."""
    over_top: StepTotals = StepTotals()
    """Of the steps larger than the top rung, which ran unpadded."""

    @classmethod
    def of_rungs(cls, rungs: Iterable[int]) -> "WalkStats":
        """Nothing yet at each of the rungs."""
        return cls(MappingProxyType({rung: StepTotals() for rung in rungs}))

    @property
    def total(self) -> StepTotals:
        """Of all steps."""
        return reduce(StepTotals.plus, self.by_rung.values(), self.over_top)

    def with_step(self, num_tokens: int, rung: int | None, seconds: float) -> "WalkStats":
        """The totals after one more step; `rung` is None if it was larger than all."""
        if rung is None:
            return WalkStats(self.by_rung, self.over_top.plus(StepTotals(1, num_tokens, 0, seconds)))
        step = StepTotals(1, num_tokens, rung - num_tokens, seconds)
        at_rung = self.by_rung.get(rung, StepTotals()).plus(step)
        return WalkStats(MappingProxyType({**self.by_rung, rung: at_rung}), self.over_top)


@dataclass(frozen=True)
class RungTiming:
    """How long one rung took to prepare at warm-up."""

    walk: str
    rung: int
    num_tokens: int
    """Tokens that were run."""
    seconds: float
