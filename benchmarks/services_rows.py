"""What the services have to reach, and whether they do: measured values beside their bounds.

The figures of `Required` are for one machine. On another one they are scaled by what its engine does:
required figure × (engine of this run ÷ the engine's own required figure of the same kind). The services' figures and
the engine's were set apart from each other, so that some ask for more than the engine itself has; a scaled rate is
therefore never above 0.90 × the engine's rate of this run, and a scaled time to first token never below 1.10 × the
engine's time: the requirement as a ratio.
"""

from dataclasses import dataclass
from typing import Literal

MIN_RATE_RATIO = 0.90
MAX_TTFT_RATIO = 1.10

Sense = Literal["at least", "at most"]


@dataclass(frozen=True)
class Row:
    """One measured value.

    Attributes:
        name: what.
        unit: such as "tokens/s".
        value: measured.
        sense: which side of the bound is good.
        required: the bound for the machine that the requirements were written for; None: the value is a ratio of this
            run, or its bound is measured by the run.
        bound: what counts on this machine.
    """

    name: str
    unit: str
    value: float
    sense: Sense
    required: float | None
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the value is on the good side of the bound of this machine."""
        return self._is_good(self.bound)

    @property
    def holds_as_required(self) -> bool | None:
        """The same, of the figure for the other machine."""
        return None if self.required is None else self._is_good(self.required)

    def _is_good(self, bound: float) -> bool:
        return self.value >= bound if self.sense == "at least" else self.value <= bound


@dataclass(frozen=True)
class EngineFigure:
    """A rate of the bare engine, tokens a second: in this run, and required of the machine of the requirements."""

    measured: float
    required: float

    @property
    def speed(self) -> float:
        """This machine's share of the other one's speed."""
        return self.measured / self.required


def rate_row(name: str, value: float, required: float, engine: EngineFigure) -> Row:
    """A rate that scales with the engine's."""
    bound = min(required * engine.speed, MIN_RATE_RATIO * engine.measured)
    return Row(name, "tokens/s", value, "at least", required, bound)


def ttft_row(name: str, value_ms: float, required_ms: float, prompt_len: int, engine: EngineFigure) -> Row:
    """A time to first token, which scales with the engine's time for the prompt."""
    bound = max(required_ms / engine.speed, MAX_TTFT_RATIO * prompt_len / engine.measured * 1e3)
    return Row(name, "ms", value_ms, "at most", required_ms, bound)


def gap_row(name: str, value_ms: float, required_ms: float, engine: EngineFigure) -> Row:
    """A time between tokens, which scales with the engine's step."""
    return Row(name, "ms", value_ms, "at most", required_ms, required_ms / engine.speed)


def hand_over_row(name: str, value_ms: float, required_ms: float, bound_ms: float) -> Row:
    """A hand-over, whose bound the run has measured."""
    return Row(name, "ms", value_ms, "at most", required_ms, bound_ms)


def ratio_row(name: str, value: float, sense: Sense, bound: float) -> Row:
    """A ratio of two values of the run."""
    return Row(name, "×", value, sense, None, bound)
