"""What the runner counts, walk by walk."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class WalkStats:
    """Totals of one walk since the runner was made; warm-up is not counted."""

    num_steps: int = 0
    num_tokens: int = 0
    """Tokens of requests."""
    num_padding_tokens: int = 0
    """Tokens that would fill each step up to its rung, whether they are computed or not."""
    num_unpadded_steps: int = 0
    """Steps larger than the top rung."""
    seconds: float = 0.0
    """Time in steps."""

    def with_step(self, num_tokens: int, rung: int | None, seconds: float) -> "WalkStats":
        """The totals after one more step; `rung` is None if it was larger than all."""
        return replace(
            self,
            num_steps=self.num_steps + 1,
            num_tokens=self.num_tokens + num_tokens,
            num_padding_tokens=self.num_padding_tokens + (0 if rung is None else rung - num_tokens),
            num_unpadded_steps=self.num_unpadded_steps + (rung is None),
            seconds=self.seconds + seconds,
        )


@dataclass(frozen=True)
class RungTiming:
    """How long one rung took at warm-up."""

    walk: str
    rung: int
    num_tokens: int
    """Tokens that were run: the rung, or the step budget where that is less."""
    seconds: float
