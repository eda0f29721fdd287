"""How tokens are chosen: the parameters of one request, validated."""

from dataclasses import dataclass
from math import inf

from shared.errors import Reason, require

MAX_TEMPERATURE = 100.0
MAX_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling options of one request. Every value outside its bounds, NaN and infinity included, is refused.

    Attributes:
        temperature: Logits are divided by it, in [0, 100]; 0 is greedy. Above 100 any distribution is as good as
            uniform, so a larger value is taken for a mistake.
        top_k: Keep the k most likely tokens; 0 keeps all.
        top_p: Keep the smallest set of tokens whose probability reaches this, in (0, 1].
        min_p: Drop tokens less likely than this share of the most likely one, in [0, 1].
        seed: In [0, 2**64). The draw at output position i depends on (seed, index, i) alone.

    Raises:
        InvalidRequestError: SAMPLING_INVALID, with `field`, `value` and `bounds` in the metadata.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        # Comparisons with NaN are false, so it never counts as inside.
        _require(0 <= self.temperature <= MAX_TEMPERATURE, "temperature", self.temperature, "[0, 100]")
        _require(0 <= self.top_k < inf, "top_k", self.top_k, "[0, inf)")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "(0, 1]")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "[0, 1]")
        _require(0 <= self.seed <= MAX_SEED, "seed", self.seed, "[0, 2**64)")

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0


def _require(is_inside: bool, field: str, value: float, bounds: str) -> None:
    require(is_inside, f"sampling.{field}", value, bounds, Reason.SAMPLING_INVALID)
