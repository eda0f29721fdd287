"""The steps that prompts make when each is cut at a budget, counted by length."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class StepCounts:
    """How many steps of each length there are.

    Attributes:
        counts: tokens of a step, ≥ 1 and ≤ budget → how many such steps, ≥ 1; at least one, in ascending order.
        budget: most tokens that a step may have.
    """

    counts: Mapping[int, int]
    budget: int

    @classmethod
    def of_prompts(cls, prompts: Mapping[int, int], budget: int) -> "StepCounts":
        """Cuts prompts, given as length ≥ 1 → how many: 5,000 tokens at 2,048 make steps of 2,048, 2,048 and 904."""
        steps: Counter[int] = Counter()
        for length, num_prompts in prompts.items():
            num_full, rest = divmod(length, budget)
            if num_full:
                steps[budget] += num_full * num_prompts
            if rest:
                steps[rest] += num_prompts
        return cls(dict(sorted(steps.items())), budget)

    @cached_property
    def num_steps(self) -> int:
        """Steps of any length."""
        return sum(self.counts.values())

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of all steps, padding not counted."""
        return sum(length * count for length, count in self.counts.items())
